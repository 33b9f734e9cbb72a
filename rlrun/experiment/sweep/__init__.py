"""Sweeps: the `sweep:` section of an experiment file, run with Ray Tune."""
