"""The squashed normal distribution against its density, and at the edge of float32."""

import math

import numpy as np
import pytest
import torch

from rlrun.policies.action_sampling import LOG_STD_BOUNDS, SquashedGaussianSampler
from rlrun.policies.distributions import squashed_sample


def slow_logp(mean, log_std, noise):
    """log N(u; mean, std) - log (1 - tanh(u)^2), dimension by dimension, in Python's floats."""
    total = 0.0
    for m, s, e in zip(mean, log_std, noise, strict=True):
        std = math.exp(min(max(s, LOG_STD_BOUNDS[0]), LOG_STD_BOUNDS[1]))
        u = m + std * e
        density = math.exp(-0.5 * ((u - m) / std) ** 2) / (std * math.sqrt(2 * math.pi))
        total += math.log(density) - math.log(1 - math.tanh(u) ** 2)
    return total


def test_the_log_probability_is_that_of_the_squashed_density():
    rng = np.random.default_rng(1)
    inputs = torch.tensor(rng.normal(size=(40, 6)), dtype=torch.float64)
    inputs[0, 3:] = torch.tensor([3.0, -25.0, 0.0])  # beyond the bounds on either side
    noise = torch.tensor(rng.normal(size=(40, 3)), dtype=torch.float64)
    actions, logp = squashed_sample(inputs, noise)
    for i in range(40):
        mean, log_std = inputs[i, :3].tolist(), inputs[i, 3:].tolist()
        assert logp[i].item() == pytest.approx(slow_logp(mean, log_std, noise[i].tolist()))
    std = inputs[1, 3:].exp()
    torch.testing.assert_close(actions[1], torch.tanh(inputs[1, :3] + std * noise[1]))


def test_the_density_integrates_to_one():
    """Over a grid of actions: what `log_prob` of the sampler says of each."""
    sampler = SquashedGaussianSampler(1)
    grid = np.linspace(-1, 1, 20_001)[1:-1].astype(np.float32)[:, None]
    inputs = np.tile(np.array([[0.3, -0.5]], dtype=np.float32), (len(grid), 1))
    density = np.exp(sampler.log_prob(inputs, grid).astype(np.float64))
    assert density.sum() * 1e-4 == pytest.approx(1.0, abs=1e-3)


def test_sampler_and_loss_agree():
    sampler = SquashedGaussianSampler(2)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(30, 4)).astype(np.float32)
    inputs[:, 2] = 9.0  # more than the bound
    noise = sampler.draw(rng, 1, 30)[0] * 0.1
    actions = sampler.sample(inputs, noise)
    expected, logp = squashed_sample(torch.from_numpy(inputs), torch.from_numpy(noise))
    np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sampler.log_prob(inputs, actions), logp, rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(sampler.mode(inputs), np.tanh(inputs[:, :2]), rtol=1e-6)


@pytest.mark.parametrize("u", [-20.0, 20.0, 300.0])
def test_it_is_finite_with_its_gradient_where_tanh_is_flat(u):
    inputs = torch.tensor([[u, 0.0]], requires_grad=True)
    actions, logp = squashed_sample(inputs, torch.zeros(1, 1))
    assert actions.abs().item() == 1.0
    assert logp.item() == pytest.approx(2 * abs(u) - 2 * math.log(2) - 0.5 * math.log(2 * math.pi))
    logp.sum().backward()
    assert inputs.grad.isfinite().all()
    # d/du of -log(1 - tanh(u)^2) is 2 tanh(u).
    assert inputs.grad[0, 0].item() == pytest.approx(2 * math.copysign(1, u), rel=1e-5)


def test_gradients_are_those_of_finite_differences():
    rng = np.random.default_rng(2)
    inputs = torch.tensor(rng.normal(size=(5, 4)), dtype=torch.float64, requires_grad=True)
    noise = torch.tensor(rng.normal(size=(5, 2)), dtype=torch.float64)
    weights = torch.tensor(rng.normal(size=(5, 2)), dtype=torch.float64)

    def value(x):
        actions, logp = squashed_sample(x, noise)
        return (logp.sum() + (weights * actions).sum()) * 0.7

    value(inputs).backward()
    for i in range(5):
        for j in range(4):
            ends = []
            for step in (1e-6, -1e-6):
                moved = inputs.detach().clone()
                moved[i, j] += step
                ends.append(value(moved).item())
            difference = (ends[0] - ends[1]) / 2e-6
            assert inputs.grad[i, j].item() == pytest.approx(difference, rel=1e-6, abs=1e-8)
