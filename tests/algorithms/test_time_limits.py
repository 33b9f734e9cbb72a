"""Values that are learned look beyond a time limit, which truncates an episode and ends nothing.

In `Detour` that is the whole difference: a policy whose values end after four steps stays at home,
one whose values go on walks. (CartPole does not tell them apart: where limits count as terminations
a policy learns to avoid the states that are reached late, and so not to drift.)
"""

import gymnasium as gym
import numpy as np
import pytest

from rlrun import Callbacks
from rlrun.algorithms.a2c import A2CConfig
from rlrun.algorithms.appo import APPOConfig
from rlrun.algorithms.dqn import DQNConfig
from rlrun.algorithms.impala import IMPALAConfig
from rlrun.algorithms.ppo import PPOConfig

LIMIT, LONG = 4, 60
WALK = 4  # steps from home to the place where every step pays 1
WAGE = 0.3  # of a step that is not taken
STAYING, WALKING = LONG * WAGE, LONG - WALK

ONE_EPOCH = {"train_batch_size": 256, "minibatch_size": 64, "lr": 1e-2}
ALGORITHMS = {
    "PPO": lambda: PPOConfig().training(train_batch_size=512, minibatch_size=128, lr=3e-3),
    "A2C": lambda: A2CConfig().training(train_batch_size=128, lr=1e-2),
    "IMPALA": lambda: IMPALAConfig().training(**ONE_EPOCH, entropy_coeff=0.02),
    "APPO": lambda: APPOConfig().training(**ONE_EPOCH),
    "DQN": lambda: (
        DQNConfig()
        .training(train_batch_size=512, target_network_update_freq=100, lr=1e-3)
        .training(num_steps_sampled_before_learning_starts=200)
        .exploration(epsilon=[[0, 1.0], [4000, 0.1]])
    ),
}
ENV_STEPS = {"IMPALA": 24_576, "APPO": 24_576}  # others half of that


class Detour(gym.Env):
    """Five places in a row. Staying pays 0.3, walking on nothing, and the last place 1 a step.

    Within four steps from home staying pays 1.2 and walking nothing; if it goes on, walking pays
    more from a discount of 0.75 on: 0.75^4 > 0.3.

    Args:
        limit: steps of an episode.
        anywhere: begin at any of the places, not always at home.
    """

    observation_space = gym.spaces.Box(0, 1, (WALK + 1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, limit, anywhere=False):
        self.limit, self.anywhere = limit, anywhere

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.place = 0, 0
        if self.anywhere:
            self.place = int(self.np_random.integers(WALK + 1))
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        if self.place == WALK:
            reward = 1.0
        else:
            reward = 0.0 if action else WAGE
            self.place += int(action)
        return self._seen(), reward, False, self.t >= self.limit, {}

    def _seen(self):
        return np.eye(WALK + 1, dtype=np.float32)[self.place]


class LimitsTerminate(Callbacks):
    """The mistake: time limits are taken for terminations."""

    def on_postprocess_trajectory(self, *, postprocessed_batch, **further):
        batch = postprocessed_batch
        batch["terminateds"] = batch["terminateds"] | batch["truncateds"]
        batch["truncateds"] = np.zeros_like(batch["truncateds"])


def long_return(built, name, seed, *callbacks):
    """The mean return of long episodes after training in short ones."""

    def build_for(limit, anywhere=False):
        config = ALGORITHMS[name]().environment(
            f"{__name__}:Detour", limit=limit, anywhere=anywhere
        )
        config = config.env_runners(num_env_runners=0, num_envs_per_env_runner=8)
        config = config.model(hidden=[16]).training(gamma=0.95).callbacks(*callbacks)
        return built(config.evaluation(episodes=2).debugging(seed=seed))

    trained, longer = build_for(LIMIT, anywhere=True), build_for(LONG)
    while trained.env_steps < ENV_STEPS.get(name, 12_288):
        trained.train()
    longer.set_weights(trained.get_weights())
    return longer.evaluate()["episode_return_mean"]


@pytest.mark.learning
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_rewards_after_the_limit_count(built, name, seed):
    assert long_return(built, name, seed) == WALKING


@pytest.mark.learning
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "DQN"])
def test_where_limits_are_terminations_no_policy_walks(built, name, seed):
    """Except DQN's: its values of single steps, without their time, know nothing of the limit."""
    assert long_return(built, name, seed, f"{__name__}:LimitsTerminate") == pytest.approx(STAYING)
