"""Which cases of the tests of every algorithm take longest, and wait for a slow tier."""

import pytest

MEMORIES = ("PPO, LSTM", "PPO, GRU", "PPO, attention", "IMPALA, LSTM", "DQN, GRU")


def slow_with_memory(name, *values):
    """Parameters of a test, in a slow tier if the algorithm, one of `tiny`, has a memory."""
    return pytest.param(name, *values, marks=[pytest.mark.learning] if name in MEMORIES else [])
