"""A local Ray for each module of this room that needs one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """A Ray whose workers can import the helpers beside this file."""
    from rlrun.actors.ray_runtime import start_ray, stop_ray
    from rlrun.config.schema import EnvRunnersConfig

    if HERE not in sys.path:
        sys.path.insert(0, HERE)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, before]))
    start_ray(EnvRunnersConfig(num_env_runners=2, num_cpus_per_env_runner=0.1))
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
    yield
    stop_ray()
