"""What can be said about a view, and what cannot."""

import json

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(first=st.integers(-60, 5), length=st.integers(0, 60), step=st.integers(1, 7))
def test_ranges_begin_anywhere_and_hold_both_ends(first, length, step):
    """The last one only where a whole number of steps leads to it."""
    view = ViewRequirement("obs", shift=f"{first}:{first + length}:{step}")
    expected, at = [], first
    while at <= first + length:
        expected.append(at)
        at += step
    assert list(view.steps) == expected
    assert view.time_axis
    whole = ViewRequirement("obs", shift=f"{first}:{first + length}")
    assert list(whole.steps) == list(range(first, first + length + 1))


@pytest.mark.parametrize("shift", ["", "a:b", "1", "2:1", [], "0:3:0", "0:3:-1", "1:2:3:4"])
def test_shifts_that_are_none(shift):
    with pytest.raises(ValueError, match=r"range is|selects no step"):
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


SPACES = [
    None,
    gym.spaces.Discrete(3, start=-1),
    gym.spaces.Box(-1.5, np.inf, (2, 3), np.float32),
    gym.spaces.Box(np.array([0.0, -np.inf]), np.array([1.0, 2.0]), dtype=np.float64),
    gym.spaces.Box(0, 255, (4, 4, 1), np.uint8),
    gym.spaces.MultiDiscrete([2, 5], start=[0, 3]),
    gym.spaces.MultiBinary((2, 2)),
    gym.spaces.Dict(
        {"b": gym.spaces.Discrete(2), "a": gym.spaces.Tuple((gym.spaces.MultiBinary(3),))}
    ),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("shift", [0, -2, "-3:0", [-1, -5]])
def test_views_go_through_json_and_back(space, shift):
    views = [
        ViewRequirement("a", space, shift),
        ViewRequirement(None, space, shift, used_for_training=False),
        ViewRequirement("b", space, shift=-1, batch_repeat_value=7, used_for_compute_actions=True),
    ]
    for view in views:
        text = json.dumps(view.to_dict(), allow_nan=False)
        again = ViewRequirement.from_dict(json.loads(text))
        assert again == view
        if space is not None:
            assert again.space.dtype == space.dtype


def test_spaces_that_are_none_are_named():
    with pytest.raises(TypeError, match="a Text space cannot be written"):
        ViewRequirement(space=gym.spaces.Text(3)).to_dict()
    with pytest.raises(ValueError, match=r"begins with one of box.*not with 'cube'"):
        ViewRequirement.from_dict({**ViewRequirement().to_dict(), "space": {"cube": 3}})


def test_views_are_values():
    space = gym.spaces.Discrete(2)
    assert ViewRequirement("a", space, [-2, -1]) == ViewRequirement("a", space, (-2, -1))
    assert ViewRequirement("a", shift=-1) != ViewRequirement("a", shift=-2)
    with pytest.raises(AttributeError):
        ViewRequirement().shift = 1  # type: ignore[misc]
