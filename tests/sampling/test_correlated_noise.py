"""Noise that lasts: what it is made of, where it begins, how it is distributed."""

import math
from collections import defaultdict
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from counting_envs import AutonomousCounters

from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.data import columns as col
from rlrun.data.seeding import Role, agent_noise, episode_noise, fragment_noise
from rlrun.policies.policy import Policy
from rlrun.sampling.action_noise import ActionNoise
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.evaluation import run_episodes
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest

RHO = 0.9
SEED = 7
LENGTHS = [5, 1, 1, 8, 3]  # of fragments


class Pushes(Policy):
    """Acts by its noise alone, so that batches tell what it was."""

    noise_correlation = RHO

    def draw_noise(self, rng, length, num_envs):
        return rng.standard_normal((length, num_envs, 2), dtype=np.float32)

    def compute_actions(self, obs_batch, state_batches=None, *, explore=True, noise=None):
        return noise.copy(), [], {}


class IndependentPushes(Pushes):
    noise_correlation = 0.0


class HeldPushes(IndependentPushes):
    noise_steps = 3


class PushesOfEpisodes(IndependentPushes):
    noise_steps = None


class OverwritingPushes(Pushes):
    """Does its arithmetic where its noise stands."""

    def compute_actions(self, obs_batch, state_batches=None, *, explore=True, noise=None):
        noise *= 0.5
        return noise, [], {}


class Walk(gym.Env):
    """Pays where it has been pushed to; an episode has ``length`` steps, or 1 to 9 by its seed."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, length=None):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.length or int(self.np_random.integers(1, 10))
        self.place = 0.0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        self.place += float(action[0])
        return np.full(1, self.place, np.float32), self.place, self.left == 0, False, {}


def walkers(num_envs):
    """Whose sub-environments spend a step on their own reset."""
    return AutonomousCounters(num_envs, make=Walk)


def make_runner(policy=Pushes, *, num_envs=3, role=Role.TRAIN, env=None, **settings):
    spec = RunnerSpec(
        env or EnvSpec(use=f"{__name__}:Walk"),
        EnvRunnersConfig(num_envs_per_env_runner=num_envs, **settings),
        seed=SEED,
        policy_factory=lambda observations, actions, model: policy(observations, actions),
    )
    return EnvRunner(spec, role=role)


def process(independent, begins, rho=RHO, steps=1):
    """A slow transcription, of one sub-environment or agent; exact to the bit.

    Args:
        independent: ``[T, K]``.
        begins: whether an episode begins with a step, ``[T]``.
        steps: that are given the same noise; None for those of an episode.
    """
    rows, age = [], 0
    for z, first in zip(independent, begins, strict=True):
        age = 0 if first else age + 1
        if first or (not rho and steps is not None and age % steps == 0):
            rows.append(z)
        else:
            rows.append(RHO * rows[-1] + math.sqrt(1 - RHO**2) * z if rho else rows[-1])
    return np.stack(rows)


def drawn(fragment, length, num_envs):
    rng = fragment_noise(SEED, Role.TRAIN, 0, fragment)
    return rng.standard_normal((length, num_envs, 2), dtype=np.float32)


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        (Pushes, {}),
        (Pushes, {"horizon": 4, "soft_horizon": True}),
        (IndependentPushes, {}),
        (OverwritingPushes, {}),
        (HeldPushes, {}),
        (PushesOfEpisodes, {"horizon": 4, "soft_horizon": True}),
    ],
)
def test_sub_environments_act_by_the_process_over_fragments_and_anew_in_each_episode(
    policy, settings
):
    runner = make_runner(policy, **settings)
    parts = [runner.sample_fragment(SampleRequest(k, n)).batch for k, n in enumerate(LENGTHS)]
    independent = np.concatenate([drawn(k, n, 3) for k, n in enumerate(LENGTHS)])
    for env_index in range(3):
        mine = [part[col.ENV_ID] == env_index for part in parts]
        noise = np.concatenate([p[col.ACTIONS][m] for p, m in zip(parts, mine, strict=True)])
        begins = np.concatenate([p[col.T][m] for p, m in zip(parts, mine, strict=True)]) == 0
        assert 1 < begins.sum() < len(begins)
        held = policy.noise_correlation, policy.noise_steps
        expected = process(independent[:, env_index], begins, *held)
        if policy is OverwritingPushes:
            expected = 0.5 * expected
        np.testing.assert_array_equal(noise, expected)


def test_a_sub_environment_that_spends_a_step_on_its_reset_begins_anew_after_it():
    """Where steps that are not transitions go by, it is not known which rows it was given."""
    length, num_envs = 20, 3
    runner = make_runner(env=EnvSpec(use=f"{__name__}:walkers"))
    assert not runner.envs.every_step_counts
    independent, episodes = [], defaultdict(list)
    for fragment in range(3):
        batch = runner.sample_fragment(SampleRequest(fragment, length)).batch
        independent.append(drawn(fragment, 3 * length, num_envs))  # it grows, but not threefold
        for row in batch.rows():
            episodes[row[col.ENV_ID], row[col.EPS_ID]].append(row[col.ACTIONS])
    assert len(episodes) > 20
    for (env_index, _), noise in episodes.items():
        z = np.concatenate(independent)[:, env_index]
        assert (noise[0] == z).all(axis=1).any()
        for last, now in pairwise(noise):
            assert (now == RHO * last + math.sqrt(1 - RHO**2) * z).all(axis=1).any()


def test_it_is_standard_normal_and_correlates_by_powers_of_rho():
    num_envs, steps = 500, 400
    policy = Pushes(None, None)
    noise = ActionNoise(policy)
    noise.resize(num_envs)
    rows = []
    for fragment in range(4):
        rng = np.random.default_rng(fragment)
        noise.begin_fragment(rng, steps // 4, num_envs)
        rows += [noise.next() for _ in range(steps // 4)]
    x = np.stack(rows)[..., 0]
    assert x.dtype == np.float32
    assert x.mean() == pytest.approx(0, abs=0.03)
    for t in (0, 1, 10, steps - 1):  # stationary from the first step on
        assert x[t].var() == pytest.approx(1, abs=0.2)
    assert x.var() == pytest.approx(1, abs=0.03)
    for lag in (1, 2, 5):
        assert (x[lag:] * x[:-lag]).mean() == pytest.approx(RHO**lag, abs=0.03)


def test_evaluation_with_exploration_plays_each_episode_with_its_own():
    length, pushes = 300, defaultdict(list)  # longer than a block of evaluation's

    def record(step):
        for env_index, episode in enumerate(step.episodes):
            if episode is not None:
                pushes[episode].append(step.actions[env_index])

    env = EnvSpec(use=f"{__name__}:Walk", kwargs={"length": length})
    runner = make_runner(num_envs=2, role=Role.EVALUATION, env=env)
    run_episodes(runner, range(3), seed=5, explore=True, recorder=record)
    for episode in range(3):
        independent = episode_noise(5, episode).standard_normal((length, 2), dtype=np.float32)
        expected = process(independent, np.arange(length) == 0)
        np.testing.assert_array_equal(np.stack(pushes[episode]), expected)


@pytest.mark.parametrize("policy", [Pushes, HeldPushes, PushesOfEpisodes])
def test_each_agent_has_a_process_of_its_own_that_a_restored_slot_goes_on_with(policy):
    held = policy.noise_correlation, policy.noise_steps
    noise = ActionNoise(policy(None, None))
    noise.resize(4)
    slots, steps = np.array([0, 3]), 150
    noise.begin_episode(0, agent_noise(11, 0))
    noise.begin_episode(3, agent_noise(11, 1))
    rows = np.stack([noise.next(slots) for _ in range(70)])
    state = noise.get_state(np.array([3]))
    noise.resize(8)  # for agents that join
    rows = np.concatenate([rows, [noise.next(slots) for _ in range(70, steps)]])
    begins = np.arange(steps) == 0
    for k, agent in enumerate((0, 1)):
        independent = agent_noise(11, agent).standard_normal((192, 2), dtype=np.float32)
        np.testing.assert_array_equal(rows[:, k], process(independent[:steps], begins, *held))
    noise.begin_episode(0, agent_noise(12, 0))  # another episode
    np.testing.assert_array_equal(
        noise.next(np.array([0]))[0],
        agent_noise(12, 0).standard_normal((64, 2), dtype=np.float32)[0],
    )
    restored = ActionNoise(policy(None, None))
    restored.resize(2)
    restored.begin_episode(1, agent_noise(11, 1), taken=70)
    restored.set_state(state, np.array([1]))
    again = [restored.next(np.array([1]))[0] for _ in range(70, steps)]
    np.testing.assert_array_equal(again, rows[70:, 1])
