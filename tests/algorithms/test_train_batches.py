"""What train batches hold, and what environments were given: actions, rewards, observations."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlrun import DQNConfig, EnvRunner, PPOConfig
from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.data import columns as col
from rlrun.sampling.runner_connectors import reward_pipeline
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest


class ShowsItsAction(gym.Env[Any, Any]):
    """Observes the action that it was given; never ends."""

    observation_space = gym.spaces.Box(-100, 100, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 3, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return action.copy(), 0.0, False, False, {}


@pytest.mark.parametrize("how", [{}, {"normalize_actions": False, "clip_actions": True}])
def test_the_environment_gets_bounded_actions_and_the_batch_the_policys_own(built, how):
    config = PPOConfig().training(train_batch_size=512).connectors(**how).model(hidden=[8])
    algorithm = built(config.environment(f"{__name__}:ShowsItsAction").debugging(seed=3))
    batch = algorithm.sample()
    actions = batch[col.ACTIONS][:, 0]
    assert actions.min() < -1.5
    given = np.clip(actions if how else 2.0 * actions + 1.0, -1.0, 3.0)
    np.testing.assert_allclose(batch[col.NEXT_OBS][:, 0], given, rtol=1e-6)
    mean, log_std = batch[col.ACTION_DIST_INPUTS].T
    assert (log_std == 0.0).all(), "the standard deviation is 1 at first, whatever is observed"
    logp = -0.5 * ((actions - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(batch[col.ACTION_LOGP], logp, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("gamma", "low", "high"), [(0.5, 1.0, 2.0), (1.0, 4.0, 100.0)])
def test_rewards_are_normalised_by_returns_discounted_as_they_are_learned(built, gamma, low, high):
    config = PPOConfig().training(train_batch_size=256, gamma=gamma, minibatch_size=256)
    config = config.connectors(normalize_rewards=True).model(hidden=[8]).debugging(seed=3)
    algorithm = built(config.environment("CartPole-v1"))
    algorithm.train()
    # Of rewards of 1, discounted by a half, no return comes to 2.
    rewards = algorithm.policies.connectors.get_state()["default_policy"]["rewards"]
    assert low < rewards["stat"]["mean"] < high


@pytest.mark.parametrize(
    ("env", "preprocessor", "expected"),
    [
        ("ALE/Pong-v5", "deepmind", [1.0, -1.0, 0.0]),
        ("ALE/Pong-v5", None, [4.0, -0.5, 0.0]),
        ("CartPole-v1", "deepmind", [4.0, -0.5, 0.0]),
    ],
)
def test_of_atari_alone_learning_sees_the_rewards_sign(env, preprocessor, expected):
    pytest.importorskip("ale_py")
    settings = EnvRunnersConfig(preprocessor_pref=preprocessor)
    rewards = reward_pipeline(RunnerSpec(EnvSpec(use=env), settings))
    going_on = np.zeros(3, np.bool_)
    assert rewards(np.array([4.0, -0.5, 0.0]), going_on, going_on, np.zeros(3)).tolist() == expected


class ReusesItsBuffer(gym.Env[Any, Any]):
    """Counts its steps in an array that it hands out again and again."""

    observation_space = gym.spaces.Box(-1, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.seen = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen[:] = 0
        return self.seen, {}

    def step(self, action):
        self.seen += 1
        return self.seen, 0.0, bool(self.seen[0] == 4), False, {}


def test_observations_that_an_environment_overwrites_are_copied():
    settings = EnvRunnersConfig(num_envs_per_env_runner=2, rollout_fragment_length=10)
    batch = EnvRunner(RunnerSpec(EnvSpec(use=f"{__name__}:ReusesItsBuffer"), settings)).sample()
    assert batch[col.OBS][:, 0].tolist() == 2 * [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert batch[col.NEXT_OBS][:, 0].tolist() == 2 * [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]


def test_env_steps_are_decisions_each_of_four_frames_on_atari():
    pytest.importorskip("ale_py")
    runner = EnvRunner(RunnerSpec(EnvSpec(use="ALE/Pong-v5"), EnvRunnersConfig()))
    frames = runner.envs.envs[0].unwrapped.ale.getFrameNumber
    runner.sample_fragment(SampleRequest(0, 1))
    before = frames()
    reply = runner.sample_fragment(SampleRequest(1, 50))
    assert reply.env_steps == len(reply.batch) == 50
    assert frames() - before == 4 * 50


@pytest.mark.parametrize("config", [DQNConfig, PPOConfig])
@pytest.mark.parametrize(("length", "steps"), [(30, 90), (32, 64)])
def test_an_iteration_of_whole_episodes_ends_once_it_has_its_steps(built, config, length, steps):
    """Each round asks for 4 env steps, and brings an episode."""
    config = config().training(train_batch_size=64, minibatch_size=16).model(hidden=[8])
    whole = {"batch_mode": "complete_episodes", "rollout_fragment_length": 4}
    env = {"use": "MountainCar-v0", "max_episode_steps": length}
    algorithm = built(config.environment(env).env_runners(**whole).debugging(seed=3))
    assert [algorithm.train()["env_steps_this_iter"] for _ in range(2)] == [steps, steps]


def test_steps_of_a_runner_that_does_not_reply_are_sampled_in_a_round_of_their_own(
    built, monkeypatch
):
    config = PPOConfig().environment("CartPole-v1").model(hidden=[8])
    algorithm = built(config.training(train_batch_size=64, minibatch_size=16).debugging(seed=3))
    sample, lengths_of_rounds = algorithm.env_runner_group.sample, []

    def sampling(request, lengths, weights):
        lengths_of_rounds.append(lengths)
        replies = sample(request, lengths, weights)
        return replies if len(lengths_of_rounds) > 1 else []

    monkeypatch.setattr(algorithm.env_runner_group, "sample", sampling)
    assert algorithm.train()["env_steps_this_iter"] == 64
    assert lengths_of_rounds == [[64], [64]]


def test_observations_that_runners_have_packed_are_unpacked(built):
    config = PPOConfig().environment("CartPole-v1").env_runners(compress_observations=True)
    algorithm = built(config)
    reply = algorithm.env_runner_group.local_env_runner.sample_fragment(SampleRequest(0, 20))
    expected = {name: reply.batch[name].copy() for name in (col.OBS, col.NEXT_OBS)}
    for batch in reply.batches.policy_batches.values():
        batch.compress()
    assert reply.batch[col.OBS].dtype == object
    found = algorithm.train_batch([reply]).unwrapped()
    for name, rows in expected.items():
        np.testing.assert_array_equal(found[name], rows)
