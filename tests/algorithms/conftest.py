"""Algorithms that stop when the test ends."""

import pytest
import tiny

from rlrun import AlgorithmConfig


@pytest.fixture
def built():
    """Builds a config, or an algorithm of `tiny` given its name, and stops it at the end."""
    made = []

    def build(what, *args, **kwargs):
        config = isinstance(what, AlgorithmConfig)
        made.append(what.build() if config else tiny.build(what, *args, **kwargs))
        return made[-1]

    yield build
    for algorithm in made:
        algorithm.stop()
