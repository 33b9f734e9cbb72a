"""Remote and local runners sample the same data; user code reaches the actors."""

from __future__ import annotations

import os
import random
import signal
import threading
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import ray
from fake_runners import kill

from rlrun import Policy, PPOConfig, register_env
from rlrun.actors.env_runner_group import EnvRunnerGroup, synchronous_parallel_sample
from rlrun.config import registry
from rlrun.config.problems import InputError
from rlrun.config.schema import EnvRunnersConfig, EnvSpec, FaultToleranceConfig
from rlrun.data.compression import is_packed
from rlrun.data.sample_batch import DEFAULT_POLICY_ID, SampleBatch
from rlrun.envs.errors import EnvError
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import RunnerSpec, lone_request
from rlrun.sampling.simple_list_collector import SimpleListCollector


def spec_of(env: EnvSpec, **settings: Any) -> RunnerSpec:
    defaults: dict[str, Any] = {
        "num_envs_per_env_runner": 2,
        "num_cpus_per_env_runner": 0.1,
        "rollout_fragment_length": 5,
    }
    return RunnerSpec(env, EnvRunnersConfig(**defaults | settings), seed=3)


def group_of(spec: RunnerSpec, number: int) -> EnvRunnerGroup:
    return EnvRunnerGroup(spec, num_env_runners=number, fault_tolerance=FaultToleranceConfig())


def test_remote_runners_sample_what_local_ones_do_without_torch(local_ray: None) -> None:
    spec = spec_of(EnvSpec(use="CartPole-v1"))
    alone = [EnvRunner(spec, runner_index=index, num_env_runners=2) for index in (1, 2)]
    weights = alone[0].policy.get_weights()
    for runner in alone:
        runner.policy.set_weights(weights)
    group = group_of(spec, 2)
    try:
        for _ in range(3):
            replies = group.sample(weights=weights)
            for reply, runner in zip(replies, alone, strict=True):
                expected = runner.sample()
                assert set(reply.batch) == set(expected)
                for name in expected:
                    np.testing.assert_array_equal(reply.batch[name], expected[name])

        def has_torch(_: Any) -> bool:
            import sys

            return "torch" in sys.modules

        assert group.foreach_env_runner(has_torch) == [False, False]
        ids = group.foreach_env(lambda env: env.spec.id)
        assert ids == [["CartPole-v1"] * 2] * 2, "there are none in this process"
    finally:
        group.stop()


class Draws(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole, rewarded with what global generators draw, but not in the first step."""

    _steps = 0

    def step(self, action: Any) -> Any:
        self._steps += 1
        drawn = random.random() + np.random.rand() if self._steps > 1 else 0.0
        observation, _, *rest = self.env.step(action)
        return observation, drawn, *rest


@pytest.mark.faults
def test_global_generators_of_remote_runners_are_seeded_also_in_one_that_replaces_another(
    local_ray: None,
) -> None:
    spec = spec_of(EnvSpec(use=f"{__name__}:drawing"))
    rewards = []
    for kills in (False, False, True):
        group = group_of(spec, 2)
        sampled = []
        for fragment in range(3):
            if kills and fragment == 2:
                os.kill(group.foreach_env_runner(lambda _: os.getpid())[1], signal.SIGKILL)
            sampled += [reply.batch["rewards"] for reply in group.sample()]
        rewards.append(np.concatenate(sampled))
        group.stop()
    assert len(set(rewards[0])) > 20
    np.testing.assert_array_equal(rewards[0], rewards[1])
    np.testing.assert_array_equal(rewards[0], rewards[2])


class Weighed(Policy):
    """Its one weight is in each row of its batches."""

    weight = 1.0

    def compute_actions(self, obs_batch: Any, *_: Any, **options: Any) -> Any:
        return [0 for _ in obs_batch], [], {"w": np.full(len(obs_batch), self.weight)}

    def learn_on_batch(self, batch: Any) -> Any:
        raise NotImplementedError

    def get_weights(self) -> Any:
        return {"w": self.weight}

    def set_weights(self, weights: Any) -> None:
        self.weight = weights["w"]


def acted_with(group: EnvRunnerGroup, weights: Any = None) -> list[float]:
    replies = group.sample(weights=weights)
    return [weight for reply in replies for weight in np.unique(reply.batch["w"])]


@pytest.mark.parametrize("number", [0, 1])
def test_each_weights_of_a_loop_by_hand_are_acted_with(shared_actors: None, number: int) -> None:
    spec = replace(spec_of(EnvSpec(use="CartPole-v1")), policy_factory=Weighed)
    group = group_of(spec, number)
    for weights in ({"w": 2.0}, {DEFAULT_POLICY_ID: {"w": 3.0}}, {"w": 4.0}):
        assert acted_with(group, weights) == [weights.get("w", 3.0)]
    assert acted_with(group) == [4.0]
    group.stop()


@pytest.mark.faults
def test_after_a_round_that_was_given_up_runners_act_with_the_weights_that_were_set_last(
    local_ray: None,
) -> None:
    group = group_of(replace(spec_of(EnvSpec(use="CartPole-v1")), policy_factory=Weighed), 2)
    group.sync_weights({"w": 7.0})
    group.begin(lone_request(group.spec.settings, 0, 0))
    assert acted_with(group) == [7.0, 7.0]
    group.stop()


@pytest.mark.faults
def test_runners_that_are_started_later_act_with_the_weights_that_were_set_last(
    local_ray: None,
) -> None:
    group = group_of(replace(spec_of(EnvSpec(use="CartPole-v1")), policy_factory=Weighed), 2)
    weights = {"w": np.array(7.0)}
    group.sync_weights({DEFAULT_POLICY_ID: weights})
    weights["w"][...] = 8.0
    kill(group, 1)
    assert acted_with(group) == [7.0, 7.0]
    group.resize(3)
    assert acted_with(group) == [7.0] * 3
    kill(group, 2)
    group.sync_weights({DEFAULT_POLICY_ID: weights})
    assert acted_with(group) == [8.0] * 3
    group.stop()


@pytest.mark.faults
def test_a_runner_that_a_call_of_all_finds_dead_is_restarted_and_called(local_ray: None) -> None:
    observations = []
    for kills in (False, True):
        group = group_of(spec_of(EnvSpec(use="CartPole-v1")), 2)
        group.sample()
        if kills:
            os.kill(group.foreach_env_runner(lambda _: os.getpid())[1], signal.SIGKILL)
        assert group.foreach_env_runner(lambda runner: runner.runner_index) == [1, 2]
        observations.append([reply.batch["obs"].tolist() for reply in group.sample()])
        assert group.num_restarts == kills
        group.stop()
    assert observations[0] == observations[1]


def drawing(**kwargs: Any) -> Any:
    return Draws(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize("how", ["by name", "as it is"])
def test_a_runner_as_an_actor_has_the_environments_of_this_process(
    how: str, shared_actors: None
) -> None:
    def make(config: Any) -> Any:
        return gymnasium.make("CartPole-v1", **config)

    env: Any = {"by name": "made-here", "as it is": make}
    assert RunnerSpec(env["by name"]) == RunnerSpec(EnvSpec(use="made-here"))
    register_env("made-here", make)
    try:
        actor = EnvRunner.as_remote(num_cpus=0.1).remote(RunnerSpec(env[how]))
        assert len(ray.get(actor.sample.remote())) == 200
        ray.kill(actor)
    finally:
        del registry.ENVS["made-here"]


def test_a_runner_becomes_an_actor_without_options_of_rays_too() -> None:
    assert hasattr(EnvRunner.as_remote(), "remote")


def test_code_that_is_registered_here_reaches_the_actors(shared_actors: None) -> None:
    registry.ENVS["registered-here"] = lambda config: gymnasium.make("CartPole-v1", **config)
    try:
        group = group_of(spec_of(EnvSpec(use="registered-here", max_episode_steps=4)), 1)
    finally:
        del registry.ENVS["registered-here"]
    assert group.sample()[0].env_steps == 10
    group.stop()


def test_an_error_of_the_users_env_arrives_with_its_traceback(shared_actors: None) -> None:
    group = group_of(spec_of(EnvSpec(use="fake_runners:FailingCartPole")), 1)
    with pytest.raises(EnvError) as caught:
        group.sample()
    text = str(caught.value)
    assert text.startswith("Traceback")
    assert "fake_runners.py" in text
    assert "ValueError: it fell" in text
    assert "runner 1" in text
    group.stop()


def test_rounds_are_whole_and_add_up_to_the_limit() -> None:
    group = group_of(spec_of(EnvSpec(use="CartPole-v1")), 0)
    batch = synchronous_parallel_sample(group)
    assert isinstance(batch, SampleBatch)
    assert batch.env_steps() == 10
    batch = synchronous_parallel_sample(group, max_env_steps=11)
    assert isinstance(batch, SampleBatch)
    assert batch.env_steps() == 20
    batches = synchronous_parallel_sample(group, max_agent_steps=20, concat=False)
    assert isinstance(batches, list)
    assert [part.env_steps() for part in batches] == [10, 10]
    with pytest.raises(ValueError, match="not both"):
        synchronous_parallel_sample(group, max_env_steps=1, max_agent_steps=1)
    group.stop()


def test_code_without_an_import_path_is_sent_along_or_refused(shared_actors: None) -> None:
    length = 7

    class OwnCollector(SimpleListCollector):
        pass

    config = PPOConfig().environment(lambda own: gymnasium.make("CartPole-v1"))
    config.env_runners(num_env_runners=1, num_cpus_per_env_runner=0.1)
    config.env_runners(sample_collector=OwnCollector, rollout_fragment_length=length)
    config.training(train_batch_size=length, minibatch_size=length)
    algorithm = config.build()
    try:
        assert algorithm.train()["env_steps"] == length
        kinds = algorithm.env_runner_group.foreach_env_runner(
            lambda runner: type(runner.actors["default_policy"].collector).__name__
        )
        assert kinds == ["OwnCollector"]
    finally:
        algorithm.stop()
    lock = threading.Lock()
    locked = config.copy().environment(lambda own: lock and gymnasium.make("CartPole-v1"))
    with pytest.raises(
        InputError, match=r"__main__:lambda\w* cannot be sent .*num_env_runners to 0"
    ):
        locked.build()


@pytest.mark.faults
def test_a_failing_constructor_shows_at_once_or_with_the_first_round(local_ray: None) -> None:
    env = EnvSpec(use="counting_envs:FailsInConstructor")
    with pytest.raises(EnvError, match="no env"):
        group_of(spec_of(env), 1)
    group = group_of(spec_of(env, validate_env_runners_after_construction=False), 1)
    try:
        with pytest.raises(EnvError, match="no env"):
            group.sample()
    finally:
        group.stop()


def test_an_environment_of_the_training_process_does_not_sample(shared_actors: None) -> None:
    env = EnvSpec(use="CartPole-v1")
    group = group_of(spec_of(env, create_env_on_local_worker=True), 1)
    try:
        assert [reply.runner_index for reply in group.sample()] == [1]
        built = group.foreach_env(lambda env: env.spec.id)
        assert built == [["CartPole-v1"] * 2] * 2
    finally:
        group.stop()


def test_compressed_observations_are_what_they_were() -> None:
    found = []
    for compressed in (False, True):
        spec = spec_of(EnvSpec(use="CartPole-v1"), compress_observations=compressed)
        batch = EnvRunner(spec, runner_index=1).sample()
        assert is_packed(batch["obs"]) is compressed
        found.append(batch.decompress_if_needed()["actions"].tolist())
        found.append(batch["obs"].tolist())
    assert found[:2] == found[2:]
    assert not is_packed(EnvRunner(spec).sample()["obs"])  # here it does not travel


def test_runners_explore_unless_they_are_told_not_to() -> None:
    for explore in (True, False):
        spec = spec_of(EnvSpec(use="CartPole-v1"), explore=explore, rollout_fragment_length=50)
        runner = EnvRunner(spec)
        batch = runner.sample()
        best = runner.policy.compute_actions(batch["obs"], explore=False)[0]
        assert np.array_equal(batch["actions"], best) is not explore
