"""What a user types: one file a command, argument parsing and nothing else."""
