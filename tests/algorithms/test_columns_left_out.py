"""Columns that learning does not read are not sent, from the second iteration on."""

from functools import partial

import numpy as np
import pytest
import torch
from tiny import train

from rlrun import Callbacks, PPOConfig, RLModule, ViewRequirement
from rlrun.algorithms.appo import APPOConfig
from rlrun.algorithms.dqn import DQNConfig
from rlrun.algorithms.ppo import PPO
from rlrun.data import columns as col
from rlrun.data.column_reads import ALWAYS_KEPT

BATCH = 32
ROWS = ALWAYS_KEPT - {col.SEQ_LENS}
READ = {col.OBS, col.NEXT_OBS, col.ACTIONS}
PUT_OUT = {col.ACTION_DIST_INPUTS, col.ACTION_LOGP}


@pytest.fixture
def build(built):
    """Builds small experiments on CartPole."""

    def make(config=PPOConfig, algorithm=None, env="CartPole-v1", model=None, **sections):
        sizes = {"train_batch_size": BATCH, "minibatch_size": 16}
        made = config().environment(env).training(**sizes).model(**(model or {"hidden": [8]}))
        made = made.env_runners(num_envs_per_env_runner=2).debugging(seed=1)
        for section, values in sections.items():
            made = getattr(made, section)(**values)
        return built(partial(algorithm, made) if algorithm else made)

    return make


def sent(algorithm):
    """Names of the columns that a fragment has now."""
    batch = algorithm.sample_round([16])[0].batch
    batch.reads = None
    return set(batch.keys())


def keep_all(algorithm):
    algorithm.policies.reads.settle = lambda needed: None


@pytest.mark.parametrize(
    ("config", "more"),
    [(PPOConfig, set()), (APPOConfig, {col.ACTION_LOGP}), (DQNConfig, set())],
)
def test_algorithms_are_sent_what_they_read(build, config, more):
    training = {"num_steps_sampled_before_learning_starts": 1} if config is DQNConfig else {}
    algorithm = build(config, training=training)
    assert {col.ENV_ID, *READ, *ROWS} <= sent(algorithm), "nothing is known before the first"
    algorithm.train()
    assert sent(algorithm) == ROWS | READ | more


@pytest.mark.parametrize(
    "model",
    [
        {"hidden": [8]},
        {"hidden": [8], "use_lstm": True, "lstm_use_prev_action": True, "max_seq_len": 7},
    ],
)
def test_results_are_the_same_as_with_all_columns(build, model):
    lean, full = build(model=model), build(model=model)
    keep_all(full)
    assert train(lean, 3) == train(full, 3)
    assert lean.policies.reads.left_out
    assert not full.policies.reads.left_out


def test_what_is_not_sent_is_not_computed(build, monkeypatch):
    algorithm, calls = build(), []
    policy = type(algorithm.env_runner_group.local_env_runner.policy)
    compute = policy.fragment_columns
    monkeypatch.setattr(
        policy, "fragment_columns", lambda *args, **how: calls.append(1) or compute(*args, **how)
    )
    algorithm.train()
    assert len(calls) == 1
    algorithm.train()
    assert len(calls) == 1


class LooksAtAnything(Callbacks):
    def on_learn_on_batch(self, algorithm, policy_id, batch):
        assert "action_logp" in batch


class Bonus(Callbacks):
    """Adds one column that is read, and one that is not."""

    def on_postprocess_trajectory(self, *, postprocessed_batch, **kwargs):
        postprocessed_batch["bonus"] = 2 * postprocessed_batch["rewards"]
        postprocessed_batch["idle"] = np.ones(len(postprocessed_batch))


class ReadsBonus(PPO):
    """Reads a column at first, another one from the third iteration on."""

    late = col.ACTION_LOGP

    def training_step(self):
        batch = self.sample()
        assert batch["bonus"].sum() > 0
        if self.progress.iteration >= 2:
            assert self.late in batch
        return super().training_step()


class NamesIt(ReadsBonus):
    columns_read = PPO.columns_read | {col.ACTION_LOGP}


def test_what_callbacks_read_is_sent(build):
    algorithm = build(algorithm=lambda c: PPO(c.callbacks(f"{__name__}:LooksAtAnything")))
    algorithm.train()
    assert PUT_OUT & sent(algorithm) == {col.ACTION_LOGP}
    algorithm.train()


def test_what_a_training_step_reads_is_sent_and_other_columns_of_postprocessing_are_not(build):
    algorithm = build(algorithm=lambda c: NamesIt(c.callbacks(f"{__name__}:Bonus")))
    algorithm.train()
    assert {"bonus", "idle", *PUT_OUT} & sent(algorithm) == {"bonus", col.ACTION_LOGP}
    train(algorithm, 2)


def test_a_column_that_is_read_too_late_says_how_to_keep_it(build):
    algorithm = build(algorithm=lambda c: ReadsBonus(c.callbacks(f"{__name__}:Bonus")))
    train(algorithm, 2)
    with pytest.raises(KeyError, match=r"action_logp: left out of train batches.*columns_read"):
        algorithm.train()
    batch = algorithm.sample()
    for read in (list, dict, lambda b: b.get("idle"), lambda b: b.copy()[:3]["idle"]):
        with pytest.raises(KeyError, match="left out"):
            read(batch)


class LearnsLate(PPO):
    """Learns from the second iteration on."""

    def training_step(self):
        if self.progress.iteration == 0:
            self.sample()
            return {}
        return super().training_step()


def test_as_long_as_nothing_was_learned_everything_is_sent(build):
    algorithm = build(algorithm=LearnsLate)
    algorithm.train()
    assert sent(algorithm) >= PUT_OUT
    algorithm.train()
    assert not PUT_OUT & sent(algorithm)


def test_fragments_from_before_and_after_the_decision_join(build):
    algorithm = build()
    early = algorithm.sample_round([16])
    algorithm.train()
    for replies in (early + algorithm.sample_round([16]), algorithm.sample_round([16]) + early):
        batch = algorithm.train_batch(replies).unwrapped()
        assert len(batch) == 64
        assert len(batch[col.OBS]) == 64


def test_a_checkpoint_keeps_the_decision(build, tmp_path):
    algorithm, resumed = build(), build()
    algorithm.train()
    algorithm.save(tmp_path / "checkpoint")
    resumed.restore(tmp_path / "checkpoint")
    assert resumed.policies.reads.left_out == algorithm.policies.reads.left_out
    assert sent(resumed) == ROWS | READ
    assert sent(algorithm) == ROWS | READ
    assert train(algorithm, 2) == train(resumed, 2)


def only_agent_0(policy_id, batch=None):
    """Says which policy learns, after a look at the batch."""
    if batch is not None:
        assert "infos" not in batch[policy_id]
        assert len(batch[policy_id]["action_logp"])
    return policy_id == "agent_0"


def test_each_policy_is_decided_for_by_itself(build):
    """One that has not learned so far may yet read anything."""
    policies = {"agent_0": {}, "agent_1": {}}
    told = {"policies": policies, "policies_to_train": f"{__name__}:only_agent_0"}
    algorithm = build(env="MultiAgentCartPole", multi_agent=told)
    algorithm.train()
    batch = algorithm.sample_round([16])[0].batch
    for each in batch.policy_batches.values():
        each.reads = None
    assert set(batch["agent_0"].keys()) == ROWS | READ | {col.ACTION_LOGP}
    assert set(batch["agent_1"].keys()) >= PUT_OUT
    algorithm.add_policy("copy", like="agent_0", train=True)
    assert "copy" not in algorithm.policies.reads.left_out


def test_of_a_frozen_policy_only_the_rows_are_sent(build):
    policies = {"agent_0": {}, "agent_1": {"train": False}}
    algorithm = build(env="MultiAgentCartPole", multi_agent={"policies": policies})
    algorithm.train()
    batch = algorithm.sample_round([16])[0].batch
    frozen = batch["agent_1"]
    frozen.reads = None
    assert set(frozen.keys()) == ROWS


class Declares(RLModule):
    """Asks for three views; reads those of `acting` when it acts and `learning` when it learns."""

    def __init__(self, observation_space, action_space, model, acting=(), learning=()):
        super().__init__(observation_space, action_space, model)
        self.acting, self.learning = acting, learning
        self.view_requirements |= {
            "frames": ViewRequirement("obs", shift="-3:0"),
            "old_actions": ViewRequirement("actions", shift="-9:-5"),
            "prev_rewards": ViewRequirement("rewards", shift=-1),
        }
        self.layer = torch.nn.Linear(4, 3)

    def forward_train(self, batch):
        return self.outputs(batch, self.learning)

    def forward_exploration(self, batch):
        return self.outputs(batch, self.acting)

    def forward_inference(self, batch):
        return self.outputs(batch, ())

    def outputs(self, batch, names):
        out = self.layer(batch["obs"])
        for name in names:
            out = out + 1e-3 * batch[name].float().reshape(len(out), -1).mean(1, keepdim=True)
        return {col.ACTION_DIST_INPUTS: out[:, :2], col.VF_PREDS: out[:, 2]}


VIEWS = {"frames", "old_actions", "prev_rewards"}


@pytest.mark.parametrize("acting", [(), ("frames",)])
@pytest.mark.parametrize("learning", [(), ("prev_rewards",), ("frames", "old_actions")])
def test_views_are_sent_where_learning_reads_them(build, acting, learning):
    model = {"use": f"{__name__}:Declares", "acting": acting, "learning": learning}
    lean, full = build(model=model), build(model=model)
    keep_all(full)
    full.learner.views = [col.OBS, *sorted(VIEWS)]
    policy = lean.env_runner_group.local_env_runner.policy
    assert policy.unread_views == VIEWS - {*acting}
    assert lean.learner.views == [col.OBS, *learning]
    assert train(lean, 3) == train(full, 3)
    assert lean.evaluate() == full.evaluate()
    views = {name for view in learning for name in (view, f"new_{view}")}
    assert sent(lean) == ROWS | READ | views


def test_a_view_that_is_edited_or_added_later_is_made(build):
    algorithm = build(model={"use": f"{__name__}:Declares"})
    policy = algorithm.env_runner_group.local_env_runner.policy
    algorithm.train()
    policy.view_requirements["prev_rewards"] = ViewRequirement("rewards", shift=-2)
    policy.view_requirements["next_actions"] = ViewRequirement("actions", shift=1)
    algorithm.sample()  # from here on their past is kept
    batch = algorithm.sample()
    np.testing.assert_array_equal(batch["prev_rewards"][batch["t"] > 1], 1.0)
    same = np.diff(batch["eps_id"]) == 0
    np.testing.assert_array_equal(batch["next_actions"][:-1][same], batch["actions"][1:][same])
