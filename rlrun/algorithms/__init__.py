"""rlrun.algorithms."""
