"""Bellman targets, and value rescaling against the paper's formulas in double precision."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlrun.algorithms.targets import EPSILON, rescale, unrescale

VALUES = [0.0, 1e-4, -1e-4, 0.3, -0.3, 1.0, -1.0, 17.0, -250.0, 4e3, -6e4, 1e6]


def h(x):
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + EPSILON * x


def h_inverse(x):
    root = (math.sqrt(1 + 4 * EPSILON * (abs(x) + 1 + EPSILON)) - 1) / (2 * EPSILON)
    return math.copysign(root**2 - 1, x)


@pytest.mark.parametrize("x", VALUES)
def test_h_and_its_inverse_are_the_papers(x):
    assert rescale(torch.tensor(x)).item() == pytest.approx(h(x), rel=1e-5, abs=1e-7)
    assert unrescale(torch.tensor(h(x))).item() == pytest.approx(x, rel=1e-5, abs=1e-6)
    assert unrescale(torch.tensor(x)).item() == pytest.approx(h_inverse(x), rel=1e-5, abs=1e-6)


@given(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32))
def test_the_better_of_two_values_stays_the_better(a, b):
    assert (rescale(torch.tensor(a)) >= rescale(torch.tensor(b))) == (a >= b) or math.isclose(
        a, b, rel_tol=1e-5, abs_tol=1e-6
    )
