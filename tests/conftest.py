"""Fixtures of all tests: one Ray for all of them, and the experiment of the counting algorithm."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

HERE = Path(__file__).parent
# The workers of `make test` share the cores; threads that wait for one another take them away.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What takes a millisecond takes seconds beside other work.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
COUNTING = """
algorithm: "counting_algorithm:CountingAlgorithm"
env: CartPole-v1
seed: 3
stop: {training_iteration: 6}
training: {train_batch_size: 100}
"""


@pytest.fixture(scope="session", autouse=True)
def _own_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A key of the tests, which sign the run folders of one another, and not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _importable_by_workers() -> Iterator[None]:
    """Ray's workers can import what tests can; a Ray that was started ends with the session."""
    rooms = {str(path.parent) for path in HERE.rglob("*.py")}
    paths = [*sorted(rooms), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()


@pytest.fixture(scope="module")
def local_ray() -> None:
    """A Ray, started unless there is one: starting takes seconds."""
    from rlrun.actors.ray_runtime import start_ray
    from rlrun.config.schema import EnvRunnersConfig

    start_ray(EnvRunnersConfig(num_env_runners=2, num_cpus_per_env_runner=0.1))


@pytest.fixture(scope="session")
def actor_pool() -> Any:
    """Actors for all tests of this process; see `ActorPool`."""
    from actor_pool import ActorPool

    return ActorPool()


@pytest.fixture
def shared_actors(local_ray: None, actor_pool: Any) -> Iterator[None]:
    """Actors are those of the tests before this one, as far as these are alive."""
    with actor_pool.shared():
        yield


@pytest.fixture
def built() -> Iterator[Callable[..., Any]]:
    """Builds a config, or calls what makes an algorithm; each stops when the test ends."""
    made: list[Any] = []

    def build(what: Any, *arguments: Any, **settings: Any) -> Any:
        made.append((what.build if hasattr(what, "build") else what)(*arguments, **settings))
        return made[-1]

    yield build
    for algorithm in made:
        algorithm.stop()


@pytest.fixture
def record_fault(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Record what a fault has cost, for docs/faults.md (tests/fault_figures.py).

    Called with lists of numbers: env steps that are ``lost`` for good, env steps that are
    ``repeated``, seconds from the fault, or the resume, to the next iteration, ``recovery_s``, and
    megabytes that a run occupies, ``memory_mb``.
    """

    def record(**figures: list[float]) -> None:
        path, name = request.node.path.relative_to(HERE.parent), request.node.originalname
        if "FAULT_FIGURES" in os.environ:
            with open(os.environ["FAULT_FIGURES"], "a") as file:
                file.write(json.dumps({"test": f"{path}::{name}", **figures}) + "\n")

    return record


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the counting algorithm in an empty working directory; ends with a line break."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "fake.yaml"
    path.write_text(COUNTING)
    return path


@pytest.fixture
def saving(counting: Path) -> Path:
    """The same file, with the newest and the best of a checkpoint every two iterations."""
    settings = "checkpoint: {every: 2, keep: 2}\nreport: {sinks: [jsonl]}\n"
    counting.write_text(counting.read_text() + settings)
    return counting
