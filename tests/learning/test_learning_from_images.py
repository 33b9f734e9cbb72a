"""PPO learns what to do from what an image shows, in both precisions of its convolutions."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlrun import PPOConfig

pytestmark = pytest.mark.learning


class BrightQuarter(gym.Env[Any, Any]):
    """A noisy image with one brighter quarter, which is the right action; episodes of 10 steps."""

    observation_space = gym.spaces.Box(0, 255, (2, 16, 16), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._drawn(), {}

    def step(self, action):
        reward = float(action == self._quarter)
        self._steps += 1
        return self._drawn(), reward, self._steps == 10, False, {}

    def _drawn(self):
        self._quarter = int(self.np_random.integers(4))
        image = self.np_random.integers(0, 150, (2, 16, 16), np.uint8)
        row, column = (8 * i for i in divmod(self._quarter, 2))
        image[:, row : row + 8, column : column + 8] += 100
        return image


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_learns_from_images(built, dtype):
    config = (
        PPOConfig()
        .environment(BrightQuarter)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=8)
        .training(train_batch_size=512, minibatch_size=128, num_epochs=4, lr=2e-3)
        .model(conv_dtype=dtype, conv=[[16, 4, 2], [32, 3, 1]], conv_head=64)
        .debugging(seed=11)
    )
    algorithm = built(config)
    returns = [algorithm.train()["episode_return_mean"] for _ in range(25)]
    assert returns[0] < 6
    # Single iterations move by 0.3, and the last bits of a processor decide which way.
    assert np.mean(returns[-5:]) > 9.2
