"""Policies that are added and removed during a run, and are there after a resume."""

import numpy as np
import pytest
import torch
from tiny import (
    BATCH,
    CONFIGS,
    FILTERED,
    LOCKSTEP,
    SEVERAL_AGENTS,
    assert_equal_weights,
    flat,
    train,
)

from rlrun import Connector
from rlrun.algorithms.a3c import sample_gradients
from rlrun.algorithms.callbacks import Callbacks
from rlrun.checkpoint.checkpoint import CheckpointError
from rlrun.sampling.env_runner import EnvRunner


def older_or_main(agent, episode):
    """Any policy for agent 1, the first for agent 0."""
    if agent == "agent_0":
        return episode.policies[0]
    return episode.policies[int(episode.rng.integers(len(episode.policies)))]


def any_policy(agent, episode):
    """One of all policies."""
    return episode.policies[int(episode.rng.integers(len(episode.policies)))]


def test_an_added_policy_leaves_agents_with_the_only_one_that_was_named(several, tmp_path):
    algorithm = several("PPO", multi_agent={"policies": ["main"]})
    algorithm.add_policy("older", like="main")
    train(algorithm, 1)
    algorithm.save(tmp_path / "checkpoint")
    resumed = several("PPO", multi_agent={"policies": ["main"]})
    resumed.restore(tmp_path / "checkpoint")
    assert train(algorithm, 1) == train(resumed, 1)
    evaluated = algorithm.evaluate()  # by a runner that is made once the policy is there
    assert evaluated["policy_return_mean"]["main"] is not None
    assert evaluated["policy_return_mean"]["older"] is None


def test_a_policy_of_the_file_that_a_checkpoint_lacks_is_named(several, tmp_path):
    several("PPO", multi_agent={"policies": ["main"]}).save(tmp_path / "checkpoint")
    two = several("PPO", multi_agent={"policies": ["main", "rival"], "agents": {"*": "main"}})
    with pytest.raises(CheckpointError, match="it has no policy 'rival'; it has main"):
        two.restore(tmp_path / "checkpoint")


def test_a_request_is_repeated_with_those_of_its_policies_that_are_left(several):
    mapping = {"policies": ["main"], "agents": "test_added_policies:older_or_main"}
    algorithm = several("PPO", multi_agent=mapping, **FILTERED)
    algorithm.add_policy("older", like="main")
    request = algorithm.next_request(5)
    assert set(request.policies) == {"main", "older"}
    algorithm.remove_policy("older")
    algorithm.add_policy("older", like="main")  # another
    algorithm.add_policy("newer", like="main")
    again = algorithm.repeated_request(request.get_state(), 7)
    assert (again.length, set(again.policies)) == (7, {"main"})
    for name in ("fragment", "weights_version", "connector_state", "exploration", "leave_out"):
        assert getattr(again, name) == getattr(request, name)
    following = algorithm.next_request()
    assert following.fragment == request.fragment + 1
    assert set(following.connector_state) == set(following.policies)
    assert set(following.policies) == {"main", "older", "newer"}


@pytest.mark.parametrize("name", ["PPO", "IMPALA", "APPO", "A3C", "DQN", "SAC"])
def test_policies_come_and_go_and_are_there_after_a_resume(several, name, tmp_path):
    def make():
        mapping = {"policies": ["main"], "agents": "test_added_policies:older_or_main"}
        return several(name, multi_agent=mapping, **FILTERED)

    algorithm = make()
    train(algorithm, 1)
    algorithm.add_policy("older", like="main")
    assert [*filter(algorithm.policies.is_policy_to_train, ("main", "older"))] == ["main"]
    frozen = {k: v for k, v in algorithm.get_weights().items() if k.startswith("older/")}
    rows = train(algorithm, 5)
    assert rows[-1]["env_runners/policy_return_mean/older"] is not None
    for key, value in frozen.items():
        np.testing.assert_array_equal(value, algorithm.get_weights()[key])
    algorithm.save(tmp_path / "checkpoint")
    resumed = make()
    resumed.restore(tmp_path / "checkpoint")
    assert list(resumed.policies) == ["main", "older"]
    assert train(resumed, 2) == train(algorithm, 2)
    assert_equal_weights(algorithm, resumed)
    algorithm.add_policy("newer", like="main")
    algorithm.restore(tmp_path / "checkpoint")
    assert list(algorithm.policies) == ["main", "older"]
    algorithm.remove_policy("older")
    assert "older" not in algorithm.get_state()["policies"]["columns_left_out"]
    train(algorithm, 1)
    assert set(algorithm.env_runner_group.local_env_runner.actors) == {"main"}
    with pytest.raises(ValueError, match="one of the experiment's own"):
        algorithm.remove_policy("main")
    with pytest.raises(ValueError, match="there is a policy 'main' already"):
        algorithm.add_policy("main", like="main")
    with pytest.raises(ValueError, match="there is no policy 'older'; policies: main"):
        algorithm.add_policy("newer", like="older")
    for wrong in ("", "a/b"):
        with pytest.raises(ValueError, match="not empty and has no slash"):
            algorithm.add_policy(wrong, like="main")


class Blurs(Connector):
    """Adds random numbers of its own generator."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, observations, history):
        return observations + self.rng.normal(size=observations.shape).astype(np.float32)

    def get_state(self):
        return {"rng": self.rng.bit_generator.state}

    def set_state(self, state):
        self.rng.bit_generator.state = state["rng"]


@pytest.mark.parametrize("iterations", [0, 1])
@pytest.mark.parametrize("name", ["PPO, LSTM", "A3C"])
def test_restored_policies_that_had_not_acted_keep_no_steps_of_later(
    several, name, iterations, tmp_path
):
    """Neither at the start, nor one that was added after the last iteration."""
    mapping = {"policies": ["main"], "agents": "test_added_policies:any_policy"}
    blurred = {"env_to_module_connector": "test_added_policies:Blurs"}
    whole = {"batch_mode": "complete_episodes"} if name == "A3C" else {}
    algorithm = several(name, multi_agent=mapping, env_runners={**blurred, **whole})
    train(algorithm, iterations)
    algorithm.add_policy("older", like="main", train=True)
    algorithm.save(tmp_path / "checkpoint")
    rows = train(algorithm, 3)
    algorithm.restore(tmp_path / "checkpoint")
    assert train(algorithm, 3) == rows


@pytest.mark.parametrize("name", ["PPO", "A3C", "IMPALA", "DQN", "SAC"])
def test_ids_of_removed_policies_may_be_taken_again(several, name, tmp_path):
    """By others, and before runners have heard of the removal; a restore brings back the first."""

    def make():
        policies = {"main": {}, "small": {"model": {"hidden": [5]}}}
        mapping = {"policies": policies, "agents": "test_added_policies:any_policy"}
        return several(name, multi_agent=mapping, **FILTERED)

    def take_again(algorithm):
        algorithm.remove_policy("older")
        algorithm.add_policy("older", like="small", train=True)

    algorithm, resumed = make(), make()
    for policy_id in ("older", "oldest"):
        algorithm.add_policy(policy_id, like="main")
    train(algorithm, 2)
    algorithm.save(tmp_path / "first")
    rows = train(algorithm, 3)
    take_again(algorithm)
    train(algorithm, 1)
    algorithm.restore(tmp_path / "first")
    assert list(algorithm.policies) == ["main", "small", "older", "oldest"]
    assert train(algorithm, 3) == rows
    take_again(algorithm)
    algorithm.save(tmp_path / "again")
    resumed.restore(tmp_path / "again")
    assert train(resumed, 3) == train(algorithm, 3)
    assert_equal_weights(resumed, algorithm)


@pytest.mark.parametrize("name", ["A3C", "IMPALA", "PPO"])
def test_another_policy_of_its_id_learns_nothing_from_what_a_removed_one_did(
    several, name, monkeypatch
):
    """In a fragment that was under way when the policy was removed."""
    policies = {"main": {}, "small": {"model": {"hidden": [5]}}}
    mapping = {"policies": policies, "agents": "test_added_policies:any_policy"}
    algorithm = several(name, multi_agent=mapping, **FILTERED)
    algorithm.add_policy("older", like="main", train=True)
    runner, weights = algorithm.env_runner_group.local_env_runner, algorithm.policies.acting_weights
    sample = sample_gradients if name == "A3C" else EnvRunner.sample_fragment
    late = sample(runner, algorithm.next_request(BATCH), weights)
    rows = late.sampled if name == "A3C" else late
    assert rows.policy_numbers == {"main": 0, "small": 0, "older": 1}
    assert rows.connector_deltas["older"]
    algorithm.remove_policy("older")
    algorithm.add_policy("older", like="small", train=True)
    before = algorithm.get_weights(), str(algorithm.policies.connectors["older"].get_state())
    if name == "PPO":
        monkeypatch.setattr(algorithm.env_runner_group, "sample", lambda *_: [late])
    else:
        stream = algorithm.stream if name == "A3C" else algorithm.batches
        monkeypatch.setattr(stream.sampler, "take", lambda: late)
    result = algorithm.train()
    assert result["learners"]["older"]["num_agent_steps_trained"] == 0
    after = algorithm.get_weights()
    changed = {key for key, value in after.items() if (value != before[0][key]).any()}
    assert {key.partition("/")[0] for key in changed} == {"main", "small"}
    assert str(algorithm.policies.connectors["older"].get_state()) == before[1]


def test_an_added_policy_begins_with_the_filter_of_the_one_that_it_is_like(several):
    algorithm = several("PPO", multi_agent={"policies": ["main"]}, **FILTERED)
    at_first = str(algorithm.policies.connectors.get_state()["main"])
    train(algorithm, 1)
    algorithm.add_policy("older", like="main")
    states = algorithm.policies.connectors.get_state()
    assert str(states["older"]) == str(states["main"]) != at_first


def test_a_policy_added_like_a_custom_one_begins_as_it_is_then(several):
    policies = {"agent_0": {}, "agent_1": {"use": "test_multi_agent:Adder", "start": 2.0}}
    algorithm = several("PPO", multi_agent={"policies": policies})
    train(algorithm, 1)
    algorithm.add_policy("older", like="agent_1")
    custom = algorithm.policies.custom
    assert custom["older"].w == custom["agent_1"].w > 2.0


def test_making_a_policy_does_not_change_what_is_drawn_next(several, tmp_path):
    """The runners make theirs in the middle of an iteration, or with a restore before it."""

    def make():
        mapping = {"policies": ["main"], "agents": "test_added_policies:any_policy"}
        return several("PPO", multi_agent=mapping, model={"use": "tiny:DropsOut"})

    algorithm, resumed = make(), make()
    algorithm.add_policy("older", like="main")
    algorithm.save(tmp_path / "checkpoint")
    resumed.restore(tmp_path / "checkpoint")
    assert train(algorithm, 1) == train(resumed, 1)
    drawn = torch.get_rng_state()
    algorithm.evaluate()
    algorithm.acting_policy("older")
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_policy_that_is_replaced_by_one_like_it_drops_its_episodes(several):
    """Or the rows of an episode would be of both."""
    algorithm = several("PPO", multi_agent={"policies": ["main"]})
    algorithm.add_policy("older", like="main")
    train(algorithm, 1)
    runner = algorithm.env_runner_group.local_env_runner
    runner.set_policies(dict(algorithm.policies))
    kept = runner.actors["older"]
    algorithm.remove_policy("older")
    algorithm.add_policy("older", like="main")
    runner.set_policies(dict(algorithm.policies))
    assert runner.actors["older"] is not kept


class AtEpisodes(Callbacks):
    """Adds a policy at the end of an episode, and removes it at the end of a later one."""

    def __init__(self):
        self.calls = self.removed = 0

    def on_episode_end(self, algorithm, episode):
        self.calls += 1
        if self.calls == 2:
            algorithm.add_policy("older", like="main", train=True)
        if self.calls == 6:
            self.remove(algorithm)

    def remove(self, algorithm):
        algorithm.remove_policy("older")
        self.removed += 1

    def on_train_result(self, algorithm, result):
        result["removed"] = self.removed


class AtBatches(AtEpisodes):
    """The same as soon as there is a train batch, until there is one of the policy itself."""

    def on_episode_end(self, algorithm, episode):
        pass

    def on_learn_on_batch(self, algorithm, policy_id, batch):
        if "older" not in algorithm.policies:
            algorithm.add_policy("older", like="main", train=True)
        if policy_id == "older":
            self.remove(algorithm)


@pytest.mark.parametrize("kind", [AtEpisodes, AtBatches])
@pytest.mark.parametrize("name", ["PPO", "IMPALA", "APPO", "A3C", "DQN", "SAC", LOCKSTEP])
def test_callbacks_may_add_and_remove_policies_at_any_point_of_an_iteration(built, name, kind):
    if name == "A3C" and kind is AtBatches:
        pytest.skip("its train batches are seen by no callback")
    mapping = {"policies": ["main"], "agents": f"{__name__}:older_or_main"}
    config = CONFIGS[name]().environment(SEVERAL_AGENTS).multi_agent(**mapping).callbacks(kind)
    algorithm = built(config.debugging(seed=5))
    assert any(algorithm.train()["removed"] for _ in range(16))
    algorithm.train()


@pytest.mark.parametrize("fresh", [False, True])
def test_agents_that_join_late_get_no_policy_that_was_removed_meanwhile(built, tmp_path, fresh):
    """Also after a resume, where agents have joined before the removal and join after it."""

    def make():
        mapping = {"policies": ["main", "other"], "agents": f"{__name__}:any_policy"}
        config = CONFIGS["PPO"]().environment("TakeTurns", num_players=9, goal=40)
        config = config.env_runners(num_envs_per_env_runner=5).training(train_batch_size=60)
        return built(config.multi_agent(**mapping).debugging(seed=5))

    algorithm, resumed = make(), make()
    for i in range(12):
        algorithm.add_policy(f"older_{i}", like="main")
    for i in range(12):
        train(algorithm, 1)
        algorithm.remove_policy(f"older_{i}")
        algorithm.save(tmp_path / str(i))
        resumed = make() if fresh else resumed
        resumed.restore(tmp_path / str(i))
        assert train(resumed, 1) == train(algorithm, 1)


@pytest.mark.parametrize("name", ["DQN", "SAC", LOCKSTEP])
def test_nothing_is_kept_of_what_a_policy_replayed_that_was_removed(several, name):
    mapping = {"policies": ["main"], "agents": "test_added_policies:older_or_main"}
    algorithm = several(name, multi_agent=mapping)
    algorithm.add_policy("older", like="main", train=True)

    def policies_kept():
        train(algorithm, 2)
        keys = [key.split("/") for key, _ in flat(algorithm.get_state()["algorithm"])]
        return {"main", "older"} & {part for key in keys for part in key}

    assert policies_kept() == {"main", "older"}
    algorithm.remove_policy("older")
    assert policies_kept() == {"main"}


def test_a_policy_that_is_added_to_sac_has_the_critics_and_the_temperature_of_the_other(
    several, tmp_path
):
    algorithm = several("SAC")
    train(algorithm, 3)
    algorithm.add_policy("new", like="agent_0", train=True)
    weights = algorithm.get_weights()
    names = [name.removeprefix("new/") for name in weights if name.startswith("new/")]
    assert any(name.startswith("critics.") for name in names)
    for name in names:
        np.testing.assert_array_equal(weights[f"new/{name}"], weights[f"agent_0/{name}"])
    kept = algorithm.get_state()["algorithm"]["replay"]["updaters"]
    assert kept["new"]["temperature"]["log_alpha"] == kept["agent_0"]["temperature"]["log_alpha"]
    for policy_id, like in (("frozen", "agent_0"), ("thawed", "frozen")):
        algorithm.add_policy(policy_id, like=like, train=policy_id == "thawed")
    kept = algorithm.get_state()["algorithm"]["replay"]["updaters"]
    assert kept.keys() == {"agent_0", "agent_1", "new"}  # critics of those that learn
    algorithm.save(tmp_path / "saved")
    other = several("SAC")
    other.restore(tmp_path / "saved")
    assert_equal_weights(other, algorithm)
    assert train(other, 1) == train(algorithm, 1)
