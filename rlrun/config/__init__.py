"""rlrun.config."""
