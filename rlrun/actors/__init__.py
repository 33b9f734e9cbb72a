"""What knows Ray: the group of env runners, its rounds and recovery, the actor manager."""
