"""rlrun.experiment."""
