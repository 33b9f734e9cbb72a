"""Formulas held against torch.distributions and against the numpy sampler."""

from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.distributions as td
from torch import Tensor

from rlrun.policies.action_sampling import action_layout, action_sampler
from rlrun.policies.distributions import Distribution, build_distribution

N = 6

SPACES: dict[str, gym.Space] = {
    "discrete": gym.spaces.Discrete(4),
    "discrete_from_5": gym.spaces.Discrete(3, start=5),
    "multi_discrete": gym.spaces.MultiDiscrete([3, 2, 5]),
    "multi_discrete_2d": gym.spaces.MultiDiscrete([[3, 2], [4, 2]]),
    "multi_binary": gym.spaces.MultiBinary(4),
    "box": gym.spaces.Box(-1, 1, (3,)),
    "box_2d": gym.spaces.Box(-1, 1, (2, 2)),
    "dict": gym.spaces.Dict(
        {
            "b": gym.spaces.Box(-1, 1, (2,)),
            "a": gym.spaces.Discrete(3),
            "c": gym.spaces.Tuple((gym.spaces.MultiBinary(2), gym.spaces.MultiDiscrete([2, 3]))),
        }
    ),
}


def references(space: gym.Space, inputs: Tensor) -> list[td.Distribution]:
    """One torch distribution with batch shape [N] for each independent part, in column order."""
    parts: list[td.Distribution] = []
    for leaf in action_layout(space).leaves:
        x = inputs[:, leaf.inputs]
        if leaf.kind == "gaussian":
            mean, log_std = x.chunk(2, -1)
            parts.append(td.Independent(td.Normal(mean, log_std.exp()), 1))
        elif leaf.kind == "bernoulli":
            parts.append(td.Independent(td.Bernoulli(logits=x), 1))
        else:
            parts += [td.Categorical(logits=y) for y in x.split(list(leaf.categories), -1)]
    return parts


def reference_logp(space: gym.Space, inputs: Tensor, actions: Tensor) -> Tensor:
    actions = actions.reshape(len(actions), -1)
    total, column = torch.zeros(len(inputs), dtype=inputs.dtype), 0
    for part in references(space, inputs):
        width = part.event_shape.numel()
        value = actions[:, column : column + width]
        total += part.log_prob(value if part.event_shape else value[:, 0])
        column += width
    return total


def sample_inputs(space: gym.Space, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, action_layout(space).num_inputs, generator=generator, dtype=dtype)


def sample_actions(space: gym.Space, inputs: Tensor) -> Tensor:
    sampler = action_sampler(space)
    noise = sampler.draw(np.random.default_rng(0), 1, N)[0]
    return torch.as_tensor(sampler.sample(inputs.float().numpy(), noise))


each_space = pytest.mark.parametrize("name", SPACES)


@each_space
def test_logp_and_entropy_are_those_of_torch(name: str) -> None:
    space = SPACES[name]
    distribution, inputs = build_distribution(space), sample_inputs(space)
    actions = sample_actions(space, inputs)
    logp, entropy = distribution.logp(inputs, actions), distribution.entropy(inputs)
    assert logp.shape == entropy.shape == (N,)
    expected_entropy = sum(part.entropy() for part in references(space, inputs))
    torch.testing.assert_close(logp, reference_logp(space, inputs, actions))
    torch.testing.assert_close(entropy, expected_entropy)
    both = distribution.logp_entropy(inputs, actions)
    torch.testing.assert_close(both, (logp, entropy), rtol=1e-12, atol=1e-12)


@each_space
def test_kl_is_that_of_torch_and_zero_to_itself(name: str) -> None:
    space = SPACES[name]
    distribution = build_distribution(space)
    p, q = sample_inputs(space, 1), sample_inputs(space, 2)
    pairs = zip(references(space, p), references(space, q), strict=True)
    expected = sum(td.kl_divergence(a, b) for a, b in pairs)
    torch.testing.assert_close(distribution.kl(p, q), expected)
    torch.testing.assert_close(distribution.kl(p, p), torch.zeros(N, dtype=p.dtype))
    assert (distribution.kl(p, q) > 0).all()


@each_space
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    space = SPACES[name]
    distribution = build_distribution(space)
    inputs, other = sample_inputs(space, 3).requires_grad_(), sample_inputs(space, 4)
    actions = sample_actions(space, other)
    functions: list[Callable[[Tensor], Tensor]] = [
        lambda x: distribution.logp(x, actions),
        lambda x: distribution.logp_entropy(x, actions)[1],
        lambda x: distribution.kl(other, x),
        lambda x: distribution.kl(x, other),
    ]
    for function in functions:
        assert torch.autograd.gradcheck(function, (inputs,), fast_mode=True)


@each_space
def test_the_numpy_sampler_agrees_on_the_log_probability(name: str) -> None:
    space = SPACES[name]
    inputs = sample_inputs(space, 5, torch.float32)
    actions = sample_actions(space, inputs)
    layout, sampler = action_layout(space), action_sampler(space)
    distribution = build_distribution(space)
    assert distribution.num_inputs == sampler.num_inputs == layout.num_inputs
    assert layout.num_columns == sampler.width
    assert tuple(actions.shape[1:]) == (
        () if layout.kind == "categorical" else (layout.num_columns,)
    )
    mine = sampler.log_prob(inputs.numpy(), actions.numpy())
    np.testing.assert_allclose(mine, distribution.logp(inputs, actions), rtol=1e-5, atol=1e-6)


def test_extreme_inputs_stay_finite() -> None:
    categorical = build_distribution(gym.spaces.Discrete(3))
    logits = torch.tensor([[1e4, -1e4, 0.0]])
    for value in categorical.logp_entropy(logits, torch.tensor([1])):
        assert value.isfinite().all()
    assert categorical.kl(logits, logits.flip(-1)).isfinite().all()
    bits = build_distribution(gym.spaces.MultiBinary(2))
    for value in bits.logp_entropy(torch.tensor([[200.0, -200.0]]), torch.tensor([[0.0, 1.0]])):
        assert value.isfinite().all()


def test_a_hand_worked_gaussian() -> None:
    gaussian: Distribution = build_distribution(gym.spaces.Box(-1, 1, (2,)))
    inputs = torch.zeros(1, 4)
    at_mean, one_off = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])
    log_2pi = float(np.log(2 * np.pi))
    assert gaussian.logp(inputs, at_mean).item() == pytest.approx(-log_2pi)
    assert gaussian.logp(inputs, one_off).item() == pytest.approx(-log_2pi - 0.5)
    assert gaussian.entropy(inputs).item() == pytest.approx(1 + log_2pi)


def test_integer_boxes_are_categories() -> None:
    space = gym.spaces.Box(np.array([2, -1]), np.array([4, 0]), dtype=np.int64)
    layout = action_layout(space)
    assert (layout.kind, layout.leaves[0].categories) == ("multi_categorical", (3, 2))
    logp = build_distribution(space).logp(torch.zeros(1, 5), torch.tensor([[2, 1]]))
    assert logp.item() == pytest.approx(-np.log(6))


def test_spaces_nobody_can_act_in_are_named() -> None:
    with pytest.raises(TypeError, match="Text"):
        build_distribution(gym.spaces.Text(5))
    unbounded = gym.spaces.Box(0, np.iinfo(np.int64).max, (1,), np.int64)
    unbounded.bounded_above[:] = False
    with pytest.raises(ValueError, match="unboundedly many"):
        build_distribution(unbounded)
