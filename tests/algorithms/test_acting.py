"""Policies that act for environments of the caller's: as in evaluation, from a checkpoint too."""

import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tiny import (
    ALGORITHMS,
    FILTERED,
    LSTM,
    SEVERAL_AGENTS,
    SHORT,
    assert_equal_weights,
    train,
)

from rlrun import Algorithm, DQNConfig, PGConfig, PPOConfig
from rlrun.algorithms.ppo import PPO
from rlrun.algorithms.sac import SAC
from rlrun.checkpoint.checkpoint import CheckpointError
from rlrun.data.view_requirement import ViewRequirement
from rlrun.policies.policy import Policy

CASES = [(name, "Pendulum-v1" if name == "SAC" else "CartPole-v1") for name in ALGORITHMS]
EPISODES = {"evaluation": {"episodes": 3}, **FILTERED}


def returns_by_hand(policy, env_name, seeds):
    """Of an episode for each seed, in one environment."""
    limit = SHORT["max_episode_steps"] if env_name == SHORT["use"] else None
    env, returns = gym.make(env_name, max_episode_steps=limit), []
    for seed in seeds:
        policy.reset()
        observation, reward, total, over = env.reset(seed=seed)[0], 0.0, 0.0, False
        while not over:
            action = policy.compute_single_action(observation, reward)
            assert env.action_space.contains(action)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


@pytest.mark.parametrize(("name", "env"), CASES)
def test_it_plays_what_evaluation_plays(built, tmp_path, name, env):
    """With filters, memories and views; and so does the policy of a checkpoint."""
    algorithm = built(name, env, **EPISODES)
    train(algorithm, 2)
    episodes = algorithm.evaluator.evaluate()
    expected = [episode.episode_return for episode in episodes]
    seeds = [episode.seed for episode in episodes]
    assert returns_by_hand(algorithm.acting_policy(), env, seeds) == pytest.approx(expected)
    algorithm.save(tmp_path / "checkpoint")
    restored = Algorithm.from_checkpoint(tmp_path / "checkpoint")
    assert returns_by_hand(restored.acting_policy(), env, seeds) == pytest.approx(expected)
    assert type(restored) is type(algorithm)
    assert train(restored, 1) == train(algorithm, 1)
    assert_equal_weights(restored, algorithm)
    restored.stop()


def test_several_environments_are_acted_in_as_if_each_were_alone(built):
    algorithm = built("PPO, LSTM", **FILTERED)
    train(algorithm, 2)
    together, seeds = algorithm.acting_policy(num_envs=2), [3, 4]
    envs = SyncVectorEnv(
        [lambda: gym.make("CartPole-v1")] * 2, autoreset_mode=AutoresetMode.DISABLED
    )
    alone = [algorithm.acting_policy() for _ in seeds]
    observations, rewards = envs.reset(seed=seeds)[0], np.zeros(2)
    ends = 0
    for _ in range(150):
        actions = together.compute_actions(observations, rewards)
        for i, policy in enumerate(alone):
            assert policy.compute_single_action(observations[i], rewards[i]) == actions[i]
        observations, rewards, terminateds, truncateds, _ = envs.step(actions)
        over = terminateds | truncateds
        for i in np.flatnonzero(over).tolist():
            ends += 1
            together.reset(i)
            alone[i].reset()
        if over.any():
            observations, _ = envs.reset(seed=[ends, ends + 1], options={"reset_mask": over})
    assert ends > 4
    with pytest.raises(ValueError, match=r"acts in 2 environments: compute_actions\(\)"):
        together.compute_single_action(observations[0])


class Rewarded(Policy):
    """Its action says whether the last one was rewarded."""

    def __init__(self, observation_space, action_space, config=None):
        super().__init__(observation_space, action_space, config)
        last = ViewRequirement("rewards", shift=-1, used_for_compute_actions=True)
        self.view_requirements = {"obs": ViewRequirement("obs"), "last": last}

    def compute_actions_from_input_dict(self, input_dict, *, explore=True, noise=None):
        return (input_dict["last"] > 0).astype(np.int64), [], {}


def test_rewards_that_are_not_told_are_zero(built):
    config = PGConfig().environment("CartPole-v1").policy(Rewarded)
    policy = built(config).acting_policy(num_envs=2)
    seen = np.zeros((2, 4), np.float32)
    told = [policy.compute_actions(seen, rewards) for rewards in (None, None, [0.0, 1.0], None)]
    assert [list(actions) for actions in told] == [[0, 0], [0, 0], [0, 1], [0, 0]]


def test_views_reach_back_however_many_steps_there_have_been(built):
    policy = built(PGConfig().environment("CartPole-v1").policy(Rewarded)).acting_policy(num_envs=2)
    seen, rewards = np.zeros((2, 4), np.float32), np.random.default_rng(0).integers(0, 2, (300, 2))
    policy.compute_actions(seen)
    np.testing.assert_array_equal([policy.compute_actions(seen, row) for row in rewards], rewards)


class Wide(gym.Env):
    """Observes many numbers."""

    observation_space = gym.spaces.Box(0, 1, (10_000,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(10_000, np.float32), {}

    def step(self, action):
        return np.zeros(10_000, np.float32), 0.0, False, False, {}


def test_steps_that_no_view_looks_at_are_not_kept(built):
    policy = built(PGConfig().environment(f"{__name__}:Wide").policy(Rewarded)).acting_policy()
    seen = np.zeros(10_000, np.float32)
    tracemalloc.start()
    try:
        for _ in range(400):
            policy.compute_single_action(seen)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 150 * seen.nbytes


class Numbered(Rewarded):
    """Its action is the id of the episode."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        last = ViewRequirement("eps_id", shift=-1, used_for_compute_actions=True)
        self.view_requirements["last"] = last

    def compute_actions_from_input_dict(self, input_dict, *, explore=True, noise=None):
        return input_dict["last"].copy(), [], {}


def test_no_two_episodes_have_the_same_id(built):
    policy = built(PGConfig().environment("CartPole-v1").policy(Numbered)).acting_policy(num_envs=2)
    seen, ids = np.zeros((2, 4), np.float32), []
    for ended in (None, 1, None, 0):
        policy.reset(ended)
        policy.compute_actions(seen)
        ids += policy.compute_actions(seen).tolist()
    assert len({*ids}) == 2 + 1 + 2 + 1


def test_exploring_draws_from_the_seed_and_leaves_training_alone(built):
    algorithm, other = built("PPO", "Pendulum-v1"), built("PPO", "Pendulum-v1")
    observations = np.zeros((4, 3), np.float32)

    def actions(**options):
        policy = algorithm.acting_policy(num_envs=4, **options)
        return np.stack([policy.compute_actions(observations) for _ in range(100)])

    np.testing.assert_array_equal(actions(explore=True, seed=3), actions(explore=True, seed=3))
    assert (actions(explore=True, seed=3) != actions(explore=True, seed=4)).mean() > 0.8
    assert len(np.unique(actions(explore=True))) > 200  # the others are clipped
    assert len(np.unique(actions())) == 1
    assert algorithm.compute_single_action(observations[0]) == actions()[0, 0]
    assert train(algorithm, 2) == train(other, 2)


def test_single_actions_that_explore_are_drawn_anew_each_time(built):
    config = PGConfig().environment("CartPole-v1").debugging(seed=3)
    seen = np.zeros(4, np.float32)

    def actions(explore):
        algorithm = built(config)
        return [int(algorithm.compute_single_action(seen, explore=explore)) for _ in range(30)]

    assert {*actions(True)} == {0, 1}
    assert actions(True) == actions(True)


@pytest.mark.parametrize("explores", [True, False])
def test_settings_decide_whether_to_explore_where_the_caller_does_not(built, explores):
    algorithm = built(PGConfig().environment("CartPole-v1").env_runners(explore=explores))
    seen, policy = np.zeros((60, 4), np.float32), algorithm.env_runner_group.local_env_runner.policy
    for how in ({}, {"explore": None}):
        assert len({*policy.compute_actions(seen, **how)[0]}) == 1 + explores
    first, second = (
        algorithm.acting_policy(num_envs=60, explore=how, seed=5).compute_actions(seen)
        for how in (None, explores)
    )
    np.testing.assert_array_equal(first, second)


def test_noisy_weights_that_explore_are_drawn_again(built):
    config = DQNConfig().environment("CartPole-v1").exploration(epsilon=0)
    policy = built(config.training(noisy=True, sigma0=9.0)).acting_policy(explore=True)
    seen = np.ones(4, np.float32)
    assert {policy.compute_single_action(seen).item() for _ in range(2000)} == {0, 1}


class Lasting(Policy):
    """Acts by noise that lasts a whole episode."""

    noise_correlation = 1.0

    def draw_noise(self, rng, length, num_envs):
        return rng.uniform(-1, 1, (length, num_envs, 1))

    def compute_actions(self, obs_batch, state_batches=None, *, explore=True, noise=None):
        return noise, [], {}


def test_exploration_is_as_far_as_it_is_at_this_point_of_the_run(built):
    config = DQNConfig().environment("CartPole-v1").exploration(epsilon=1.0).debugging(seed=3)
    policy = built(config).acting_policy(explore=True)
    actions = [policy.compute_single_action(np.zeros(4, np.float32)) for _ in range(50)]
    assert {*actions} == {0, 1}


def test_noise_that_lasts_begins_anew_with_an_episode(built):
    config = PGConfig().environment("Pendulum-v1").policy(Lasting)
    policy = built(config).acting_policy(num_envs=2, explore=True)
    seen, actions = np.zeros((2, 3), np.float32), []
    for step in range(4):
        if step == 2:
            policy.reset(1)
        actions.append(policy.compute_actions(seen)[:, 0].tolist())
    (first, second), *_ = actions
    third = actions[2][1]
    assert actions == [[first, second], [first, second], [first, third], [first, third]]
    assert len({first, second, third}) == 3


def test_one_policy_of_several(built):
    algorithm = built("PPO", SEVERAL_AGENTS, model={"hidden": [8], **LSTM})
    train(algorithm, 1)
    observation = np.array([0.3, -1.0, 0.1, 0.5], np.float32)
    chosen = {name: algorithm.acting_policy(name) for name in ("agent_0", "agent_1")}
    actions = {
        name: [policy.compute_single_action(observation * k) for k in range(-9, 9)]
        for name, policy in chosen.items()
    }
    assert actions["agent_0"] != actions["agent_1"]
    with pytest.raises(KeyError, match="there is no policy 'agent_2'; policies: agent_0, agent_1"):
        algorithm.compute_single_action(observation, "agent_2")
    with pytest.raises(KeyError, match="several policies, name one of agent_0, agent_1"):
        algorithm.compute_single_action(observation)


def test_the_only_policy_needs_no_name(built):
    algorithm = built("PPO", SEVERAL_AGENTS, multi_agent={"policies": ["shared"]})
    observation = algorithm.acting_policy("shared").observation_space.sample()
    action = algorithm.compute_single_action(observation, "shared")
    assert algorithm.compute_single_action(observation) == action


def test_what_is_no_checkpoint_of_it_is_refused(tmp_path):
    algorithm = PPOConfig().environment("CartPole-v1").build()
    algorithm.save(tmp_path / "checkpoint")
    algorithm.stop()
    with pytest.raises(CheckpointError, match="a checkpoint of PPO, not of SAC"):
        SAC.from_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match="neither a checkpoint nor a run folder with one"):
        PPO.from_checkpoint(tmp_path)


def test_what_cannot_be_acted_on_is_named(built):
    policy = built(PGConfig().environment("CartPole-v1")).acting_policy()
    with pytest.raises(ValueError, match=r"shape \(3,\), but the space has \(4,\)"):
        policy.compute_single_action(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="2 observations, of 1 environments"):
        policy.compute_actions(np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match="3 rewards, of 1 environments"):
        policy.compute_actions(np.zeros((1, 4), np.float32), [0.0, 1.0, 2.0])


def test_an_observation_that_would_stop_training_is_not_acted_on(built):
    """Nor remembered: the next action is for an episode without it."""
    config = PPOConfig().environment("CartPole-v1").model(use_lstm=True, lstm_cell_size=4)
    policy, other = (built(config.copy().debugging(seed=1)).acting_policy() for _ in range(2))
    zeros, broken = np.zeros(4, np.float32), np.float32([0, np.nan, 0, 0])
    policy.compute_single_action(zeros)
    for act, given in ((policy.compute_single_action, broken), (policy.compute_actions, [broken])):
        with pytest.raises(ValueError, match=r"observation holds NaN at index \(1,\)"):
            act(given)
    with pytest.raises(ValueError, match="NaN"):
        policy.compute_actions(broken[None])
    other.compute_single_action(zeros)
    assert policy.compute_single_action(zeros) == other.compute_single_action(zeros)
    taxi = built(PGConfig().environment("Taxi-v4")).acting_policy()
    with pytest.raises(ValueError, match=r"500\)? is not in Discrete\(500\)"):
        taxi.compute_single_action({"observation": 500, "action_mask": np.ones(6, np.int8)})


def test_threads_that_share_a_policy_get_the_actions_for_their_own_observations(built):
    policy = built(PPOConfig().environment("Pendulum-v1")).acting_policy()
    observations = [policy.observation_space.sample() for _ in range(200)]
    alone = [policy.compute_single_action(each) for each in observations]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            together = list(threads.map(policy.compute_single_action, observations))
    finally:
        sys.setswitchinterval(interval)
    np.testing.assert_array_equal(together, alone)


def test_observations_may_be_listed(built):
    policy = built(PGConfig().environment("CartPole-v1")).acting_policy(num_envs=2)
    observations = np.float32([[0.1, 0, 0, 0], [0, 0, -0.1, 0]])
    actions = policy.compute_actions(observations)
    np.testing.assert_array_equal(policy.compute_actions(list(observations)), actions)
    np.testing.assert_array_equal(policy.compute_actions(observations.tolist()), actions)
    with pytest.raises(ValueError, match=r"shape \(3,\), but the space has \(4,\)"):
        policy.compute_actions([observations[0], np.zeros(3, np.float32)])
