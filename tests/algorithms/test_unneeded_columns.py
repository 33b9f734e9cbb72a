"""What learning does not read is neither stored nor sent; what anybody reads is there."""

import pickle

import numpy as np
import pytest
import torch
from test_algorithm_properties import ALGORITHMS, ENVS, TINY, build, train

from rlrun import Callbacks, PPOConfig, RLModule, ViewRequirement
from rlrun.algorithms.ppo import PPO
from rlrun.algorithms.unneeded_columns import ALWAYS_KEPT
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.tracked_batch import tracked

FOUND_BY = {name: ENVS.get(name, ("CartPole-v1",))[0] for name in ALGORITHMS}


class Surprised(RLModule):
    """Declares in its constructor that it wants the actions to come, and reads none of them."""

    def __init__(self, observation_space, action_space, model):
        super().__init__(observation_space, action_space, model)
        self.view_requirements["next_actions"] = ViewRequirement("actions", shift=1)
        self.view_requirements["next_rewards"] = ViewRequirement("rewards", shift=1)
        self.layer = torch.nn.Linear(4, 3)

    def forward_train(self, batch):
        out = self.layer(batch["obs"])
        return {col.ACTION_DIST_INPUTS: out[:, :2], col.VF_PREDS: out[:, 2]}


class Curious(PPO):
    """A learner's own code, which reads columns that PPO does not."""

    def training_step(self):
        batch = self.sample()
        self.seen = {name: batch[name] for name in ("next_actions", "bonus", col.ACTION_LOGP)}
        self.kept = set(batch.keys())
        return super().training_step()


class Bonus(Callbacks):
    """Adds one column that is read, and one that nobody reads."""

    def on_postprocess_trajectory(self, *, postprocessed_batch, **kwargs):
        postprocessed_batch["bonus"] = 2 * postprocessed_batch["rewards"]
        postprocessed_batch["idle"] = np.ones(len(postprocessed_batch))


class LooksAtAll(Callbacks):
    """May read anything, whenever it likes."""

    def on_sample_end(self, algorithm, batch):
        assert col.ACTION_LOGP in batch


def reply_of(algorithm):
    return algorithm.sample_round(algorithm._fragment_lengths[0])[0]


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "A3C"])
def test_every_algorithm_leaves_out_what_it_does_not_read(name):
    """Without a list written by hand."""
    algorithm = build(name, FOUND_BY[name])
    algorithm.stop()
    assert {"env_id", "action_dist_inputs"} <= algorithm.unneeded["default_policy"].leave_out
    assert not algorithm.unneeded["default_policy"].leave_out & ALWAYS_KEPT


@pytest.mark.parametrize("name", ["PPO, LSTM", "DQN"])
def test_results_are_those_of_a_run_that_leaves_out_nothing(name):
    lean, full = (build(name) for _ in range(2))
    try:
        full.unneeded = {}
        assert train(lean, 2) == train(full, 2)
    finally:
        lean.stop()
        full.stop()


def test_bytes_on_the_wire():
    """CartPole, 512 steps of 2 lanes: what is not read is not in the pickled batch."""
    sizes = {}
    for kept in ("lean", "full"):
        algorithm = build("PPO", lanes=2, training={"train_batch_size": 1024})
        if kept == "full":
            algorithm.unneeded = {}
        reply = reply_of(algorithm)
        sizes[kept] = len(pickle.dumps(reply.batch, protocol=5))
        algorithm.stop()
        if kept == "lean":
            stored = algorithm.env_runner_group.local_env_runner.collector._stored
            assert stored == [], "not even the columns that it was made of are stored"
            assert set(reply.batch.keys()) == ALWAYS_KEPT - {"seq_lens"} | {
                *("obs", "new_obs", "actions")
            }
    # action_dist_inputs 2 x 4 bytes, action_logp 4, env_id 8
    assert sizes["full"] - sizes["lean"] == pytest.approx(1024 * 20, abs=500)


def several(policies, callbacks=(), to_train=None):
    config = (
        PPOConfig()
        .environment("MultiAgentCartPole")
        .env_runners(num_envs_per_env_runner=2)
        .training(train_batch_size=256, minibatch_size=64, num_epochs=1)
        .model(hidden=[8])
        .multi_agent(policies=policies, policies_to_train=to_train)
        .debugging(seed=1)
    )
    return config.callbacks(*callbacks).build()


FROZEN = {"agent_0": {}, "agent_1": {"train": False}}


def test_bytes_on_the_wire_of_several_policies():
    """What PPO does not read is not sent of one; of the other, which is frozen, nothing is read."""
    batches = {}
    for kept in ("lean", "full"):
        algorithm = several(FROZEN)
        if kept == "full":
            algorithm.unneeded = {}
        batches[kept] = reply_of(algorithm).batch
        algorithm.stop()
    lean, full = batches["lean"], batches["full"]
    assert set(lean["agent_0"].keys()) == ALWAYS_KEPT - {"seq_lens"} | {"obs", "new_obs", "actions"}
    assert set(lean["agent_1"].keys()) == ALWAYS_KEPT - {"seq_lens"}
    for policy_id in FROZEN:
        assert len(lean[policy_id]) == len(full[policy_id])
        for name, column in lean[policy_id].items():
            np.testing.assert_array_equal(column, full[policy_id][name])

    def sent(batch):
        return len(pickle.dumps(batch, protocol=5))

    rows = len(lean["agent_0"])
    # As with one policy: action_dist_inputs 2 x 4 bytes, action_logp 4, env_id 8.
    assert sent(full["agent_0"]) - sent(lean["agent_0"]) == pytest.approx(20 * rows, abs=500)
    # Besides, obs with what it led to: 4 x 4 bytes and two indices of 8; actions 8.
    saved = sent(full["agent_1"]) - sent(lean["agent_1"])
    assert saved == pytest.approx((20 + 32 + 8) * len(lean["agent_1"]), abs=1500)


def test_results_of_several_policies_are_those_of_a_run_that_leaves_out_nothing():
    lean, full = several(["agent_0", "agent_1"]), several(["agent_0", "agent_1"])
    try:
        assert set(lean.unneeded) == {"agent_0", "agent_1"}
        full.unneeded = {}
        assert train(lean, 2) == train(full, 2)
    finally:
        lean.stop()
        full.stop()


def whoever(policy_id, batch):
    """Looks at what it likes, to say who learns."""
    return batch is None or "action_logp" in batch[policy_id]


@pytest.mark.parametrize(
    "more", [{"to_train": f"{__name__}:whoever"}, {"callbacks": (f"{__name__}:LooksAtAll",)}]
)
def test_code_that_may_look_at_any_policys_batch_finds_everything(more):
    algorithm = several(["default_policy"], **more)
    assert algorithm.unneeded == {}
    row = algorithm.train()
    assert row["learners"]["default_policy"]["num_agent_steps_trained"] > 0
    algorithm.stop()


def test_a_policy_that_was_added_keeps_everything():
    algorithm = several({"agent_0": {}, "agent_1": {}})
    algorithm.add_policy("copy", like="agent_0")
    algorithm.train()
    assert set(algorithm.unneeded) == {"agent_0", "agent_1"}
    algorithm.stop()


def test_what_a_users_own_code_reads_is_kept():
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .training(train_batch_size=64, minibatch_size=64, num_epochs=1)
        .model(use=f"{__name__}:Surprised")
        .callbacks(f"{__name__}:Bonus")
    )
    algorithm = Curious(config)
    try:
        left_out = algorithm.unneeded["default_policy"].leave_out
        assert {"idle", "next_rewards"} <= left_out
        assert not {"bonus", "next_actions", col.ACTION_LOGP} & left_out
        algorithm.train()
        actions, after = algorithm.seen["next_actions"], algorithm.kept
        assert actions.shape == (64,)
        assert not left_out & after
        np.testing.assert_array_equal(algorithm.seen["bonus"] > 0, True)
    finally:
        algorithm.stop()


def test_a_view_added_to_a_living_policy_reaches_the_train_batch():
    algorithm = build("PPO")
    runner = algorithm.env_runner_group.local_env_runner
    runner.policy.view_requirements["next_actions"] = ViewRequirement("actions", shift=1)
    try:
        batch = algorithm.sample()
        assert "next_actions" in batch
        assert "env_id" not in batch
    finally:
        algorithm.stop()


def test_a_callback_that_may_read_anything_finds_everything():
    config = PPOConfig().environment("CartPole-v1").training(**TINY)
    algorithm = config.callbacks(f"{__name__}:LooksAtAll").build()
    assert algorithm.unneeded == {}
    algorithm.train()
    algorithm.stop()


class Tidies(Callbacks):
    """Deletes what it thinks that nobody needs."""

    def on_postprocess_trajectory(self, *, postprocessed_batch, **kwargs):
        del postprocessed_batch["action_dist_inputs"]


def test_deleting_columns_by_hand_is_warned_of_once(caplog):
    config = PPOConfig().environment("CartPole-v1").training(**TINY)
    algorithm = config.callbacks(f"{__name__}:Tidies").build()
    assert [r.message for r in caplog.records if "postprocessing deletes" in r.message] == [
        "postprocessing deletes action_dist_inputs: there is no need to, columns that learning "
        "does not read are left out anyway"
    ]
    assert "action_dist_inputs" not in algorithm.sample()
    algorithm.stop()


def test_the_trial_leaves_no_trace():
    algorithm = build("PPO")
    state, weights = algorithm.get_state(), algorithm.get_weights()
    assert state["policies"]["weights_version"] == 0
    assert state["progress"]["trained_steps"] == state["progress"]["env_steps"] == 0
    again = build("PPO")
    for name, value in again.get_weights().items():
        np.testing.assert_array_equal(value, weights[name])
    algorithm.stop()
    again.stop()


def test_a_tracked_batch_remembers():
    batch, touched = tracked(SampleBatch({"a": [1, 2], "b": [3, 4], "c": [5, 6], "d": [7, 8]}))
    assert len(batch) == 2
    assert touched.read == set()
    assert batch[:1]["a"].tolist() == [1]
    assert "b" in batch.copy()
    batch["e"] = batch["a"] + 1
    del batch["c"]
    assert touched.read == {"a", "b"}
    assert touched.written == {"e"}
    assert touched.deleted == {"c"}
    assert len(list(batch.items())) == 4
    assert touched.read == {"a", "b", "d", "e"}
