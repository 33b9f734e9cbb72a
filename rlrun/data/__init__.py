"""rlrun.data."""
