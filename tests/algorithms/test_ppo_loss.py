"""PPO's formulas against slow transcriptions, and the traps that implementations fall into."""

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.distributions as td
from loss_cases import actor_critic, check_gradients, on_policy_rows

from rlrun.algorithms.ppo import AdaptiveKL, clipped_value_loss, ppo_loss
from rlrun.data import columns as col
from rlrun.learning.returns import standardized, standardized_advantages

SPACES = {
    "discrete": gym.spaces.Discrete(4),
    "continuous": gym.spaces.Box(-1, 1, (2,), np.float32),
    "multi_discrete": gym.spaces.MultiDiscrete([2, 3]),
    "multi_binary": gym.spaces.MultiBinary(3),
}
ARGUMENTS = {
    "clip_param": 0.2,
    "vf_loss_coeff": 0.5,
    "vf_clip_param": None,
    "entropy_coeff": 0.01,
    "kl_coeff": 0.0,
}


def distributions(name, inputs):
    """One of torch's own for each independent part of the action."""
    if name == "continuous":
        mean, log_std = inputs.chunk(2, -1)
        return [td.Independent(td.Normal(mean, log_std.exp()), 1)]
    if name == "multi_binary":
        return [td.Independent(td.Bernoulli(logits=inputs), 1)]
    sizes = [2, 3] if name == "multi_discrete" else [4]
    return [td.Categorical(logits=logits) for logits in inputs.split(sizes, -1)]


def slow_loss(name, module, rows, kl_coeff):
    """Equations 7, 8 and 9, row by row, with torch.distributions for the probabilities."""
    with torch.no_grad():
        outputs = module.forward_train(rows)
    new = distributions(name, outputs[col.ACTION_DIST_INPUTS])
    old = distributions(name, rows[col.ACTION_DIST_INPUTS])
    actions = rows[col.ACTIONS]
    parts = actions.unbind(-1) if name == "multi_discrete" else [actions]
    logp = sum(each.log_prob(part) for each, part in zip(new, parts, strict=True))
    kl = sum(td.kl_divergence(p, q) for p, q in zip(old, new, strict=True)).mean().item()
    entropy = sum(each.entropy() for each in new).mean().item()
    policy = value = approx_kl = 0.0
    n = len(logp)
    for i, advantage in enumerate(rows[col.ADVANTAGES].tolist()):
        ratio = np.exp((logp[i] - rows[col.ACTION_LOGP][i]).item())
        policy -= min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage) / n
        error = outputs[col.VF_PREDS][i].item() - rows[col.VALUE_TARGETS][i].item()
        value += 0.5 * error**2 / n
        approx_kl += (ratio - 1 - np.log(ratio)) / n
    return policy + 0.5 * value - 0.01 * entropy + kl_coeff * kl, approx_kl


@pytest.mark.parametrize("kl_coeff", [0.0, 0.7])
@pytest.mark.parametrize("name", SPACES)
def test_the_loss_is_the_papers(name, kl_coeff):
    module = actor_critic(SPACES[name])
    rows = on_policy_rows(module, SPACES[name])
    loss, statistics = ppo_loss(module, rows, **{**ARGUMENTS, "kl_coeff": kl_coeff})
    expected, approx_kl = slow_loss(name, module, rows, kl_coeff)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert statistics["approx_kl"].item() == pytest.approx(approx_kl, rel=1e-3)
    assert statistics["clip_fraction"] > 0
    assert all(not value.requires_grad for value in statistics.values())


@pytest.mark.parametrize("name", SPACES)
def test_the_gradient_agrees_with_finite_differences(name, float64):
    module = actor_critic(SPACES[name])
    rows = float64(on_policy_rows(module, SPACES[name], n=5))
    arguments = {**ARGUMENTS, "kl_coeff": 0.3}
    check_gradients(float64(module), lambda: ppo_loss(module, rows, **arguments)[0])


def test_gradient_stops_where_the_ratio_is_clipped_and_the_advantage_agrees():
    module = actor_critic(SPACES["discrete"])
    rows = on_policy_rows(module, SPACES["discrete"], n=1, drift=0.0)
    rows[col.ACTION_LOGP] = rows[col.ACTION_LOGP] - 1.0  # ratio e: far above 1.2
    rows[col.ADVANTAGES] = torch.ones(1)
    arguments = {**ARGUMENTS, "entropy_coeff": 0.0, "vf_loss_coeff": 0.0}
    loss, statistics = ppo_loss(module, rows, **arguments)
    loss.backward()
    assert loss.item() == pytest.approx(-1.2)
    assert statistics["clip_fraction"] == 1.0
    assert all(not p.grad.any() for p in module.parameters() if p.grad is not None)
    # A negative advantage is not protected by the clip: the gradient must bring the ratio back.
    rows[col.ADVANTAGES] = -torch.ones(1)
    loss, _ = ppo_loss(module, rows, **arguments)
    loss.backward()
    assert any(p.grad.any() for p in module.parameters() if p.grad is not None)


def test_a_minibatch_of_one_row_gives_no_nan():
    assert standardized(torch.tensor([3.0])).tolist() == [0.0]


def test_whole_minibatches_are_standardized_and_nothing_else_in_them():
    rows = {col.ADVANTAGES: torch.tensor([1.0, 2.0, 6.0]), col.ACTIONS: torch.arange(3)}
    prepared = standardized_advantages(rows)
    expected = (np.array([1, 2, 6]) - 3) / np.sqrt(14 / 3)
    np.testing.assert_allclose(prepared[col.ADVANTAGES], expected, rtol=1e-6)
    assert prepared[col.ACTIONS] is rows[col.ACTIONS]
    assert rows[col.ADVANTAGES].tolist() == [1, 2, 6]


def test_value_clipping_takes_the_worse_of_both_squares():
    # Clipped, within the clip, and clipped to what is nearer by.
    values, old, targets = (
        torch.tensor([3.0, 1.1, 3.0]),
        torch.tensor([1.0, 1.0, 1.0]),
        torch.tensor([2.9, 5.0, 1.2]),
    )
    clipped = old + (values - old).clamp(-0.5, 0.5)
    expected = 0.5 * np.mean(
        [max((v - t) ** 2, (c - t) ** 2) for v, t, c in zip(values, targets, clipped, strict=True)]
    )
    assert clipped_value_loss(values, old, targets, 0.5).item() == pytest.approx(expected)


def test_without_a_coefficient_an_infinite_kl_does_no_harm():
    module = actor_critic(SPACES["discrete"])
    rows = on_policy_rows(module, SPACES["discrete"])
    rows[col.ACTION_DIST_INPUTS][0, 0] = float("inf")
    loss, statistics = ppo_loss(module, rows, **ARGUMENTS)
    assert torch.isfinite(loss)
    assert "kl" not in statistics


@pytest.mark.parametrize(
    ("kl", "expected"), [(0.03, 0.3), (0.02, 0.2), (0.01, 0.2), (0.004, 0.1), (None, 0.2)]
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
