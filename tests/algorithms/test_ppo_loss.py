"""Losses of PPO and APPO with numbers that are not finite, and the adaptive weight of KL."""

import pytest
import torch
from loss_cases import DISCRETE, actor_critic, on_policy_rows

from rlrun.algorithms.appo import BEHAVIOUR_LOGP, appo_loss
from rlrun.algorithms.ppo import AdaptiveKL, clipped_value_losses, ppo_loss
from rlrun.data import columns as col
from rlrun.learning.returns import standardized

ARGUMENTS = {"clip_param": 0.2, "vf_loss_coeff": 0.5, "entropy_coeff": 0.01, "kl_coeff": 0.0}


def test_a_minibatch_of_one_row_gives_no_nan():
    assert standardized(torch.tensor([3.0])).tolist() == [0.0]


def test_a_squared_error_beyond_its_bound_teaches_nothing():
    values = torch.tensor([1.0, 3.0, -4.0], requires_grad=True)
    loss = clipped_value_losses(values, {"value_targets": torch.zeros(3)}, None, 9.5)[0].mean()
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * (1.0 + 9.0 + 9.5) / 3)
    assert values.grad.tolist() == pytest.approx([1 / 3, 1.0, 0.0])


@pytest.mark.parametrize(
    ("value", "predicted", "clip", "most", "half_square", "derivative"),
    [
        (3.0, 2.5, 1.0, None, 4.5, 3.0),  # near its prediction
        (3.0, 2.0, 1.0, None, 4.5, 3.0),  # at the bound
        (1.0, 2.0, 1.0, None, 0.5, 1.0),
        (3.0, 6.0, 1.0, None, 12.5, 0.0),  # the clipped one is worse, and does not move
        (-3.0, -6.0, 1.0, None, 12.5, 0.0),
        (6.0, 3.0, 1.0, None, 18.0, 6.0),  # the clipped one is better
        (2.0, -3.0, 1.0, None, 2.0, 0.0),  # both are equally bad
        (3.0, 9.0, None, None, 4.5, 3.0),
        (3.0, 3.0, 1.0, 9.0, 4.5, 3.0),  # at the largest square
        (3.0, 3.0, 1.0, 8.9, 4.45, 0.0),
    ],
)
def test_the_worse_of_the_clipped_and_the_unclipped_error_counts(
    value, predicted, clip, most, half_square, derivative
):
    """With a target of 0; the derivative is the loss's by the value."""
    rows = {"value_targets": torch.zeros(1), "vf_preds": torch.tensor([predicted])}
    losses, derivatives = clipped_value_losses(torch.tensor([value]), rows, clip, most)
    assert losses.item() == pytest.approx(half_square)
    assert derivatives.item() == derivative


@pytest.mark.parametrize(("loss", "more"), [(ppo_loss, {"vf_clip_param": None}), (appo_loss, {})])
def test_without_a_coefficient_an_infinite_kl_does_no_harm(loss, more):
    module = actor_critic(DISCRETE)
    rows = on_policy_rows(module, DISCRETE)
    rows[BEHAVIOUR_LOGP] = rows[col.ACTION_LOGP]
    rows[col.ACTION_DIST_INPUTS][0, 0] = float("inf")
    total, statistics = loss(module, rows, **ARGUMENTS, **more)
    assert torch.isfinite(total)
    assert "kl" not in statistics


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0.03, 0.3), (0.02, 0.2), (0.01, 0.2), (0.005, 0.2), (0.004, 0.1), (None, 0.2)],
)
def test_the_kl_coefficient_follows_the_kl(kl, expected):
    weight = AdaptiveKL(0.2, target=0.01)
    weight.adapt(kl)
    assert weight.coeff == pytest.approx(expected)


def test_the_kl_coefficient_is_bounded():
    weight = AdaptiveKL(0.2, target=0.01)
    for kl, bound in ((1.0, 1e3), (0.0, 1e-6)):
        for _ in range(200):
            weight.adapt(kl)
        assert weight.coeff == bound


def test_a_restored_kl_coefficient_goes_on_unless_it_started_elsewhere():
    weight, same, other = (AdaptiveKL(start, target=0.01) for start in (0.2, 0.2, 0.5))
    weight.adapt(1.0)
    for restored in (same, other):
        restored.set_state(weight.get_state())
    assert same.coeff == weight.coeff == pytest.approx(0.3)
    assert other.coeff == 0.5
