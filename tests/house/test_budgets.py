"""One PPO iteration enters few files, costs few calls a vector step, and warns of nothing."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from source_tree import PACKAGE, ROOT

from benchmarks.views import Plain, WithPrevious, runner_of
from rlrun import PPOConfig, RLModule
from rlrun.sampling.runner_messages import SampleRequest

MAX_FILES = 22
MAX_CALLS_PER_VECTOR_STEP = 20
MAX_CALLS_FOR_TWO_VIEWS = 8

NUM_ENVS = 8
LENGTH = 128  # vector steps an iteration

# Two iterations that do everything a long run does.
SHORT = (
    "training.train_batch_size=1024",
    "stop={episode_return_mean: 475, env_steps: 2048}",
    "evaluation.interval=1",
    "checkpoint.every=1",
)


@contextmanager
def _calls_into_the_house() -> Iterator[Counter[tuple[str, str]]]:
    """Counts calls of rlrun's own functions in this thread, as (file, function)."""
    calls: Counter[tuple[str, str]] = Counter()
    prefix = str(PACKAGE)

    def count(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            file = Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix()
            calls[file, frame.f_code.co_qualname] += 1

    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(previous)


def _one_iteration() -> Counter[tuple[str, str]]:
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS)
        .training(train_batch_size=NUM_ENVS * LENGTH, minibatch_size=256, num_epochs=4)
        .debugging(seed=1)
    )
    algorithm = config.build()
    try:
        algorithm.train()  # the first one builds and warms up
        with _calls_into_the_house() as calls:
            result = algorithm.train()
    finally:
        algorithm.stop()
    assert result["env_steps_this_iter"] == NUM_ENVS * LENGTH
    assert result["episodes_this_iter"] > 0
    return calls


def test_one_iteration_enters_few_files() -> None:
    files = {file for file, _ in _one_iteration()}
    assert "algorithms/ppo.py" in files
    assert len(files) <= MAX_FILES, sorted(files)


def test_a_vector_step_costs_few_calls() -> None:
    """The whole iteration counts: sampling, the end of episodes, learning, the result."""
    calls = _one_iteration()
    assert calls.total() / LENGTH <= MAX_CALLS_PER_VECTOR_STEP, calls.most_common(25)


def _calls_of_sampling(module: type[RLModule]) -> float:
    """Calls of a vector step, of a runner whose episodes have all just begun or go on."""
    runner = runner_of(module)
    runner.sample_fragment(SampleRequest(0, LENGTH))
    with _calls_into_the_house() as calls:
        reply = runner.sample_fragment(SampleRequest(1, LENGTH))
    assert len(reply.episodes) > LENGTH / 10, "views at the start of an episode take longer"
    return calls.total() / LENGTH


def test_views_cost_few_calls() -> None:
    """The action and the reward before, against the same network without them."""
    more = _calls_of_sampling(WithPrevious) - _calls_of_sampling(Plain)
    assert more <= MAX_CALLS_FOR_TWO_VIEWS


def test_a_default_run_is_silent(tmp_path: Path) -> None:
    """With two Ray runners, as a user starts it: no warning on the terminal, none in the log."""
    run = subprocess.run(
        [
            *(sys.executable, "-W", "default", "-m", "rlrun", "train", "configs/ppo_cartpole.yaml"),
            *SHORT,
            *("--run-dir", str(tmp_path / "run"), "--plain"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    output = run.stdout + run.stderr
    assert run.returncode == 0, output
    assert "warn" not in output.lower(), output
    assert "deprecat" not in output.lower(), output
    assert "warn" not in (tmp_path / "run" / "log.txt").read_text().lower()


def test_our_own_code_raises_no_warning(tmp_path: Path) -> None:
    """In one process, with every warning an error."""
    run = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "rlrun", "train", "configs/ppo_cartpole.yaml"),
            *SHORT,
            *("env_runners.num_env_runners=0", "--run-dir", str(tmp_path / "run"), "--plain"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout + run.stderr
