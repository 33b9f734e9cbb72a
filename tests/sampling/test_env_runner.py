"""What comes out of a runner, held against environments whose every number is known."""

import time
from dataclasses import replace
from functools import partial
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from counting_envs import CountingEnv, collect, counting_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun import Callbacks
from rlrun.config.problems import ConfigError
from rlrun.config.schema import ConnectorsConfig, EnvRunnersConfig, EnvSpec, ModelConfig, UseSpec
from rlrun.data import columns as col
from rlrun.data.seeding import Role
from rlrun.envs.errors import EnvError
from rlrun.policies.layers import QOptions
from rlrun.policies.numpy_policy import MLPPolicy, build_policy
from rlrun.policies.policy import Policy
from rlrun.policies.q_policy import build_q_policy
from rlrun.policies.sac_policy import build_sac_policy
from rlrun.policies.torch_policy import TorchPolicy
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import RunnerCallbacks, RunnerSpec, SampleRequest


@settings(max_examples=40)
@given(
    num_envs=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    truncates=st.booleans(),
)
def test_every_transition_is_what_the_environment_did(num_envs, lengths, truncates):
    runner = EnvRunner(counting_spec(num_envs, truncates=truncates, random_length=True))
    replies = collect(runner, lengths)
    finished = [episode for reply in replies for episode in reply.episodes]
    running: dict[int, tuple[int, int]] = {}  # sub-environment -> (episode id, next step)
    for reply, length in zip(replies, lengths, strict=True):
        batch = reply.batch
        batch.check_valid()
        assert len(batch) == reply.env_steps == num_envs * length
        for i, row in enumerate(batch.rows()):
            env_index = i // length  # each sub-environment's rows are contiguous
            assert row[col.ENV_ID] == env_index
            assert row[col.NEXT_OBS][0] == row[col.OBS][0]  # never another episode's
            assert row[col.OBS][1] == row[col.T]
            assert row[col.NEXT_OBS][1] == row[col.T] + 1 == row[col.REWARDS]
            ended = row[col.TERMINATEDS] or row[col.TRUNCATEDS]
            assert not (row[col.TERMINATEDS] if truncates else row[col.TRUNCATEDS])
            if env_index in running:
                assert (row[col.EPS_ID], row[col.T]) == running[env_index]
            else:
                assert row[col.T] == 0
            running[env_index] = (row[col.EPS_ID], row[col.T] + 1)
            if ended:
                del running[env_index]
    # Env steps are the finished episodes' plus the running ones'.
    steps = sum(episode.length for episode in finished) + sum(t for _, t in running.values())
    assert steps == num_envs * sum(lengths)
    for episode in finished:
        assert episode.episode_return == episode.length * (episode.length + 1) / 2


def test_first_observations_differ_between_runners_sub_environments_roles_and_seeds():
    """Those of the first episodes and of all later ones; the same runner has the same again."""
    settings = EnvRunnersConfig(num_envs_per_env_runner=3)

    def first_observations(seed, runner_index, role):
        spec = RunnerSpec(EnvSpec(use="CartPole-v1"), settings, seed=seed)
        runner = EnvRunner(spec, runner_index=runner_index, role=role)
        batch = runner.sample_fragment(SampleRequest(0, 60)).batch
        return [tuple(row.tolist()) for row in batch[col.OBS][batch[col.T] == 0]]

    seen, count = set(), 0
    for seed in (0, 1):
        for runner_index in (0, 1, 2):
            for role in Role:
                found = first_observations(seed, runner_index, role)
                assert len(found) > 6
                seen.update(found)
                count += len(found)
    assert len(seen) == count
    assert first_observations(1, 2, Role.TRAIN) == first_observations(1, 2, Role.TRAIN)


def test_equal_seeds_give_equal_batches_and_noise_is_keyed_by_fragment():
    spec = RunnerSpec(EnvSpec(use="CartPole-v1"), EnvRunnersConfig(num_envs_per_env_runner=2))
    weights = np.zeros(len(EnvRunner(spec).policy.get_weights()), np.float32)
    batches = [
        EnvRunner(spec).sample_fragment(SampleRequest(fragment, 30, 1), weights).batch
        for fragment in (0, 0, 1)
    ]
    for name in batches[0]:
        np.testing.assert_array_equal(batches[0][name], batches[1][name])
    assert (batches[0][col.ACTIONS] != batches[2][col.ACTIONS]).any()


@pytest.mark.parametrize(
    ("env", "settings", "converts"),
    [
        ("CartPole-v1", {}, False),
        ("Pendulum-v1", {}, True),
        ("CartPole-v1", {"module_to_env_connector": "custom_connectors:Sticky"}, True),
    ],
)
def test_actions_that_the_environment_takes_as_they_are_are_not_converted(env, settings, converts):
    runner = EnvRunner(RunnerSpec(EnvSpec(use=env), EnvRunnersConfig(**settings)))
    assert runner.actors["default_policy"].converts is converts


class ForgetfulEnv(CountingEnv):
    """Not a function of its seed: the observation holds a number that only grows."""

    resets = 0

    def reset(self, *, seed=None, options=None):
        ForgetfulEnv.resets += 1
        super().reset(seed=seed)
        self.tag = ForgetfulEnv.resets
        return np.array([self.tag, 0], np.float32), {}


def test_an_env_that_does_not_reproduce_is_named_and_starts_afresh(caplog):
    spec = counting_spec(1, use=f"{__name__}:ForgetfulEnv")
    runner = EnvRunner(spec)
    collect(runner, [2])
    restored = EnvRunner(spec)
    restored.set_state(runner.get_state())
    assert "ForgetfulEnv" in caplog.text
    batch = restored.sample_fragment(SampleRequest(1, 2)).batch
    assert batch[col.T].tolist() == [0, 1]


@pytest.mark.parametrize(("length", "expected"), [("auto", 200), (7, 7)])
def test_a_runner_by_itself_samples_the_length_of_its_settings(length, expected):
    spec = counting_spec(1, settings={"rollout_fragment_length": length})
    assert len(EnvRunner(spec).sample()) == expected


def test_returns_add_up_over_fragments_and_count_once():
    """Raw rewards; learning sees the clipped ones."""
    spec = counting_spec(2, length=5, more={"connectors": ConnectorsConfig(clip_rewards=2)})
    replies = collect(EnvRunner(spec), [2, 2, 2, 2, 2])
    assert replies[0].batch[col.REWARDS].tolist() == [1, 2, 1, 2]
    assert replies[1].batch[col.REWARDS].tolist() == [2, 2, 2, 2]
    ended = [
        [(e.env_index, e.episode_return, e.length) for e in reply.episodes] for reply in replies
    ]
    both = [(0, 15, 5), (1, 15, 5)]
    assert ended == [[], [], both, [], both]


@pytest.mark.parametrize(
    ("observation_space", "action_space"),
    [
        (gym.spaces.Discrete(5), gym.spaces.MultiDiscrete([2, 3])),
        (gym.spaces.MultiDiscrete([2, 3]), gym.spaces.MultiBinary(2)),
        (gym.spaces.MultiBinary(4), gym.spaces.Box(-2, 2, (2,), np.float32)),
        (
            gym.spaces.Dict({"a": gym.spaces.Discrete(3), "b": gym.spaces.Box(-1, 1, (2,))}),
            gym.spaces.Dict({"x": gym.spaces.Discrete(2), "y": gym.spaces.Box(-1, 1, (1,))}),
        ),
        (
            gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.MultiBinary(2))),
            gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.MultiDiscrete([2, 2]))),
        ),
    ],
)
def test_every_space_samples_and_the_env_gets_actions_of_its_space(observation_space, action_space):
    runner = EnvRunner(
        RunnerSpec(
            EnvSpec(
                use=f"{__name__}:SpaceEnv",
                kwargs={"observation_space": observation_space, "action_space": action_space},
            ),
            EnvRunnersConfig(num_envs_per_env_runner=2),
            model=ModelConfig(hidden=(4,)),
        )
    )
    batch = runner.sample_fragment(
        SampleRequest(0, 12, 1), np.zeros(len(runner.policy.get_weights()), np.float32)
    ).batch
    assert len(batch) == 24
    assert np.isfinite(batch[col.ACTION_LOGP]).all()
    assert batch[col.OBS].dtype == np.float32


class SpaceEnv(gym.Env):
    """Random observations of any space; complains about an action outside of its own."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == 5, False, {}


class Shown(Callbacks):
    environments: ClassVar[list] = []

    def on_environment_created(self, env_runner, env, env_context):
        Shown.environments.append((env_runner.runner_index, env_context.worker_index, env))


def test_a_runner_shows_its_environments_to_callbacks_once():
    Shown.environments.clear()
    shown = RunnerCallbacks(UseSpec(use=f"{__name__}:Shown"), frozenset({"on_environment_created"}))
    runner = EnvRunner(counting_spec(2, more={"callbacks": (shown,)}), runner_index=3)
    assert Shown.environments == [(3, 3, runner.envs)]


class HalfAnAction(Policy):
    def compute_actions(self, obs_batch, state_batches=None, *, explore=True, noise=None):
        return np.tile(np.float32([np.nan, 0.5]), (len(obs_batch), 1)), [], {}


def test_an_action_of_which_a_part_is_no_number_is_the_policys_fault():
    spaces = {
        "observation_space": gym.spaces.Discrete(2),
        "action_space": gym.spaces.Box(-1, 1, (2,)),
    }
    env = EnvSpec(use=f"{__name__}:SpaceEnv", kwargs=spaces)
    runner = EnvRunner(RunnerSpec(env, policy_factory=lambda o, a, _: HalfAnAction(o, a)))
    with pytest.raises(EnvError, match=r"the policy's action is \[nan, 0.5\]"):
        runner.sample()


@pytest.mark.parametrize(
    ("settings", "sends"),
    [
        ({}, False),
        ({"observation_filter": "MeanStdFilter"}, True),
        ({"module_to_env_connector": "custom_connectors:Identity"}, True),
    ],
)
def test_statistics_are_sent_where_connectors_may_have_some(settings, sends):
    (reply,) = collect(EnvRunner(counting_spec(1, settings=settings)), [4])
    assert [*reply.connector_deltas] == ["default_policy"] * sends


def test_the_record_of_an_endless_episode_is_bounded():
    more = {"max_replayed_env_steps": 25}
    runner = EnvRunner(counting_spec(num_envs=1, length=10**9, more=more))
    sizes = []
    for fragment in range(4):
        runner.sample_fragment(SampleRequest(fragment, 10))
        recorded = runner.get_state()["episodes"]["actions"]
        sizes.append(None if recorded[0] is None else len(recorded[0]))
    assert sizes == [10, 20, None, None]


@pytest.mark.parametrize("model", [{}, {"use_lstm": True}])
def test_without_exploration_actions_are_certain(model):
    settings = EnvRunnersConfig(num_envs_per_env_runner=2, explore=False)
    spec = RunnerSpec(EnvSpec(use="CartPole-v1"), settings, model=ModelConfig(**model))
    runner = EnvRunner(spec)
    batch = runner.sample_fragment(SampleRequest(0, 20)).batch
    assert not batch[col.ACTION_LOGP].any()
    best = batch[col.ACTION_DIST_INPUTS].argmax(axis=1)
    np.testing.assert_array_equal(batch[col.ACTIONS], best)
    assert runner.policy.explores is False


@pytest.mark.parametrize(
    "factory", [build_policy, partial(build_q_policy, options=QOptions()), build_sac_policy]
)
def test_policies_act_on_the_device_of_the_runner_as_in_numpy(factory):
    settings = EnvRunnersConfig(rollout_fragment_length=20, num_gpus_per_env_runner=0.25)
    spec = RunnerSpec(EnvSpec(use="CartPole-v1"), settings, policy_factory=factory)
    assert spec.of_actors().device == "cuda", "which the process that trains does not need"
    runners = [EnvRunner(replace(spec, device=device)) for device in (None, "cpu")]
    assert [type(runner.policy) for runner in runners] == [MLPPolicy, TorchPolicy]
    size = len(runners[0].policy.get_weights())
    weights = np.random.default_rng(0).normal(size=size).astype(np.float32)
    for runner in runners:
        runner.set_weights({"default_policy": weights})
    first, second = (runner.sample() for runner in runners)
    np.testing.assert_array_equal(first[col.ACTIONS], second[col.ACTIONS])
    np.testing.assert_allclose(*(batch[col.ACTION_DIST_INPUTS] for batch in (first, second)), 1e-4)


def test_a_runner_by_itself_samples_one_fragment_after_another():
    spec = RunnerSpec(EnvSpec(use="CartPole-v1"), EnvRunnersConfig(rollout_fragment_length=20))
    alone, asked = EnvRunner(spec), EnvRunner(spec)
    asked.set_weights(alone.get_weights())
    for fragment in range(3):
        batch = asked.sample_fragment(SampleRequest(fragment, 20)).batch
        for name, rows in alone.sample().items():
            np.testing.assert_array_equal(rows, batch[name])


class Constant(Policy):
    """Its weights, a dict, say which action it takes."""

    def compute_actions(self, obs_batch, state_batches=None, *, explore=True, noise=None):
        return np.full(len(obs_batch), self.weights["action"]), [], {}

    def set_weights(self, weights):
        self.weights = weights


def test_weights_are_the_only_policys_own_or_by_policy_id():
    spec = RunnerSpec(EnvSpec(use="CartPole-v1"), policy_factory=lambda o, a, _: Constant(o, a))
    runner = EnvRunner(spec)
    for version, action in ((1, 1), (2, 0)):
        own = {"action": action}
        weights = own if version == 1 else {"default_policy": own}
        batch = runner.sample_fragment(SampleRequest(version, 4, version), weights).batch
        assert set(batch[col.ACTIONS]) == {action}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_runner_with_a_gpu_that_torch_does_not_see_says_which_setting_it_is():
    spec = RunnerSpec(EnvSpec(use="CartPole-v1"), device="cuda")
    with pytest.raises(ConfigError, match="num_gpus_per_env_runner: torch sees no CUDA device"):
        EnvRunner(spec)


def test_the_parts_of_a_fragments_time_are_no_longer_than_the_fragment():
    runner = EnvRunner(counting_spec(2))
    begin = time.perf_counter()
    (reply,) = collect(runner, [50])
    passed = time.perf_counter() - begin
    assert set(reply.timings_s) == {"policy", "env", "other"}
    assert all(part > 0.0 for part in reply.timings_s.values())
    assert sum(reply.timings_s.values()) <= passed
