"""Several policies: which learn and how, and how they come and go."""

from types import SimpleNamespace
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from tiny import (
    BATCH,
    CONFIGS,
    EACH,
    FILTERED,
    LOCKSTEP,
    REPLAY,
    SEVERAL_AGENTS,
    assert_equal_weights,
    flat,
    train,
)

from rlrun import Connector
from rlrun.algorithms.a3c import A3CConfig, sample_gradients
from rlrun.algorithms.callbacks import Callbacks
from rlrun.algorithms.impala import IMPALAConfig
from rlrun.algorithms.pg import PGConfig
from rlrun.algorithms.ppo import PPOConfig
from rlrun.algorithms.runners import find_spaces
from rlrun.algorithms.sac import SACConfig
from rlrun.config.policies import PolicySettings
from rlrun.config.problems import ConfigError
from rlrun.config.schema import EnvSpec, ModelConfig, TrainingConfig
from rlrun.data.seeding import learner_rng
from rlrun.envs.errors import EnvError
from rlrun.envs.multi_agent_env import MultiAgentEnv
from rlrun.envs.multi_agent_examples import RockPaperScissors
from rlrun.learning import learner_group
from rlrun.learning.learner import Learner
from rlrun.policies.policy import Policy
from rlrun.sampling.runner_messages import MultiAgentSpec, RunnerSpec


class Adder(Policy):
    """From scratch: its one weight counts the rows that it has learned from."""

    def __init__(self, observation_space, action_space, config):
        super().__init__(observation_space, action_space, config)
        self.w = float(self.config.get("start", 0.0))

    def compute_actions(self, obs_batch, state_batches=None, *, explore=True, noise=None):
        return np.zeros(len(obs_batch), np.int64), [], {"w": np.full(len(obs_batch), self.w)}

    def learn_on_batch(self, batch):
        self.w += len(batch)
        return {"w": self.w}

    def get_weights(self):
        return {"w": self.w}

    def set_weights(self, weights):
        self.w = weights["w"]


def older_or_main(agent, episode):
    """Any policy for agent 1, the first for agent 0."""
    if agent == "agent_0":
        return episode.policies[0]
    return episode.policies[int(episode.rng.integers(len(episode.policies)))]


def any_policy(agent, episode):
    """One of all policies."""
    return episode.policies[int(episode.rng.integers(len(episode.policies)))]


def has_most_rows(policy_id, batch):
    """Whether the policy has the most rows of the train batch; without one, it has."""
    if batch is None:
        return True
    return policy_id == max(batch, key=lambda name: len(batch[name]))


def only_agent_1(policy_id, batch):
    """For any train batch."""
    return policy_id == "agent_1"


def is_due(policy_id, batch):
    """Whether the policies learn at present."""
    return is_due.now


def is_without_batch(policy_id, batch):
    """Whether it is asked without a train batch."""
    return batch is None


@pytest.fixture
def several(built):
    """Builds a tiny algorithm of several agents, given its name."""
    return lambda name="PPO", **sections: built(name, SEVERAL_AGENTS, **sections)


@pytest.mark.faults
@pytest.mark.parametrize("name", ["A3C", "IMPALA", "APPO"])
def test_asynchronous_runners_bring_exact_batches_too(shared_actors, several, name):
    algorithm = several(name, runners=2)
    for iteration in (1, 2, 3):
        row = algorithm.train()
        assert row["env_steps"] == iteration * BATCH
        assert set(row["learners"]) == {"agent_0", "agent_1"}


def test_code_may_decide_which_policies_learn_and_no_other_changes_a_byte(several):
    code = {"policies_to_train": "test_multi_agent:has_most_rows"}
    algorithm = several(multi_agent={**EACH, **code}, model={"hidden": [8]}, seed=3)
    learned = []
    for _ in range(6):
        before, row = algorithm.get_weights(), algorithm.train()
        steps = {name: of["num_agent_steps_trained"] for name, of in row["learners"].items()}
        assert set(steps) == {"agent_0", "agent_1"}
        learned.append([name for name in steps if steps[name]])
        for name, value in algorithm.get_weights().items():
            same = before[name].tobytes() == value.tobytes()
            assert same == (name.partition("/")[0] not in learned[-1]), name
    assert {len(names) for names in learned} == {1}
    assert {name for names in learned for name in names} == {"agent_0", "agent_1"}
    assert algorithm.policies.is_policy_to_train("agent_0")


@pytest.mark.parametrize("name", ["A3C", "APPO", "DQN", LOCKSTEP, "SAC"])
def test_code_decides_where_no_train_batch_is_at_hand_too(several, name):
    code = {"policies_to_train": "test_multi_agent:only_agent_1"}
    algorithm = several(name, multi_agent={**EACH, **code})
    before = algorithm.get_weights()
    for _ in range(2):
        algorithm.train()
    after = algorithm.get_weights()
    for policy_id, frozen in (("agent_0", True), ("agent_1", False)):
        names = [key for key in before if key.startswith(policy_id)]
        assert all(before[key].tobytes() == after[key].tobytes() for key in names) == frozen


@pytest.mark.parametrize("name", ["DQN", LOCKSTEP, "SAC"])
def test_code_decides_about_updates_and_not_about_what_is_stored_for_them(several, name):
    code = {"policies_to_train": "test_multi_agent:is_without_batch"}
    algorithm, plain = several(name, multi_agent={**EACH, **code}), several(name)
    assert train(algorithm, 2) == train(plain, 2)
    assert_equal_weights(algorithm, plain)


@pytest.mark.parametrize("name", ["DQN", LOCKSTEP])
def test_what_was_stored_meanwhile_is_learned_from_at_once(several, name):
    is_due.now = False
    algorithm = several(name, multi_agent={**EACH, "policies_to_train": "test_multi_agent:is_due"})
    updates = []
    for _ in range(3):
        row = algorithm.train()["learners"]["agent_1"]
        updates.append(row["learner_stats"]["num_updates"])
        is_due.now = True
    assert updates[0] == 0
    assert updates[1] == updates[2] > 0


def test_a_shared_policy_learns_from_all_its_agents(several):
    algorithm = several(multi_agent={"policies": ["shared"]}, training={"train_batch_size": 32})
    row = algorithm.train()
    assert row["learners"]["shared"]["num_agent_steps_trained"] == row["agent_steps"] > 32


@pytest.mark.parametrize(("name", "fragments"), [("PPO", 1), ("IMPALA", 1), ("A3C", 2)])
def test_batches_counted_in_agent_steps(several, name, fragments):
    algorithm = several(name, multi_agent={**EACH, "count_steps_by": "agent_steps"})
    row = algorithm.train()
    assert BATCH <= row["agent_steps"] <= BATCH + 3 * fragments
    assert row["env_steps"] < BATCH


def test_returns_are_named_by_policy_and_agent(several):
    algorithm = several(multi_agent={"policies": ["p"]}, evaluation={"interval": 1, "episodes": 2})
    algorithm.train()
    row = algorithm.train()
    runners = row["env_runners"]
    assert runners["policy_return_mean"]["p"] == pytest.approx(row["episode_return_mean"] / 2)
    agents = runners["agent_return_mean"]
    assert set(agents) == {"agent_0", "agent_1"}
    assert sum(agents.values()) == pytest.approx(row["episode_return_mean"])
    evaluation = row["evaluation"]
    assert evaluation["policy_return_mean"]["p"] == evaluation["episode_return_mean"] / 2


@pytest.mark.parametrize("name", ["PPO", "IMPALA", "A3C", "DQN"])
def test_a_policy_from_scratch_acts_learns_and_is_restored(several, name, tmp_path):
    policies = {"agent_0": {}, "agent_1": {"use": "test_multi_agent:Adder", "start": 2.0}}

    def make():
        return several(name, multi_agent={"policies": policies})

    algorithm = make()
    row = algorithm.train()
    rows = row["learners"]["agent_1"]["num_agent_steps_trained"]
    assert row["learners"]["agent_1"]["learner_stats"]["w"] == 2.0 + rows
    algorithm.policies.reads.set_state({})  # learning does not read what the policy puts out
    batch = algorithm.sample()  # its weight has reached the runners
    assert set(batch["agent_1"]["w"]) == {2.0 + rows}
    algorithm.train()
    algorithm.save(tmp_path / "checkpoint")
    other = make()
    other.restore(tmp_path / "checkpoint")
    assert other.policies.custom["agent_1"].w == algorithm.policies.custom["agent_1"].w
    assert train(algorithm, 1) == train(other, 1)


@pytest.mark.parametrize("make", [PGConfig, A3CConfig, IMPALAConfig, SACConfig])
def test_the_policy_of_a_single_agent_may_be_written_from_scratch(built, make, tmp_path):
    config = make().environment("CartPole-v1").training(train_batch_size=BATCH)
    config = config.policy(Adder, start=2.0).evaluation(interval=1, episodes=2)
    algorithm, other = built(config.debugging(seed=1)), built(config)
    row = algorithm.train()["learners"]["default_policy"]
    assert row["learner_stats"]["w"] == 2.0 + row["num_agent_steps_trained"]
    assert algorithm.policies.acting_weights["default_policy"]["w"] == row["learner_stats"]["w"]
    algorithm.save(tmp_path / "checkpoint")
    other.restore(tmp_path / "checkpoint")
    assert train(algorithm, 1) == train(other, 1)
    assert algorithm.compute_single_action(np.zeros(4)) == 0


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


def test_a_request_is_repeated_with_those_of_its_policies_that_are_left(several):
    mapping = {"policies": ["main"], "agents": "test_multi_agent:older_or_main"}
    algorithm = several("PPO", multi_agent=mapping, **FILTERED)
    algorithm.add_policy("older", like="main")
    request = algorithm.next_request(5)
    assert set(request.policies) == {"main", "older"}
    algorithm.remove_policy("older")
    algorithm.add_policy("newer", like="main")
    again = algorithm.repeated_request(request.get_state(), 7)
    assert (again.length, set(again.policies)) == (7, {"main"})
    for name in ("fragment", "weights_version", "connector_state", "exploration", "leave_out"):
        assert getattr(again, name) == getattr(request, name)
    following = algorithm.next_request()
    assert following.fragment == request.fragment + 1
    assert set(following.connector_state) == set(following.policies) == {"main", "newer"}


def test_the_learner_of_several_policies_must_be_named(several):
    algorithm = several("PPO", multi_agent=EACH)
    with pytest.raises(ValueError, match="learners has a learner for each policy: "):
        _ = algorithm.learner


class Group(Learner):
    """In place of a group of actors, which import torch for seconds."""

    stopped: ClassVar[list[Learner]] = []

    def stop(self):
        self.stopped.append(self)


def test_policies_that_never_learn_have_no_learners_of_their_own(several, local_ray, monkeypatch):
    """Nor does a checkpoint hold moments for them; those of a removed policy end."""
    monkeypatch.setattr(learner_group, "LearnerGroup", Group)
    algorithm = several(
        "PPO",
        multi_agent={"policies": ["main"], "agents": "test_multi_agent:older_or_main"},
        learners={"num_learners": 1, "num_cpus_per_learner": 0.1},
    )
    algorithm.add_policy("older", like="main")
    algorithm.add_policy("younger", like="main", train=True)
    train(algorithm, 1)
    learners, removed = algorithm.policies.learners, algorithm.policies.learners["younger"]
    assert {name: isinstance(each, Group) for name, each in learners.items()} == {
        **{"main": True, "younger": True},
        "older": False,
    }
    assert learners["older"].get_state()["optimizer"] == {"num_steps": 0}
    assert learners["main"].get_state()["optimizer"]["num_steps"] > 0
    Group.stopped.clear()
    algorithm.remove_policy("younger")
    assert Group.stopped == [removed]
    algorithm.stop()
    assert Group.stopped == [removed, learners["main"]]


@pytest.mark.parametrize("name", ["PPO", "IMPALA", "APPO", "A3C", "DQN", "SAC"])
def test_policies_come_and_go_and_are_there_after_a_resume(several, name, tmp_path):
    def make():
        mapping = {"policies": ["main"], "agents": "test_multi_agent:older_or_main"}
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


def test_weights_of_a_policy_that_there_is_not_are_an_error(several):
    algorithm = several()
    weights = algorithm.get_weights()
    with pytest.raises(ValueError, match=r"the weights 'agent_2/pi.*: agent_0, agent_1"):
        algorithm.set_weights({**weights, "agent_2/pi.0.weight": np.zeros(1)})
    algorithm.set_weights(weights)


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
    mapping = {"policies": ["main"], "agents": "test_multi_agent:any_policy"}
    blurred = {"env_to_module_connector": "test_multi_agent:Blurs"}
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
        mapping = {"policies": policies, "agents": "test_multi_agent:any_policy"}
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


def test_a_gradient_of_a_removed_policy_is_not_applied_to_another_of_its_id(several, monkeypatch):
    """One that was under way when the policy was removed."""
    mapping = {"policies": ["main"], "agents": "test_multi_agent:any_policy"}
    algorithm = several("A3C", multi_agent=mapping)
    algorithm.add_policy("older", like="main", train=True)
    runner, weights = algorithm.env_runner_group.local_env_runner, algorithm.policies.acting_weights
    reply = sample_gradients(runner, algorithm.next_request(BATCH), weights)
    assert reply.by_policy.keys() == {"main", "older"}
    algorithm.remove_policy("older")
    algorithm.add_policy("older", like="main", train=True)
    before = algorithm.get_weights()
    monkeypatch.setattr(algorithm.stream.sampler, "take", lambda: reply)
    algorithm.train()
    after = algorithm.get_weights()
    changed = {key for key, value in after.items() if (value != before[key]).any()}
    assert {key.partition("/")[0] for key in changed} == {"main"}


def test_making_a_policy_does_not_change_what_is_drawn_next(several, tmp_path):
    """The runners make theirs in the middle of an iteration, or with a restore before it."""

    def make():
        mapping = {"policies": ["main"], "agents": "test_multi_agent:any_policy"}
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
    mapping = {"policies": ["main"], "agents": "test_multi_agent:older_or_main"}
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


class Closes(RockPaperScissors):
    """Remembers which of its objects were closed."""

    closed: ClassVar = []

    def close(self):
        self.closed.append(self)
        super().close()


def test_an_environment_that_is_made_for_its_spaces_is_closed(monkeypatch):
    monkeypatch.setattr(Closes, "closed", [])
    policies = {"p": PolicySettings(ModelConfig(hidden=(4,)), TrainingConfig())}
    spec = RunnerSpec(EnvSpec(use=f"{__name__}:Closes"), multi_agent=MultiAgentSpec(policies))
    spaces, agents = find_spaces(spec, SimpleNamespace(local_env_runner=None))
    assert (spaces.keys(), agents) == ({"p"}, ["player_0", "player_1"])
    assert len(Closes.closed) == 1


@pytest.mark.parametrize("name", ["PPO", "IMPALA", "A3C", "DQN", "SAC"])
def test_a_policy_that_no_agent_has_yet_does_not_learn(several, name):
    agents = {"agent_0": "present", "agent_1": "present"}
    mapping = {"policies": ["present", "absent"], "agents": agents}
    algorithm = several(name, multi_agent=mapping)
    before = algorithm.get_weights()
    learners = algorithm.train()["learners"]
    assert learners["present"]["num_agent_steps_trained"] > 0
    for key, value in algorithm.get_weights().items():
        if key.startswith("absent/"):
            np.testing.assert_array_equal(value, before[key])


def test_policies_explore_each_in_its_way(several):
    policies = {"agent_0": {}, "agent_1": {"train": False, "exploration": {"epsilon": 0}}}
    algorithm = several("DQN", multi_agent={"policies": policies}, exploration={"epsilon": 1.0})
    assert algorithm.train()["learners"]["agent_0"]["learner_stats"]["epsilon"] == 1.0
    runner = algorithm.env_runner_group.local_env_runner
    values = {name: policy.sampler.epsilon for name, policy in runner.policies.items()}
    assert values == {"agent_0": 1.0, "agent_1": 0.0}


def test_each_policy_replays_as_its_own_settings_say(several):
    """Updates for each env step, or for each agent's step; buffers fill for themselves."""
    slow = {"training_intensity": 1.0, "minibatch_size": 4, "lr": 1e-4}
    policies = {"agent_0": {}, "agent_1": {"training": slow}}
    algorithm = several("DQN", multi_agent={"policies": policies}, training={"lr": 1e-3})
    rows = [algorithm.train()["learners"] for _ in range(2)]
    first, second = (rows[1][name]["learner_stats"] for name in ("agent_0", "agent_1"))
    assert (first["num_updates"], second["num_updates"]) == (BATCH * 2 // 16, BATCH // 4)
    assert (first["lr"], second["lr"]) == (1e-3, 1e-4)
    assert rows[1]["agent_1"]["num_agent_steps_trained"] == BATCH
    by_agent = {**EACH, "count_steps_by": "agent_steps"}
    algorithm = several("DQN", multi_agent=by_agent)
    before = algorithm.train()["agent_steps"]
    row = algorithm.train()
    updates = row["learners"]["agent_0"]["learner_stats"]["num_updates"]
    assert abs(updates - (row["agent_steps"] - before) * 2 / 16) < 1


def test_in_lockstep_all_learn_from_the_same_env_steps(several):
    algorithm = several(LOCKSTEP)
    row = algorithm.train()
    updates = [row["learners"][name]["learner_stats"]["num_updates"] for name in EACH["policies"]]
    trained = [row["learners"][name]["num_agent_steps_trained"] for name in EACH["policies"]]
    due = (BATCH - REPLAY["num_steps_sampled_before_learning_starts"] + 4) * 2 // 16
    assert updates == [due, due]
    assert all(count <= due * 16 for count in trained)


def test_in_lockstep_a_round_that_the_buffer_cannot_hold_is_one_problem(several):
    """Both agents of two sub-environments make a transition in each env step."""
    shared = {"policies": ["shared"]}
    sizes = {"capacity": 6, "mode": "lockstep", "prioritized": False}
    early = {"num_steps_sampled_before_learning_starts": 4}
    algorithm = several("DQN", multi_agent=shared, replay=sizes, training=early)
    message = r"replay\.capacity: .* 4 env steps \(transitions: 8 of shared\); set it to 8 or more"
    with pytest.raises(ConfigError, match=message):
        algorithm.train()


def test_one_agent_has_one_policy(built):
    with pytest.raises(ValueError, match=r"multi_agent\.policies"):
        built("PPO").add_policy("other", like="default_policy")


def test_without_policies_the_message_says_what_to_write():
    config = PPOConfig().environment("MultiAgentCartPole").env_runners(num_env_runners=0)
    with pytest.raises(ConfigError, match=r"several agents.*policies: \[shared\]"):
        config.build()


def test_the_least_steps_of_an_iteration_are_counted_like_the_batch(several):
    by_agent = {**EACH, "count_steps_by": "agent_steps"}
    least = {"min_sample_timesteps_per_iteration": 2 * BATCH}
    algorithm = several("PPO", multi_agent=by_agent, reporting=least)
    result = algorithm.train()
    assert 2 * BATCH <= result["agent_steps"] < 3 * BATCH
    assert result["env_steps"] < 2 * BATCH


def test_policies_draw_random_numbers_of_their_own(built):
    algorithm = built("PPO", SEVERAL_AGENTS)
    drawn = {algorithm.learner_rng(name).random() for name in ("agent_0", "agent_1")}
    assert len(drawn) == 2
    only = built("PPO")
    version = only.policies.weights_version
    assert only.learner_rng().random() == learner_rng(only.seed, version).random()


class Endless(MultiAgentEnv):
    """Its agent leaves at once, and no flag says that the episode is over."""

    possible_agents = ("a",)
    observation_spaces: ClassVar = {"a": gym.spaces.Discrete(2)}
    action_spaces: ClassVar = observation_spaces

    def reset(self, *, seed=None, options=None):
        return {"a": 0}, {}

    def step(self, actions):
        return {}, {}, dict.fromkeys(actions, True), {}, {}


def test_an_episode_in_which_nobody_acts_any_more_is_an_error_that_says_what_ends_it(built):
    config = PPOConfig().environment(f"{__name__}:Endless").multi_agent(policies=["a"])
    algorithm = built(config.training(train_batch_size=1100, minibatch_size=1100))
    with pytest.raises(EnvError, match="acted for 1001 steps; set '__all__' to end the episode"):
        algorithm.train()


def test_a_method_that_calls_the_base_class_s_is_told_so():
    with pytest.raises(TypeError, match=r"Endless must define reset\(\) without the base class's"):
        MultiAgentEnv.reset(Endless())
