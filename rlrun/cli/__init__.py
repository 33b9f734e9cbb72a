"""rlrun.cli."""
