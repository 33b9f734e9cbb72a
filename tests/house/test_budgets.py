"""One PPO iteration enters few files, costs few calls a vector step, and warns of nothing."""

import gc
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from source_tree import PACKAGE, ROOT

from benchmarks.views import Plain, WithPrevious, runner_of
from rlrun import AlgorithmConfig, DQNConfig, PPOConfig, RLModule
from rlrun.sampling.runner_messages import SampleRequest

NUM_ENVS = 8
LENGTH = 128  # vector steps an iteration

MAX_CALLS_FOR_TWO_VIEWS = 7.0
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")

# Two iterations that do everything a long run does.
SHORT = (
    "training.train_batch_size=1024",
    "stop={episode_return_mean: 475, env_steps: 2048}",
    "evaluation.interval=1",
    "checkpoint.every=1",
)


@contextmanager
def _calls_into_the_house() -> Iterator[Counter[tuple[str, str]]]:
    """Counts calls of rlrun's own functions in this thread, as (file, function).

    Comprehensions are none of them: before Python 3.12 each was a call.
    """
    calls: Counter[tuple[str, str]] = Counter()
    prefix = str(PACKAGE)

    def count(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        ours = code.co_filename.startswith(prefix) and code.co_name not in COMPREHENSIONS
        if event == "call" and ours:
            file = Path(code.co_filename).relative_to(PACKAGE).as_posix()
            calls[file, code.co_qualname] += 1

    gc.collect()
    gc.disable()  # finalizers of what earlier tests left would be counted
    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(previous)
        gc.enable()


def _on_policy() -> PPOConfig:
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS)
        .training(train_batch_size=NUM_ENVS * LENGTH, minibatch_size=256, num_epochs=4)
        .debugging(seed=1)
    )


def _two_agents() -> PPOConfig:
    config = _on_policy().environment("MultiAgentCartPole", num_agents=2)
    return config.multi_agent(policies=["agent_0", "agent_1"])


def _lstm() -> PPOConfig:
    return _on_policy().model(use_lstm=True, lstm_cell_size=16, max_seq_len=16)


def _dqn() -> DQNConfig:
    return (
        DQNConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=1)
        .training(
            train_batch_size=LENGTH,
            minibatch_size=32,
            num_steps_sampled_before_learning_starts=LENGTH,
        )
        .debugging(seed=1)
    )


@dataclass(frozen=True)
class Budget:
    """What an iteration may enter, and what an env step or a vector step may cost."""

    config: Callable[[], AlgorithmConfig]
    files: int
    calls: float
    steps: int
    """That the calls are divided by."""


# What was measured, rounded up: these numbers may only fall.
BUDGETS = {
    "PPO, by vector step": Budget(_on_policy, files=32, calls=21.9, steps=LENGTH),
    "two agents, by env step": Budget(_two_agents, files=37, calls=8.98, steps=NUM_ENVS * LENGTH),
    "LSTM, by vector step": Budget(_lstm, files=38, calls=42.5, steps=LENGTH),
    "DQN, by env step": Budget(_dqn, files=35, calls=57.6, steps=LENGTH),
}


def _one_iteration(config: AlgorithmConfig) -> Counter[tuple[str, str]]:
    algorithm = config.build()
    try:
        algorithm.train()  # the first one builds and warms up
        algorithm.train()
        with _calls_into_the_house() as calls:
            algorithm.train()
    finally:
        algorithm.stop()
    return calls


@pytest.mark.parametrize("name", BUDGETS)
def test_one_iteration_enters_few_files_and_costs_few_calls(name: str) -> None:
    """The whole iteration counts: sampling, the end of episodes, learning, the result."""
    budget = BUDGETS[name]
    calls = _one_iteration(budget.config())
    files = {file for file, _ in calls}
    assert len(files) <= budget.files, sorted(files)
    assert calls.total() / budget.steps <= budget.calls, calls.most_common(25)


def _calls_of_sampling(module: type[RLModule]) -> float:
    """Calls of a vector step, of a runner whose episodes have all just begun or go on."""
    torch.manual_seed(0)  # the number of episodes follows from the network
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


@pytest.mark.learning
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
