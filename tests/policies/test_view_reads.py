"""The dummy pass that shows which of its views a module reads."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun import RLModule, ViewRequirement
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.catalog import build_module
from rlrun.policies.torch_policy import TorchPolicy
from rlrun.policies.view_reads import unread_views

SPACES = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2)
ALL = {"frames", "prev_actions", "prev_rewards"}


class Takes(RLModule):
    """Hands its rows to a function, which takes of them what it likes."""

    def __init__(self, take, used=None):
        super().__init__(*SPACES, ModelConfig())
        self.take, self.calls = take, 0
        self.view_requirements |= {
            "frames": ViewRequirement("obs", shift="-3:0"),
            "prev_actions": ViewRequirement("actions", shift=-1),
            "prev_rewards": ViewRequirement("rewards", shift=-1, used_for_compute_actions=used),
            "next_actions": ViewRequirement("actions", shift=1),
        }
        self.norm = torch.nn.BatchNorm1d(4)

    def forward_train(self, batch):
        self.calls += 1
        torch.rand(3)
        out = self.norm(batch["obs"])[:, :3]
        self.take(batch)
        return {col.ACTION_DIST_INPUTS: out[:, :2], col.VF_PREDS: out[:, 2]}

    def forward_inference(self, batch):
        return {col.ACTION_DIST_INPUTS: batch["frames"][:, 0, :2]}


@pytest.mark.parametrize(
    ("take", "unread"),
    [
        (lambda rows: None, ALL),
        (lambda rows: rows["frames"].reshape(32, 4, 4), ALL - {"frames"}),
        (lambda rows: rows["prev_actions"] + rows["prev_rewards"], {"frames"}),
        (lambda rows: rows.get("prev_actions", 5), ALL - {"prev_actions"}),
        (lambda rows: "prev_rewards" in rows, ALL - {"prev_rewards"}),
        (lambda rows: rows.pop("frames"), ALL - {"frames"}),
        (lambda rows: {**rows}, set()),
        (dict, set()),
        (list, set()),
        (lambda rows: rows.copy(), set()),
        (lambda rows: rows | {"a": 1}, set()),
        (lambda rows: {} | rows, set()),
        (lambda rows: list(rows.items()), set()),
        (lambda rows: list(rows.values()), set()),
        (lambda rows: [*rows.keys()], set()),
    ],
)
def test_what_a_forward_pass_takes_is_read(take, unread):
    assert unread_views(Takes(take), "forward_train") == unread


def test_the_pass_is_given_no_more_than_acting_is():
    module = Takes(lambda rows: rows["frames"] if "next_actions" in rows else None)
    assert unread_views(module, "forward_train") == ALL


def test_several_forward_passes_are_judged_together():
    module = Takes(lambda rows: rows["prev_actions"])
    assert unread_views(module, "forward_train", "forward_inference") == {"prev_rewards"}


def test_the_pass_leaves_no_trace():
    module, state = Takes(lambda rows: None), torch.get_rng_state()
    unread_views(module, "forward_train")
    assert module.calls == 0
    assert (module.norm.running_mean == 0).all()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_view_that_says_it_is_used_counts_as_read():
    assert unread_views(Takes(lambda rows: None, used=True), "forward_train") == ALL - {
        "prev_rewards"
    }


def test_an_error_in_the_pass_says_where_it_came_from():
    with pytest.raises(ZeroDivisionError) as caught:
        unread_views(Takes(lambda rows: 1 / 0), "forward_train")
    assert "in forward_train on rows of zeros" in caught.value.__notes__[0]


@pytest.mark.parametrize("memory", [{"use_lstm": True}, {"use_gru": True}])
def test_networks_with_a_memory_read_what_they_ask_for(memory):
    previous = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
    module = build_module(*SPACES, ModelConfig(hidden=(4,), **memory, **previous))
    ways = "forward_train", "forward_exploration", "forward_inference"
    for way in ways:
        assert not unread_views(module, way)


class OwnWay(TorchPolicy):
    """Looks at views itself, before the module does."""

    def compute_actions_from_input_dict(self, input_dict, *, explore=True, noise=None):
        return super().compute_actions_from_input_dict(input_dict, explore=explore, noise=noise)


def test_a_policy_that_acts_in_its_own_way_is_shown_everything():
    module = Takes(lambda rows: None)
    assert TorchPolicy(*SPACES, ModelConfig(), module=module).unread_views == {
        "prev_actions",
        "prev_rewards",
    }
    assert not OwnWay(*SPACES, ModelConfig(), module=module).unread_views
