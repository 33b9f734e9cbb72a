"""Several policies: the same promises as with one, and who learns."""

import numpy as np
import pytest
from seeded_metrics import seeded_part

from rlrun.algorithms.a2c import A2CConfig
from rlrun.algorithms.a3c import A3CConfig
from rlrun.algorithms.appo import APPOConfig
from rlrun.algorithms.dqn import DQNConfig
from rlrun.algorithms.impala import IMPALAConfig
from rlrun.algorithms.pg import PGConfig
from rlrun.algorithms.ppo import PPOConfig
from rlrun.algorithms.sac import SACConfig
from rlrun.envs.errors import EnvError
from rlrun.policies.policy import Policy

EXAMPLES = "rlrun.envs.multi_agent_examples"
BATCH = 64
TINY = {"train_batch_size": BATCH, "minibatch_size": 16, "num_epochs": 2}
REPLAYED = {"train_batch_size": BATCH, "minibatch_size": 16, "n_step": 2}
SOON = {"num_steps_sampled_before_learning_starts": 20}
HELD = {"capacity": 150, "store_in_checkpoints": True}
LSTM = {"hidden": [4], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 7}
CONFIGS = {
    "PPO": lambda: PPOConfig().training(**TINY, kl_coeff=0.2).model(hidden=[8]),
    "PPO, LSTM": lambda: PPOConfig().training(**TINY).model(**LSTM),
    "A2C": lambda: A2CConfig().training(train_batch_size=BATCH).model(hidden=[8]),
    "PG": lambda: PGConfig().training(train_batch_size=BATCH).model(hidden=[8]),
    "A3C": lambda: A3CConfig().training(train_batch_size=BATCH).model(hidden=[8]),
    "IMPALA": lambda: IMPALAConfig().training(**TINY, broadcast_interval=2).model(hidden=[8]),
    "IMPALA, LSTM": lambda: IMPALAConfig().training(**TINY).model(**LSTM),
    "APPO": lambda: (
        APPOConfig().training(**TINY, kl_coeff=0.5, target_network_update_freq=3).model(hidden=[8])
    ),
    "DQN": lambda: (
        DQNConfig()
        .training(**REPLAYED, **SOON, target_network_update_freq=50)
        .model(hidden=[8])
        .replay(**HELD, prioritized=True)
    ),
    "DQN, GRU": lambda: (
        DQNConfig()
        .training(**REPLAYED, **SOON, target_network_update_freq=50)
        .model(hidden=[4], use_gru=True, lstm_cell_size=4, max_seq_len=5)
        .replay(**HELD, burn_in=3)
    ),
    "DQN, lockstep": lambda: (
        DQNConfig().training(**REPLAYED, **SOON).model(hidden=[8]).replay(**HELD, mode="lockstep")
    ),
    "SAC": lambda: (
        SACConfig()
        .training(**REPLAYED, **SOON, training_intensity=8)
        .model(hidden=[8])
        .replay(**HELD)
    ),
}
EACH = {"policies": ["agent_0", "agent_1"]}


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
    """Agent 1 plays any policy there is, agent 0 the first."""
    if agent == "agent_0":
        return episode.policies[0]
    return episode.policies[int(episode.rng.integers(len(episode.policies)))]


def whoever_has_more_rows(policy_id, batch):
    """Only the policy with the most rows of the train batch learns from it."""
    if batch is None:
        return True
    return policy_id == max(batch, key=lambda name: len(batch[name]))


def only_agent_1(policy_id, batch):
    """Whatever there is to learn from."""
    return policy_id == "agent_1"


@pytest.fixture
def built():
    made = []

    def make(name="PPO", env="MultiAgentCartPole", *, runners=0, seed=5, multi_agent=EACH, **more):
        config = (
            CONFIGS[name]()
            .environment(f"{EXAMPLES}:{env}")
            .env_runners(
                num_env_runners=runners, num_envs_per_env_runner=2, num_cpus_per_env_runner=0.1
            )
            .multi_agent(**multi_agent)
            .debugging(seed=seed)
        )
        for section, values in more.items():
            config = getattr(config, section)(**values)
        made.append(config.build())
        return made[-1]

    yield make
    for algorithm in made:
        algorithm.stop()


def train(algorithm, iterations):
    return [seeded_part(algorithm.train()) for _ in range(iterations)]


def assert_equal_weights(one, other):
    first, second = one.get_weights(), other.get_weights()
    assert first.keys() == second.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(value, second[key])


FILTERED = {
    "env_runners": {"observation_filter": "MeanStdFilter"},
    "connectors": {"normalize_rewards": True},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_same_seed_same_results_and_a_restored_one_goes_on_to_the_bit(built, name, tmp_path):
    straight, again = built(name, **FILTERED), built(name, **FILTERED)
    rows = train(straight, 2)
    assert rows == train(again, 2)
    assert rows[0].keys() == rows[1].keys()
    assert all(row["env_steps_this_iter"] == BATCH for row in rows)
    assert rows[0]["agent_steps"] > BATCH
    straight.save(tmp_path / "checkpoint")
    rows = train(straight, 2)
    resumed = built(name, seed=5, **FILTERED)
    resumed.restore(tmp_path / "checkpoint")
    assert train(resumed, 2) == rows
    assert_equal_weights(straight, resumed)


@pytest.mark.faults
@pytest.mark.parametrize("name", ["A3C", "IMPALA", "APPO"])
def test_runners_that_nobody_waits_for_bring_exact_batches_too(built, name):
    algorithm = built(name, runners=2)
    for iteration in (1, 2, 3):
        row = algorithm.train()
        assert row["env_steps"] == iteration * BATCH
        assert set(row["learners"]) == {"agent_0", "agent_1"}


@pytest.mark.faults
def test_remote_runners_agree_with_each_other_and_after_a_restart(built):
    first, second = built(runners=2), built(runners=2)
    rows = train(first, 1)
    assert rows == train(second, 1)
    second.env_runner_group.restart(2)
    further = train(second, 2)
    assert [row["env_runners/restarts"] for row in further] == [1, 1]
    for row in further:
        row["env_runners/restarts"] = 0
    assert train(first, 2) == further


@pytest.mark.parametrize("name", CONFIGS)
def test_evaluation_changes_nothing_in_the_training_rows(built, name):
    plain = train(built(name, **FILTERED), 2)
    evaluated = train(built(name, evaluation={"interval": 1, "episodes": 2}, **FILTERED), 2)
    for one, other in zip(plain, evaluated, strict=True):
        assert one.keys() == other.keys()
        differing = {key for key in one if one[key] != other[key]}
        assert all(key.startswith("evaluation/") for key in differing)


@pytest.mark.parametrize("name", CONFIGS)
def test_policies_learn_apart_and_frozen_ones_never_change_a_byte(built, name):
    policies = {"agent_0": {}, "agent_1": {"train": False, "model": {"hidden": [5]}}}
    algorithm = built(name, multi_agent={"policies": policies})
    before = algorithm.get_weights()
    shapes = {key: value.shape for key, value in before.items()}
    first = next(key for key in before if key.startswith("agent_0/") and key.endswith("0.weight"))
    assert shapes[first] != shapes[first.replace("agent_0", "agent_1")]
    row = algorithm.train()
    after = algorithm.get_weights()
    assert set(row["learners"]) == {"agent_0"}
    assert row["learners"]["agent_0"]["num_agent_steps_trained"] > 0
    assert not np.array_equal(before[first], after[first])
    for key, value in before.items():
        if key.startswith("agent_1/"):
            assert value.tobytes() == after[key].tobytes(), key
    batch = algorithm.sample()
    assert set(batch.policy_batches) == {"agent_0", "agent_1"}


def test_code_may_decide_who_learns_and_nobody_else_changes_a_byte(built):
    code = {"policies_to_train": "test_multi_agent:whoever_has_more_rows"}
    algorithm = built(multi_agent={**EACH, **code}, seed=3)
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


@pytest.mark.parametrize("name", ["A3C", "APPO", "DQN", "DQN, lockstep", "SAC"])
def test_code_decides_where_no_train_batch_is_at_hand_too(built, name):
    code = {"policies_to_train": "test_multi_agent:only_agent_1"}
    algorithm = built(name, multi_agent={**EACH, **code})
    before = algorithm.get_weights()
    for _ in range(2):
        algorithm.train()
    after = algorithm.get_weights()
    for policy_id, frozen in (("agent_0", True), ("agent_1", False)):
        names = [key for key in before if key.startswith(policy_id)]
        assert all(before[key].tobytes() == after[key].tobytes() for key in names) == frozen


def test_a_shared_policy_learns_from_all_its_agents(built):
    algorithm = built(multi_agent={"policies": ["shared"]}, training={"train_batch_size": 32})
    row = algorithm.train()
    assert row["learners"]["shared"]["num_agent_steps_trained"] == row["agent_steps"] > 32


@pytest.mark.parametrize(("name", "fragments"), [("PPO", 1), ("IMPALA", 1), ("A3C", 2)])
def test_batches_counted_in_agent_steps(built, name, fragments):
    algorithm = built(name, multi_agent={**EACH, "count_steps_by": "agent_steps"})
    row = algorithm.train()
    assert BATCH <= row["agent_steps"] <= BATCH + 3 * fragments
    assert row["env_steps"] < BATCH


def test_pitfall_72_returns_are_named_by_policy_and_agent(built):
    algorithm = built(multi_agent={"policies": ["p"]}, evaluation={"interval": 1, "episodes": 2})
    row = algorithm.train()
    runners = row["env_runners"]
    assert runners["policy_return_mean"]["p"] == pytest.approx(row["episode_return_mean"] / 2)
    agents = runners["agent_return_mean"]
    assert set(agents) == {"agent_0", "agent_1"}
    assert sum(agents.values()) == pytest.approx(row["episode_return_mean"])
    evaluation = row["evaluation"]
    assert evaluation["policy_return_mean"]["p"] == evaluation["episode_return_mean"] / 2


@pytest.mark.parametrize("name", ["PPO", "IMPALA", "A3C", "DQN"])
def test_a_policy_from_scratch_acts_learns_and_is_restored(built, name, tmp_path):
    policies = {"agent_0": {}, "agent_1": {"use": "test_multi_agent:Adder", "start": 2.0}}

    def make():
        return built(name, multi_agent={"policies": policies})

    algorithm = make()
    row = algorithm.train()
    rows = row["learners"]["agent_1"]["num_agent_steps_trained"]
    assert row["learners"]["agent_1"]["learner_stats"] == {"w": 2.0 + rows}
    algorithm.unneeded = {}  # nobody reads what it puts out
    batch = algorithm.sample()  # its weight has reached the runners
    assert set(batch["agent_1"]["w"]) == {2.0 + rows}
    algorithm.train()
    algorithm.save(tmp_path / "checkpoint")
    other = make()
    other.restore(tmp_path / "checkpoint")
    assert other.policies.scratch["agent_1"].w == algorithm.policies.scratch["agent_1"].w
    assert train(algorithm, 1) == train(other, 1)


@pytest.mark.parametrize("name", ["PPO", "IMPALA", "APPO", "A3C", "DQN", "SAC"])
def test_policies_come_and_go_and_are_there_after_a_resume(built, name, tmp_path):
    def make():
        mapping = {"policies": ["main"], "agents": "test_multi_agent:older_or_main"}
        return built(name, multi_agent=mapping, **FILTERED)

    algorithm = make()
    train(algorithm, 1)
    algorithm.add_policy("older", like="main")
    frozen = {k: v for k, v in algorithm.get_weights().items() if k.startswith("older/")}
    rows = train(algorithm, 3)
    assert rows[-1]["env_runners/policy_return_mean/older"] is not None
    for key, value in frozen.items():
        np.testing.assert_array_equal(value, algorithm.get_weights()[key])
    algorithm.save(tmp_path / "checkpoint")
    resumed = make()
    resumed.restore(tmp_path / "checkpoint")
    assert list(resumed.policies) == ["main", "older"]
    assert train(resumed, 2) == train(algorithm, 2)
    assert_equal_weights(algorithm, resumed)
    algorithm.remove_policy("older")
    train(algorithm, 1)
    assert set(algorithm.env_runner_group.local_env_runner.actors) == {"main"}
    with pytest.raises(ValueError, match="one of the experiment's own"):
        algorithm.remove_policy("main")
    with pytest.raises(ValueError, match="there is a policy 'main' already"):
        algorithm.add_policy("main", like="main")


def test_policies_explore_each_in_its_way(built):
    policies = {"agent_0": {}, "agent_1": {"train": False, "exploration": {"epsilon": 0}}}
    algorithm = built("DQN", multi_agent={"policies": policies}, exploration={"epsilon": 1.0})
    assert algorithm.train()["learners"]["agent_0"]["learner_stats"]["epsilon"] == 1.0
    runner = algorithm.env_runner_group.local_env_runner
    values = {name: policy.sampler.epsilon for name, policy in runner.policies.items()}
    assert values == {"agent_0": 1.0, "agent_1": 0.0}


def test_each_policy_replays_as_its_own_settings_say(built):
    """Updates for each env step, or for each agent's step; buffers fill for themselves."""
    slow = {"training_intensity": 1.0, "minibatch_size": 8, "lr": 1e-4}
    policies = {"agent_0": {}, "agent_1": {"training": slow}}
    algorithm = built("DQN", multi_agent={"policies": policies}, training={"lr": 1e-3})
    rows = [algorithm.train()["learners"] for _ in range(2)]
    first, second = (rows[1][name]["learner_stats"] for name in ("agent_0", "agent_1"))
    assert (first["num_updates"], second["num_updates"]) == (BATCH * 8 // 16, BATCH // 8)
    assert (first["lr"], second["lr"]) == (1e-3, 1e-4)
    assert rows[1]["agent_1"]["num_agent_steps_trained"] == BATCH
    by_agent = {**EACH, "count_steps_by": "agent_steps"}
    algorithm = built("DQN", multi_agent=by_agent)
    before = algorithm.train()["agent_steps"]
    row = algorithm.train()
    updates = row["learners"]["agent_0"]["learner_stats"]["num_updates"]
    assert abs(updates - (row["agent_steps"] - before) * 8 / 16) < 1


def test_in_lockstep_all_learn_from_the_same_env_steps(built):
    algorithm = built("DQN, lockstep")
    row = algorithm.train()
    updates = [row["learners"][name]["learner_stats"]["num_updates"] for name in EACH["policies"]]
    trained = [row["learners"][name]["num_agent_steps_trained"] for name in EACH["policies"]]
    due = (BATCH - SOON["num_steps_sampled_before_learning_starts"] + 4) * 8 // 16
    assert updates == [due, due]
    assert all(count <= due * 16 for count in trained)


def test_one_agent_has_one_policy():
    algorithm = PPOConfig().environment("CartPole-v1").training(**TINY).build()
    with pytest.raises(ValueError, match=r"multi_agent\.policies"):
        algorithm.add_policy("other", like="default_policy")
    algorithm.stop()


def test_without_policies_the_message_says_what_to_write():
    config = PPOConfig().environment("MultiAgentCartPole").env_runners(num_env_runners=0)
    with pytest.raises(EnvError, match=r"several agents.*policies: \[shared\]"):
        config.build()
