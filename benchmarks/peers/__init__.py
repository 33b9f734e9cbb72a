"""One driver script per framework, each run as a subprocess in its own virtual environment.

A driver must import nothing of the other frameworks, and neither `benchmarks.harness` nor
rlrun unless it is rlrun's own: its environment holds only what that peer needs.
"""
