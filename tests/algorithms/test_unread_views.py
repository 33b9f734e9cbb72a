"""Views that a module declares and does not read are neither gathered, stored, sent nor loaded."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from test_algorithm_properties import TINY, train
from test_unneeded_columns import reply_of

from rlrun import Callbacks, PPOConfig, RLModule, ViewRequirement
from rlrun.algorithms.ppo import PPO
from rlrun.data import columns as col
from rlrun.data.tracked_batch import TrackedRows
from rlrun.data.trajectory_views import TrajectoryViews
from rlrun.policies.torch_policy import TorchPolicy

HERE = __name__
VIEWS = ("frames", "old_actions", "prev_rewards")
NEXT = {f"new_{name}" for name in VIEWS}


class Declares(RLModule):
    """Asks for three views; reads those of `reads` in `reads_in`."""

    def __init__(self, observation_space, action_space, model, reads=(), reads_in=(), insist=None):
        super().__init__(observation_space, action_space, model)
        self.reads, self.reads_in = reads, reads_in
        self.view_requirements |= {
            "frames": ViewRequirement("obs", shift="-3:0"),
            "old_actions": ViewRequirement("actions", shift="-9:-5"),
            "prev_rewards": ViewRequirement(
                "rewards", shift=-1, used_for_compute_actions=insist or None
            ),
        }
        self.layer = torch.nn.Linear(observation_space.shape[0], 3)

    def forward_train(self, batch):
        return self.outputs(batch, "train")

    def forward_exploration(self, batch):
        return self.outputs(batch, "exploration")

    def forward_inference(self, batch):
        return self.outputs(batch, "inference")

    def outputs(self, batch, way):
        out = self.layer(batch["obs"])
        for name in self.reads if way in self.reads_in else ():
            out = out + 1e-3 * batch[name].float().reshape(len(out), -1).mean(1, keepdim=True)
        return {col.ACTION_DIST_INPUTS: out[:, :2], col.VF_PREDS: out[:, 2]}


def build(algorithm=PPO, callbacks=(), policy=None, use="Declares", **kwargs):
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        .training(**TINY)
        .model(use=f"{HERE}:{use}", **kwargs)
        .callbacks(*callbacks)
        .debugging(seed=3)
    )
    if policy is not None:
        made = {"policy_factory": lambda self, policy_id: policy}
        algorithm = type("WithPolicy", (algorithm,), made)
    return algorithm(config)


def keep_all(algorithm):
    """As if there had been no trial."""
    algorithm.unneeded = {}
    algorithm.learner.views = ["obs", *VIEWS]


@pytest.fixture
def gathered(monkeypatch):
    """Names of the views that were gathered for acting, each time."""
    names = []
    gather = TrajectoryViews.acting

    def counted(views, *arguments):
        seen = gather(views, *arguments)
        names.extend(seen)
        return seen

    monkeypatch.setattr(TrajectoryViews, "acting", counted)
    return names


def test_what_nobody_reads_is_not_there(gathered):
    algorithm = build()
    gathered.clear()
    reply = reply_of(algorithm)
    assert gathered == ["obs"] * reply.vector_steps
    assert not {*VIEWS, *NEXT} & reply.batch.keys()
    collector = algorithm.env_runner_group.local_env_runner.collector
    assert collector.get_state()["past"] == {}, "no past is kept for what is not made"
    assert collector._viewed.further == [], "nor what only such a view is made of"
    rows = algorithm.learner.load(reply.batch, (col.ACTIONS,))
    assert list(rows._inputs) == ["obs"]
    algorithm.stop()


def test_no_number_changes():
    """Only what goes to waste does: the run is the same as with all views."""
    lean, full = build(), build()
    keep_all(full)
    assert train(lean, 3) == train(full, 3)
    assert lean.evaluate() == full.evaluate()
    lean.stop()
    full.stop()


@pytest.mark.parametrize(
    ("reads_in", "acted_on", "learned_from"),
    [
        (["train"], False, True),
        (["exploration"], True, False),
        (["inference"], True, False),
        (["train", "exploration", "inference"], True, True),
    ],
)
@pytest.mark.parametrize("name", VIEWS)
def test_each_view_is_where_it_is_read(name, reads_in, acted_on, learned_from, gathered):
    algorithm = build(reads=[name], reads_in=reads_in)
    full = build(reads=[name], reads_in=reads_in)
    keep_all(full)
    gathered.clear()
    reply = reply_of(algorithm)
    assert set(gathered) == ({"obs", name} if acted_on else {"obs"})
    present = {*VIEWS, *NEXT} & reply.batch.keys()
    assert present == ({name, f"new_{name}"} if learned_from else set())
    assert algorithm.learner.views == (["obs", name] if learned_from else ["obs"])
    assert train(algorithm, 2)[1].keys()
    reply_of(full)
    assert train(full, 2)
    weights = full.get_weights()
    for key, value in algorithm.get_weights().items():
        np.testing.assert_array_equal(value, weights[key])
    assert algorithm.evaluate() == full.evaluate()
    algorithm.stop()
    full.stop()


def test_bytes_on_the_wire():
    """64 steps of CartPole: the three views, and what they are a step later, are not sent."""
    sizes = []
    for kept in (False, True):
        algorithm = build()
        if kept:
            keep_all(algorithm)
        sizes.append(len(pickle.dumps(reply_of(algorithm).batch, protocol=5)))
        algorithm.stop()
    # Two of each: indices of four frames, five actions, a reward; and two fragments' past of nine
    # rows in front of the observations. With them the columns that PPO does not read: inputs of the
    # distribution, log-probabilities, lanes.
    views = 2 * (4 * 8 + 5 * 8 + 4)
    assert sizes[1] - sizes[0] >= 64 * (views + 8 + 4 + 8)


def test_a_view_that_says_it_is_used_stays(gathered):
    algorithm = build(insist=True)
    gathered.clear()
    reply = reply_of(algorithm)
    assert set(gathered) == {"obs", "prev_rewards"}
    assert {*VIEWS, *NEXT} & reply.batch.keys() == {"prev_rewards", "new_prev_rewards"}
    assert algorithm.learner.views == ["obs", "prev_rewards"]
    algorithm.stop()


class TakesAll(Declares):
    """Hands everything on to a forward pass that makes its own pick."""

    def outputs(self, batch, way):
        return super().outputs({**batch}, way)


class AsksWhether(Declares):
    """Would read the action before if it were there."""

    def outputs(self, batch, way):
        if batch.get("old_actions") is None or "prev_rewards" not in batch:
            raise AssertionError("the trial could not see that these are asked for")
        return super().outputs(batch, way)


@pytest.mark.parametrize(("use", "kept"), [("TakesAll", VIEWS), ("AsksWhether", VIEWS[1:])])
def test_what_the_trial_cannot_see_is_kept(use, kept, gathered):
    algorithm = build(use=use)
    gathered.clear()
    algorithm.train()
    assert set(gathered) == {"obs", *kept}
    assert algorithm.learner.views == ["obs", *kept]
    algorithm.stop()


class OwnWay(TorchPolicy):
    """Looks at a view itself, before the module does."""

    def compute_actions_from_input_dict(self, input_dict, *, explore=True, noise=None):
        assert input_dict["prev_rewards"].shape == (2,)
        obs = {"obs": input_dict["obs"]}
        return super().compute_actions_from_input_dict(obs, explore=explore, noise=noise)


def test_policies_read_too(gathered):
    algorithm = build(policy=OwnWay)
    gathered.clear()
    reply = reply_of(algorithm)
    assert set(gathered) == {"obs", "prev_rewards"}
    assert not {*VIEWS, *NEXT} & reply.batch.keys()
    algorithm.stop()


class LossOfItsOwn(PPO):
    """Reads one view in its loss, and one of the batch."""

    def training_step(self):
        batch = self.sample()
        assert len(batch["new_old_actions"]) == len(batch)
        rows = self.learner.load(batch, (col.ACTIONS,))

        def loss(module, rows):
            total = module.forward_train(rows)[col.VF_PREDS].mean() + rows["prev_rewards"].mean()
            return total, {}

        statistics = self.learner.update(
            rows.minibatches(1, 16, self.learner_rng()), loss, {}, lr=0
        )
        self.sync_weights()
        return self.learner_result(len(batch), statistics)


def test_losses_and_training_steps_read_too():
    algorithm = build(LossOfItsOwn)
    algorithm.train()
    assert algorithm.learner.views == ["obs", "prev_rewards"]
    views = {*VIEWS, *NEXT} & reply_of(algorithm).batch.keys()
    assert views == {"prev_rewards", "new_prev_rewards", "new_old_actions"}
    algorithm.stop()


class OnlyLoads(PPO):
    """Does not look at its rows before it has many of them."""

    def training_step(self):
        self.learner.load(self.sample(), (col.ACTIONS,))
        self.sync_weights()
        return {}


def test_rows_that_did_not_come_to_be_read_are_all_kept():
    algorithm = build(OnlyLoads)
    algorithm.train()
    assert algorithm.learner.views == ["obs", *VIEWS]
    assert {*VIEWS, *NEXT} <= reply_of(algorithm).batch.keys()
    algorithm.stop()


class SeesFrames(Callbacks):
    """Makes one number of a view that the module does not read."""

    def on_postprocess_trajectory(self, *, postprocessed_batch, **kwargs):
        frames = postprocessed_batch["frames"]
        assert frames.shape[1:] == (4, 4)


def test_postprocessing_sees_all_views(gathered):
    algorithm = build(callbacks=[f"{HERE}:SeesFrames"])
    gathered.clear()
    result = algorithm.train()
    assert set(gathered) == {"obs"}
    assert result["env_steps"] == 64
    assert not {*VIEWS, *NEXT} & reply_of(algorithm).batch.keys()
    algorithm.stop()


def test_what_is_edited_later_is_there():
    """A view of the same name, and one of a column that learning does not need."""
    algorithm = build()
    policy = algorithm.env_runner_group.local_env_runner.policy
    first = algorithm.sample()
    assert not {*VIEWS, *NEXT} & first.keys()
    policy.view_requirements["prev_rewards"] = ViewRequirement("rewards", shift=-2)
    policy.view_requirements["prev_inputs"] = ViewRequirement(
        "action_dist_inputs", shift=-1, space=gym.spaces.Box(-9, 9, (2,), np.float32)
    )
    algorithm.sample()  # from here on their past is kept
    batch = algorithm.sample()
    step = batch["t"]
    np.testing.assert_array_equal(batch["prev_rewards"][step > 1], 1.0)
    inputs = algorithm.learner.module.layer(torch.tensor(batch["obs"])).detach().numpy()
    same = (np.diff(batch["eps_id"]) == 0) & (np.diff(batch["unroll_id"]) == 0)
    np.testing.assert_allclose(batch["prev_inputs"][1:][same], inputs[:-1][same][:, :2], atol=1e-6)
    algorithm.stop()


def test_tracked_rows_remember():
    read = set()
    rows = TrackedRows({"a": 1, "b": 2, "c": 3}, read)
    more = rows | {"d": 4}
    assert read == set()
    assert more["d"] == 4
    assert more.copy()["a"] == 1
    assert "b" in rows
    assert read == {"a", "b", "d"}
    for take_all in (
        lambda rows: {**rows},
        dict,
        lambda rows: {} | rows,
        lambda rows: dict(**rows),
        list,
        lambda rows: list(rows.items()),
        lambda rows: list(rows.values()),
        lambda rows: [*rows.keys()],
    ):
        read = set()
        take_all(TrackedRows({"a": 1, "b": 2}, read))
        assert read == {"a", "b"}, take_all
    read = set()
    rows = TrackedRows({"a": 1, "b": 2}, read)
    assert (rows.get("x", 5), rows.pop("a")) == (5, 1)
    assert read == {"x", "a"}
