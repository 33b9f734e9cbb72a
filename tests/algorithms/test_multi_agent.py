"""Several policies: which learn, and how."""

from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from tiny import (
    BATCH,
    EACH,
    LOCKSTEP,
    REPLAY,
    SEVERAL_AGENTS,
    assert_equal_weights,
    train,
)

from rlrun.algorithms.a3c import A3CConfig
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
        multi_agent={"policies": ["main"], "agents": "test_added_policies:older_or_main"},
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


def test_stopping_an_algorithm_stops_the_learners_of_all_policies(several, monkeypatch):
    algorithm, stopped = several(), []
    for policy_id, learner in algorithm.learners.items():
        monkeypatch.setattr(learner, "stop", partial(stopped.append, policy_id))
    algorithm.stop()
    assert stopped == ["agent_0", "agent_1"]


def test_weights_of_a_policy_that_there_is_not_are_an_error(several):
    algorithm = several()
    weights = algorithm.get_weights()
    with pytest.raises(ValueError, match=r"the weights 'agent_2/pi.*: agent_0, agent_1"):
        algorithm.set_weights({**weights, "agent_2/pi.0.weight": np.zeros(1)})
    algorithm.set_weights(weights)


class Closes(RockPaperScissors):
    """Remembers which of its objects were closed."""

    closed: ClassVar = []

    def close(self):
        self.closed.append(self)
        super().close()


def test_weights_that_fit_one_policy_alone_change_none(several):
    algorithm = several()
    before = algorithm.get_weights()
    wrong = {name: array + 1 for name, array in before.items()}
    last = [name for name in wrong if name.startswith("agent_1/")][-1]
    wrong[last] = np.zeros(99, np.float32)
    with pytest.raises(ValueError, match=r"another model: .*\(99,\)"):
        algorithm.set_weights(wrong)
    for name, array in algorithm.get_weights().items():
        np.testing.assert_array_equal(array, before[name])


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


@pytest.mark.parametrize("horizon", [{}, {"horizon": 9, "soft_horizon": True}])
def test_an_episode_in_which_nobody_acts_any_more_is_an_error_that_says_what_ends_it(
    built, horizon
):
    config = PPOConfig().environment(f"{__name__}:Endless").multi_agent(policies=["a"])
    config.env_runners(**horizon)
    algorithm = built(config.training(train_batch_size=1100, minibatch_size=1100))
    with pytest.raises(EnvError, match="acted for 1001 steps; set '__all__' to end the episode"):
        algorithm.train()


def test_a_method_that_calls_the_base_class_s_is_told_so():
    with pytest.raises(TypeError, match=r"Endless must define reset\(\) without the base class's"):
        MultiAgentEnv.reset(Endless())
