"""Global generators: user code may draw from them, and runs stay equal and resumable."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlrun import MultiAgentEnv, PGConfig
from rlrun.data.seeding import seeded_generators
from rlrun.envs.multi_agent_env import make_multi_agent
from rlrun.policies.catalog import seeded_torch


class Draws(gymnasium.Env[Any, Any]):
    """Observes and rewards what global generators draw, in episodes of random lengths."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._left = random.randrange(3, 9)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return self._seen(), np.random.rand(), self._left == 0, False, {}

    def _seen(self) -> Any:
        return np.array([np.random.randn(), float(torch.rand(()))], np.float32)


class DrawingAgents(MultiAgentEnv):
    """The same for two agents."""

    possible_agents = ("a", "b")
    observation_spaces = dict.fromkeys(possible_agents, Draws.observation_space)
    action_spaces = dict.fromkeys(possible_agents, Draws.action_space)

    def __init__(self) -> None:
        self._envs = {name: Draws() for name in self.possible_agents}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._left = random.randrange(3, 9)
        return {name: env.reset()[0] for name, env in self._envs.items()}, {}

    def step(self, actions: Any) -> Any:
        self._left -= 1
        steps = {name: self._envs[name].step(action) for name, action in actions.items()}
        seen = {name: step[0] for name, step in steps.items()}
        rewards = {name: step[1] for name, step in steps.items()}
        return seen, rewards, {"__all__": self._left <= 0}, {}, {}


class Samples(Draws):
    """Draws from its spaces instead, which all instances share."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        gymnasium.Env.reset(self, seed=seed)
        self._left = 3 + int(self.action_space.sample())
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        seen = self.observation_space.sample()
        return seen, float(seen.sum()), self._left == 0, False, {}


class SamplingAgents(DrawingAgents):
    """The same for two agents."""

    observation_spaces = dict.fromkeys("ab", Samples.observation_space)
    action_spaces = dict.fromkeys("ab", Samples.action_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._left = 3 + int(self.action_spaces["b"].sample())
        return {name: space.sample() for name, space in self.observation_spaces.items()}, {}

    def step(self, actions: Any) -> Any:
        self._left -= 1
        seen = {name: self.observation_spaces[name].sample() for name in actions}
        rewards = {name: float(each.sum()) for name, each in seen.items()}
        return seen, rewards, {"__all__": self._left <= 0}, {}, {}


sampling_copies = make_multi_agent(Samples)


def config(env: str, **env_runners: Any) -> Any:
    made = PGConfig().environment(f"{__name__}:{env}").debugging(seed=7)
    made = made.env_runners(num_envs_per_env_runner=2, **env_runners)
    made = made.training(train_batch_size=20).evaluation(interval=1, episodes=3)
    return made if env in ("Draws", "Samples") else made.multi_agent(policies=["p"])


def numbers(algorithm: Any, iterations: int) -> list[Any]:
    rows = [algorithm.train() for _ in range(iterations)]
    weights = {name: part.tobytes() for name, part in algorithm.get_weights().items()}
    found = [(row["episode_return_mean"], row["evaluation"]["episode_return_mean"]) for row in rows]
    return [*found, weights]


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("Draws", {}),
        ("DrawingAgents", {}),
        ("Draws", {"gym_env_vectorize_mode": "async"}),
        ("Samples", {}),
        ("SamplingAgents", {}),
        ("sampling_copies", {}),
    ],
)
def test_equal_seeds_give_equal_runs_and_a_resumed_one_goes_on_to_the_bit(
    env: str, settings: dict[str, Any], tmp_path: Any
) -> None:
    first, second, resumed = (config(env, **settings).build() for _ in range(3))
    np.random.rand(3)
    first.train()
    first.save(tmp_path / "saved")
    straight_on = numbers(first, 2)
    second.train()
    assert numbers(second, 2) == straight_on
    resumed.restore(tmp_path / "saved")
    assert numbers(resumed, 2) == straight_on
    for algorithm in (first, second, resumed):
        algorithm.stop()


def test_evaluation_is_the_same_in_processes() -> None:
    here, elsewhere = (
        config("Draws").build(),
        config("Draws", gym_env_vectorize_mode="async").build(),
    )
    assert here.evaluate() == elsewhere.evaluate()
    elsewhere.stop()


def test_the_generators_of_a_script_are_left_as_they_were() -> None:
    """Also the second number of a pair of normal ones, which numpy keeps."""
    expected, found = [], []
    for numbers_, trains in ((expected, False), (found, True)):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        np.random.randn()
        if trains:
            algorithm = config("Draws").build()
            algorithm.train()
            algorithm.evaluate()
        numbers_ += [random.random(), np.random.randn(), np.random.rand(), float(torch.rand(()))]
    assert found == expected


def test_the_generators_are_seeded_for_a_block() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), float(torch.rand(()))

    drawn = []
    for seed in (1, 1, 2):
        with seeded_generators(seed):
            drawn.append(draw())
    assert drawn[0] == drawn[1]
    assert all(a != b for a, b in zip(drawn[1], drawn[2], strict=True))


def test_threads_draw_initial_weights_as_each_would_alone() -> None:
    def draw(seed: int) -> list[float]:
        with seeded_generators(seed):
            time.sleep(0.02 * (seed % 2))
            with seeded_torch(seed):
                first = float(torch.rand(()))
                time.sleep(0.04)  # another thread would draw now, and seed, and restore
                return [first, float(torch.rand(()))]

    seeds, before = range(6), torch.get_num_threads()
    with ThreadPoolExecutor(len(seeds)) as threads:
        assert list(threads.map(draw, seeds)) == [draw(seed) for seed in seeds]
    assert torch.get_num_threads() == before
