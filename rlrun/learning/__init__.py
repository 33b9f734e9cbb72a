"""rlrun.learning."""
