"""Random nests of spaces: every algorithm trains in them, and acts as before from a checkpoint."""

import functools
import random

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from nested_envs import RandomObservations
from tiny import BATCH, CONFIGS

from rlrun import load_policy
from rlrun.policies.layers import has_image

spaces = gym.spaces
LEAVES = {
    "vector": spaces.Box(-5, 5, (3,), np.float32),
    "matrix": spaces.Box(-2, 2, (2, 2), np.float64),
    "number": spaces.Box(-1, 1, (), np.float32),
    "integers": spaces.Box(-3, 4, (2,), np.int16),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "category": spaces.Discrete(4, start=-2),
    "unsigned category": spaces.Discrete(3, dtype=np.uint8),
    "categories": spaces.MultiDiscrete([3, 1, 2], start=[1, 0, -4]),
    "flags": spaces.MultiBinary([2, 2]),
    "image": spaces.Box(0, 255, (6, 8, 1), np.uint8),
    "grey image": spaces.Box(0, 255, (7, 6), np.uint8),
}


def nest(rng, depth=2):
    """A leaf, or a Dict or Tuple of up to three nests."""
    if not depth or rng.random() < 0.3:
        return LEAVES[rng.choice(list(LEAVES))]
    parts = [nest(rng, depth - 1) for _ in range(rng.choice((1, 2, 3)))]
    if rng.random() < 0.5:
        return spaces.Tuple(parts)
    return spaces.Dict({f"part {i}": part for i, part in enumerate(parts)})


class Nests(RandomObservations):
    """Episodes of three steps; Discrete observations are ints of Python."""

    def __init__(self, seed, actions=None):
        self.observation_space = nest(random.Random(seed))
        self.action_space = nest(random.Random(seed + 1)) if actions is None else actions

    def see(self):
        seen = super().see()
        return int(seen) if isinstance(self.observation_space, spaces.Discrete) else seen

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        return self.see(), 1.0, self.steps == 3, False, {}


@pytest.mark.filterwarnings("ignore:.*Casting input x")  # gymnasium, of numbers as actions
@pytest.mark.parametrize("seed", range(4, 12))
def test_any_nest_of_spaces_is_learned_in_and_acted_on(built, tmp_path, seed):
    name = ("PPO", "A2C", "DQN", "SAC")[seed % 4]
    arguments = {"actions": spaces.Discrete(3, start=1)} if name in ("DQN", "SAC") else {}
    environment = functools.partial(Nests, seed, **arguments)
    model = {"hidden": [4], "conv": [[2, 3, 2]], "conv_head": 4}
    if not has_image(environment().observation_space):
        del model["conv"], model["conv_head"]
    algorithm = built(CONFIGS[name]().environment(environment).model(**model).debugging(seed=seed))
    assert algorithm.train()["env_steps"] == BATCH
    algorithm.save(tmp_path / "checkpoint")
    policy = load_policy(tmp_path / "checkpoint", trust=True)
    observation, _ = environment().reset(seed=1)
    action = policy.compute_single_action(observation)
    assert policy.action_space.contains(action)
    assert data_equivalence(action, algorithm.compute_single_action(observation))
