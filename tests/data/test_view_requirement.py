"""What can be said about a view, and what cannot."""

import gymnasium as gym
import pytest

from rlrun.data.trajectory_views import TrajectoryViews
from rlrun.data.view_requirement import ViewRequirement


@pytest.mark.parametrize(
    ("shift", "steps", "time_axis"),
    [
        (0, (0,), False),
        (-1, (-1,), False),
        (1, (1,), False),
        ([-1], (-1,), True),
        ([0, -2], (0, -2), True),
        ("-3:0", (-3, -2, -1, 0), True),
        ("0:2", (0, 1, 2), True),
        ("-50:-1", tuple(range(-50, 0)), True),
        ("-4:0:2", (-4, -2, 0), True),
        ("-5:0:2", (-5, -3, -1), True),
    ],
)
def test_shifts(shift, steps, time_axis):
    view = ViewRequirement("rewards", shift=shift)
    assert view.steps == steps
    assert view.time_axis == time_axis


@pytest.mark.parametrize("shift", ["", "a:b", "1", "2:1", [], "0:3:0", "0:3:-1", "1:2:3:4"])
def test_shifts_that_are_none(shift):
    with pytest.raises(ValueError, match=r"range is|holds no step"):
        ViewRequirement(shift=shift)


def test_the_future_is_no_input_of_acting():
    with pytest.raises(ValueError, match="future"):
        ViewRequirement("obs", shift="0:1", used_for_compute_actions=True)
    assert not ViewRequirement("actions", shift=1).is_acted_on("next_actions")
    assert not ViewRequirement("actions").is_acted_on("actions")
    assert ViewRequirement("actions", shift=-1).is_acted_on("prev_actions")
    assert not ViewRequirement("actions", shift=-1, used_for_compute_actions=False).is_acted_on("x")
    assert ViewRequirement(shift="-3:0").is_acted_on("obs")
    with pytest.raises(ValueError, match=r"not known yet.*shift -1"):
        ViewRequirement("rewards", used_for_compute_actions=True).is_acted_on("rewards")


def test_only_states_share_rows():
    with pytest.raises(ValueError, match=r"'memory'.*batch_repeat_value is for states"):
        TrajectoryViews({"memory": ViewRequirement("obs", shift=-1, batch_repeat_value=5)})
    with pytest.raises(ValueError, match="at least 1"):
        ViewRequirement(batch_repeat_value=0)


def test_views_are_values():
    space = gym.spaces.Discrete(2)
    assert ViewRequirement("a", space, [-2, -1]) == ViewRequirement("a", space, (-2, -1))
    assert ViewRequirement("a", shift=-1) != ViewRequirement("a", shift=-2)
    with pytest.raises(AttributeError):
        ViewRequirement().shift = 1  # type: ignore[misc]
