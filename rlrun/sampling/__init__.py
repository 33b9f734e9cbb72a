"""rlrun.sampling."""
