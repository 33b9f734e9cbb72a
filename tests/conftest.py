"""Fixtures of all tests: a Ray that a module has started ends with the module."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_ray_is_left_behind() -> Iterator[None]:
    """Ray is one per process, and its workers know only what could be imported when it started."""
    yield
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()


@pytest.fixture(scope="module")
def local_ray(request: pytest.FixtureRequest) -> Iterator[None]:
    """A Ray whose workers can import the helpers beside the module that asks for it."""
    from rlrun.actors.ray_runtime import start_ray, stop_ray
    from rlrun.config.schema import EnvRunnersConfig

    path = [str(request.path.parent), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        start_ray(EnvRunnersConfig(num_env_runners=2, num_cpus_per_env_runner=0.1))
    yield
    stop_ray()
