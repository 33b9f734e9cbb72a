"""rlrun.policies."""
