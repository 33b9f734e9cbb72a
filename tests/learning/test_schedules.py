import pytest

from rlrun.learning.learner import value_at


@pytest.mark.parametrize(
    ("env_steps", "expected"),
    [(0, 1.0), (50, 0.75), (100, 0.5), (150, 0.25), (200, 0.0), (900, 0.0)],
)
def test_linear_between_points_and_constant_after(env_steps, expected):
    schedule = ((0, 1.0), (100, 0.5), (200, 0.0))
    assert value_at(schedule, env_steps) == pytest.approx(expected)


def test_a_number_is_a_constant():
    assert value_at(3e-4, 10**9) == 3e-4
