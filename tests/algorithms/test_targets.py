"""Bellman targets, and value rescaling against the paper's formulas in double precision."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlrun.algorithms.targets import (
    EPSILON,
    TargetNetwork,
    bellman_targets,
    rescale,
    unrescale,
    values_of_best,
)
from rlrun.policies.flat_parameters import FlatParameters

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
    exact = torch.tensor(x, dtype=torch.float64)
    assert rescale(exact).item() == pytest.approx(h(x), rel=1e-9, abs=1e-12)
    assert unrescale(exact).item() == pytest.approx(h_inverse(x), rel=1e-7, abs=1e-9)


@given(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32))
def test_the_better_of_two_values_stays_the_better(a, b):
    assert (rescale(torch.tensor(a)) >= rescale(torch.tensor(b))) == (a >= b) or math.isclose(
        a, b, rel_tol=1e-5, abs_tol=1e-6
    )


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
@pytest.mark.parametrize("rescaled", [False, True])
def test_a_target_is_the_reward_and_the_discounted_value_but_after_a_termination(kind, rescaled):
    rewards, discounts, values = [1.0, -2.0, 3.0], [0.5, 0.25, 0.9], [8.0, -6.0, math.nan]
    terminateds = [False, False, True]
    columns = zip(rewards, discounts, values, terminateds, strict=True)
    expected = [
        reward + (0.0 if over else discount * (h_inverse(value) if rescaled else value))
        for reward, discount, value, over in columns
    ]
    rows = {
        "rewards": kind(rewards),
        "discounts": kind(discounts),
        "terminateds": kind(terminateds),
    }
    found = bellman_targets(rows, kind(values), rescaled=rescaled).tolist()
    assert found == pytest.approx([h(x) for x in expected] if rescaled else expected, rel=1e-5)


def test_the_value_of_the_best_action_is_chosen_by_the_same_values_or_others():
    values = torch.tensor([[1.0, 3.0, 2.0], [6.0, 4.0, 5.0]])
    selection_values = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 0.5]])
    assert values_of_best(values, values).tolist() == [3.0, 6.0]
    assert values_of_best(values, selection_values).tolist() == [2.0, 4.0]


def test_a_target_network_is_copied_or_follows_and_is_due_every_so_many_steps():
    source, own = (torch.nn.BatchNorm1d(1) for _ in range(2))  # a weight, a bias, and buffers
    learner = SimpleNamespace(device=torch.device("cpu"), parameters=FlatParameters(source))
    target = TargetNetwork(own, learner)
    assert not own.training
    assert not any(parameter.requires_grad for parameter in own.parameters())
    learner.parameters.vector.copy_(torch.tensor([4.0, 8.0, 12.0, 16.0]))
    target.follow(0.25)
    assert own.weight.item() == 1.0 + 0.25 * (4.0 - 1.0)
    assert own.bias.item() == 0.25 * 8.0
    assert (own.running_mean.item(), own.running_var.item()) == (12.0, 16.0)
    target.copy()
    assert (own.weight.item(), own.bias.item()) == (4.0, 8.0)
    assert [target.due(steps, 10) for steps in (9, 10, 19, 21, 30, 31)] == [
        *(False, True, False, True),
        *(False, True),
    ]
    other = TargetNetwork(torch.nn.BatchNorm1d(1), learner)
    learner.parameters.vector.fill_(0.0)
    other.set_state(target.get_state())
    assert other.module.weight.item() == 4.0
    assert [other.due(steps, 10) for steps in (40, 41)] == [False, True]
