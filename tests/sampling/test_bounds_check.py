"""Observations outside of their space are noticed in a sample of the steps, and then no more."""

import gymnasium
import numpy as np
import pytest

from rlrun import EnvRunner, MultiAgentEnv, PPOConfig, RunnerSpec
from rlrun.config.policies import PolicySettings
from rlrun.config.schema import EnvRunnersConfig, EnvSpec, ModelConfig, TrainingConfig
from rlrun.envs.errors import EnvError
from rlrun.sampling.runner_messages import MultiAgentSpec

BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,))


class Leaves(gymnasium.Env):
    """Its second number is 1000 from step ``after`` on, in a part of the space if it is a Dict."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, after=5, nested=False):
        self.after, self.nested = after, nested
        self.observation_space = gymnasium.spaces.Dict({"x": BOX}) if nested else BOX

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.seen(), {}

    def step(self, action):
        self.steps += 1
        return self.seen(), 1.0, False, self.steps == 50, {}

    def seen(self):
        x = np.array([0.0, 1000.0 * (self.steps >= self.after)], np.float32)
        return {"x": x} if self.nested else x


class TwoLeave(MultiAgentEnv):
    """One agent stays in its space, the other is outside of it from step 5 on."""

    def __init__(self):
        self.possible_agents = ["stays", "leaves"]
        self.observation_spaces = dict.fromkeys(self.possible_agents, BOX)
        self.action_spaces = dict.fromkeys(self.possible_agents, gymnasium.spaces.Discrete(2))

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.seen(), {}

    def step(self, actions):
        self.steps += 1
        flags = {"__all__": False}
        rewards = dict.fromkeys(self.possible_agents, 1.0)
        return self.seen(), rewards, flags, {"__all__": self.steps == 50}, {}

    def seen(self):
        far = np.array([0.0, 1000.0 * (self.steps >= 5)], np.float32)
        return {"stays": np.zeros(2, np.float32), "leaves": far}


def runner(use=Leaves, env=None, **settings):
    several = None
    if use is TwoLeave:
        policy = PolicySettings(ModelConfig(), TrainingConfig())
        several = MultiAgentSpec({"p": policy}, {"*": "p"})
    spec = EnvSpec(use=f"{__name__}:{use.__name__}", kwargs=env or {})
    return EnvRunner(
        RunnerSpec(
            spec, EnvRunnersConfig(num_envs_per_env_runner=2, **settings), multi_agent=several
        )
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "observation at index (1,) is 1000.0, outside of [-1.0, 1.0]"),
        ({"env": {"nested": True}}, "observation['x'] at index (1,) is 1000.0"),
        ({"use": TwoLeave}, "agent 'leaves' of policy 'p': observation at index (1,) is 1000.0"),
    ],
)
def test_what_leaves_its_space_after_the_first_steps_is_an_error_where_that_is_asked_for(
    arguments, named
):
    made = runner(**arguments, observations_out_of_bounds="error")
    with pytest.raises(EnvError) as caught:
        made.sample()
    assert named in str(caught.value)
    assert (caught.value.env_index, caught.value.phase) == (0, "observation")


def test_a_comparison_is_made_after_ten_steps_and_then_after_each_interval():
    def first_found(after, interval, length=7, **more):
        more |= {"observation_check_interval": interval, "observations_out_of_bounds": "error"}
        made = runner(env={"after": after}, horizon=None, rollout_fragment_length=length, **more)
        for _ in range(7):
            try:
                made.sample()
            except EnvError as error:
                return error.env_step
        return None

    assert [first_found(after, 16) for after in (10, 11, 27)] == [10, 26, 42]
    assert first_found(3, 4) == 4
    assert first_found(3, 16, length=5) == 10, "in the last step of a fragment, too"
    assert first_found(5, None) is None
    assert first_found(3, 4, disable_env_checking=True) is None


def test_the_run_goes_on_after_one_warning_of_each_runner(caplog):
    config = (
        PPOConfig()
        .environment(f"{__name__}:Leaves")
        .training(train_batch_size=64, minibatch_size=32)
    )
    algorithm = config.env_runners(num_envs_per_env_runner=2, observation_check_interval=8).build()
    for _ in range(3):
        algorithm.train()
    algorithm.stop()
    (record,) = [one for one in caplog.records if "outside of [-1.0, 1.0]" in one.message]
    assert "env_runners.observations_out_of_bounds=error" in record.message
