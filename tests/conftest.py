"""What holds for all tests: a Ray that a module has started ends with the module."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_ray_is_left_behind() -> Iterator[None]:
    """Ray is one per process, and its workers know only what could be imported when it started."""
    yield
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
