"""Environments: single, vectorised, of several agents, Atari, EnvPool, PettingZoo, examples."""
