"""Side-by-side measurements of rlrun and its peers; docs/benchmarks.md says how to read them.

Every claim of speed in this project comes from here: one run, all contenders, equal work.
Nothing in `rlrun/` imports this package.
"""
