"""Comparison of runs: the settings that differ, and the results."""
