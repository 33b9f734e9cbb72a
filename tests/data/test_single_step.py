"""get_single_step_input_dict: the model's input for one step of a trajectory."""

import numpy as np
import pytest

from rlrun.data.sample_batch import SampleBatch
from rlrun.data.view_requirement import ViewRequirement


def seen(data_col=None, shift=0):
    return ViewRequirement(data_col, shift=shift, used_for_compute_actions=True)


def trajectory(**more):
    return SampleBatch(
        {
            "obs": np.array([1, 2, 3]),
            "new_obs": np.array([2, 3, 4]),
            "actions": np.array([10, 20, 30]),
            "rewards": np.array([0.1, 0.2, 0.3]),
            "state_out_0": np.array([[7.0], [8.0], [9.0]]),
            **more,
        }
    )


VIEWS = {
    "obs": seen(),
    "prev_actions": seen("actions", -1),
    "prev_rewards": seen("rewards", -1),
    "state_in_0": seen("state_out_0", -1),
    "stack": seen("obs", "-2:0"),
    "past_actions": seen("actions", [-1, -3]),
    "advantages": ViewRequirement("rewards", shift=1, used_for_compute_actions=False),
}


def as_lists(batch):
    batch.check_valid()
    return {name: column.tolist() for name, column in batch.items()}


def test_last_is_the_step_after_the_batch():
    assert as_lists(trajectory().get_single_step_input_dict(VIEWS)) == {
        "obs": [4],
        "prev_actions": [30],
        "prev_rewards": [0.3],
        "state_in_0": [[9.0]],
        "stack": [[2, 3, 4]],
        "past_actions": [[30, 10]],
    }


@pytest.mark.parametrize(
    ("index", "obs", "previous", "state", "stack", "past"),
    [
        (0, 1, 0, 0.0, [1, 1, 1], [0, 0]),
        (1, 2, 10, 7.0, [1, 1, 2], [10, 0]),
        (-1, 3, 20, 8.0, [1, 2, 3], [20, 0]),
    ],
)
def test_a_row_sees_what_was_known_then(index, obs, previous, state, stack, past):
    row = as_lists(trajectory().get_single_step_input_dict(VIEWS, index))
    assert row["obs"] == [obs]
    assert row["prev_actions"] == [previous]
    assert row["state_in_0"] == [[state]]
    assert row["stack"] == [stack]
    assert row["past_actions"] == [past]


def test_a_view_that_the_batch_holds_is_used_for_its_rows():
    batch = trajectory(prev_actions=np.array([5, 10, 20]))
    views = {"prev_actions": seen("actions", -1)}
    assert as_lists(batch.get_single_step_input_dict(views, 0))["prev_actions"] == [5]
    assert as_lists(batch.get_single_step_input_dict(views))["prev_actions"] == [30]
    own = {"prev_actions": seen(), "t": seen("prev_actions", [-1, 0])}
    assert as_lists(batch.get_single_step_input_dict(own))["prev_actions"] == [30]
    assert as_lists(batch.get_single_step_input_dict(own))["t"] == [[20, 30]]


def test_nested_observations():
    batch = SampleBatch(
        {
            "obs": {"a": np.array([1, 2]), "b": (np.array([[3], [4]]),)},
            "new_obs": {"a": np.array([2, 5]), "b": (np.array([[4], [6]]),)},
        }
    )
    row = batch.get_single_step_input_dict({"stack": seen("obs", [-1, 0])})
    assert row["stack"]["a"].tolist() == [[2, 5]]
    assert row["stack"]["b"][0].tolist() == [[[4], [6]]]


def test_what_cannot_be_answered():
    with pytest.raises(KeyError, match="vf_preds"):
        trajectory().get_single_step_input_dict({"vf_preds": seen()})
    with pytest.raises(ValueError, match="empty batch"):
        SampleBatch().get_single_step_input_dict(VIEWS)
    with pytest.raises(IndexError, match="row 3"):
        trajectory().get_single_step_input_dict(VIEWS, 3)
    with pytest.raises(ValueError, match="'first'"):
        trajectory().get_single_step_input_dict(VIEWS, "first")
