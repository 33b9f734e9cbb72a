"""Action distributions: torch formulas against torch.distributions, and sampling in numpy."""

import math
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.distributions as td
from torch import Tensor

from rlrun.config.problems import ConfigError
from rlrun.policies.action_sampling import (
    LOG_STD_BOUNDS,
    EpsilonGreedySampler,
    SquashedGaussianSampler,
    action_layout,
    action_sampler,
)
from rlrun.policies.distributions import (
    Categorical,
    build_distribution,
    squashed_sample,
    squashed_sample_vjp,
)

N = 6

SPACES: dict[str, gym.Space] = {
    "discrete": gym.spaces.Discrete(4),
    "discrete_from_5": gym.spaces.Discrete(3, start=5),
    "multi_discrete": gym.spaces.MultiDiscrete([3, 2, 5]),
    "multi_discrete_2d": gym.spaces.MultiDiscrete([[3, 2], [4, 2]]),
    "multi_binary": gym.spaces.MultiBinary(4),
    "box": gym.spaces.Box(-1, 1, (3,)),
    "box_2d": gym.spaces.Box(-1, 1, (2, 2)),
    "integer_box": gym.spaces.Box(-2, 1, (2,), np.int32),
    "dict": gym.spaces.Dict(
        {
            "b": gym.spaces.Box(-1, 1, (2,)),
            "a": gym.spaces.Discrete(3),
            "c": gym.spaces.Tuple((gym.spaces.MultiBinary(2), gym.spaces.MultiDiscrete([2, 3]))),
        }
    ),
}
each_space = pytest.mark.parametrize("space", SPACES.values(), ids=list(SPACES))


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


@each_space
def test_logp_and_entropy_agree_with_torch(space: gym.Space) -> None:
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
def test_kl_agrees_with_torch_and_is_zero_to_itself(space: gym.Space) -> None:
    distribution = build_distribution(space)
    p, q = sample_inputs(space, 1), sample_inputs(space, 2)
    pairs = zip(references(space, p), references(space, q), strict=True)
    expected = sum(td.kl_divergence(a, b) for a, b in pairs)
    torch.testing.assert_close(distribution.kl(p, q), expected)
    torch.testing.assert_close(distribution.kl(p, p), torch.zeros(N, dtype=p.dtype))
    assert (distribution.kl(p, q) > 0).all()


@each_space
def test_the_numpy_sampler_agrees_with_the_distribution(space: gym.Space) -> None:
    inputs = sample_inputs(space, 5, torch.float32)
    layout, sampler = action_layout(space), action_sampler(space)
    distribution = build_distribution(space)
    assert distribution.num_inputs == sampler.num_inputs == layout.num_inputs
    assert layout.num_columns == sampler.width
    noise = sampler.draw(np.random.default_rng(0), N, 1)[:, 0]
    assert (noise.shape, noise.dtype) == ((N, sampler.num_noise), np.float32)
    actions = sampler.sample(inputs.numpy(), noise)
    assert (actions.shape, actions.dtype) == ((N, *sampler.shape), sampler.dtype)
    assert sampler.shape == (() if layout.kind == "categorical" else (layout.num_columns,))
    expected = distribution.logp(inputs, torch.from_numpy(actions))
    mine = sampler.log_prob(inputs.numpy(), actions)
    np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


@each_space
def test_the_mode_is_as_likely_as_any_sample(space: gym.Space) -> None:
    sampler, rng = action_sampler(space), np.random.default_rng(1)
    inputs = rng.normal(size=(40, sampler.num_inputs)).astype(np.float32)
    best = sampler.log_prob(inputs, sampler.mode(inputs))
    for _ in range(20):
        actions = sampler.sample(inputs, sampler.draw(rng, 40, 1)[:, 0])
        assert (sampler.log_prob(inputs, actions) <= best + 1e-5).all()


def sampled(space: gym.Space, row: list[float], count: int = 20_000) -> np.ndarray:
    """As many actions for the same distribution inputs."""
    sampler = action_sampler(space)
    noise = sampler.draw(np.random.default_rng(0), count, 1)[:, 0]
    return sampler.sample(np.tile(np.array([row], np.float32), (count, 1)), noise)


def test_frequencies_follow_the_distribution() -> None:
    expected = 20_000 * np.array([0.2, 0.5, 0.3])
    actions = sampled(gym.spaces.Discrete(3), np.log(expected).tolist())
    chi_square = ((np.bincount(actions, minlength=3) - expected) ** 2 / expected).sum()
    assert chi_square < 13.8  # 2 degrees of freedom, p = 0.001
    pairs = sampled(gym.spaces.MultiDiscrete([2, 3]), [0.0, 0.0, *np.log(expected)])
    chi_square = ((np.bincount(pairs[:, 1], minlength=3) - expected) ** 2 / expected).sum()
    assert chi_square < 13.8
    bits = sampled(gym.spaces.MultiBinary(1), [np.log(0.8 / 0.2)])
    assert abs(bits.mean() - 0.8) < 4 * np.sqrt(0.8 * 0.2 / 20_000)
    numbers = sampled(gym.spaces.Box(-1, 1, (1,)), [3.0, np.log(0.5)])
    assert abs(numbers.mean() - 3.0) < 4 * 0.5 / np.sqrt(20_000)
    assert abs(numbers.std() - 0.5) < 0.02


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_is_the_share_of_uniform_actions_and_logp_says_so(epsilon: float) -> None:
    sampler = EpsilonGreedySampler(3)
    sampler.set_exploration({"epsilon": epsilon})
    noise = sampler.draw(np.random.default_rng(0), 1, 30_000)[0]
    assert noise.shape == (30_000, sampler.num_noise)
    values = np.tile(np.array([0.0, 5.0, -1.0], np.float32), (30_000, 1))
    actions = sampler.sample(values, noise)
    expected = np.full(3, epsilon / 3)
    expected[1] += 1 - epsilon
    np.testing.assert_allclose(np.bincount(actions, minlength=3) / 30_000, expected, atol=0.01)
    logp = sampler.log_prob(values[:3], np.arange(3))
    np.testing.assert_allclose(np.exp(logp), expected, rtol=1e-5)
    assert sampler.mode(values[:2]).tolist() == [1, 1]


def test_the_lowest_noise_there_is_explores_but_not_with_an_epsilon_of_0() -> None:
    """Which it is until another one is set."""
    sampler, values = EpsilonGreedySampler(3), np.array([[0.0, 0.0, 1.0]], np.float32)
    assert sampler.sample(values, np.zeros((1, 2), np.float32)).tolist() == [2]
    for epsilon, action in ((0.0, 2), (1e-6, 0)):
        sampler.set_exploration({"epsilon": epsilon})
        assert sampler.sample(values, np.zeros((1, 2), np.float32)).tolist() == [action]


@pytest.mark.parametrize("masked", [False, True])
def test_the_highest_noise_there_is_chooses_the_last_action(masked: bool) -> None:
    noise = np.array([[0.5, np.nextafter(np.float32(1), np.float32(0))]], np.float32)
    for number in (*range(1, 70), 1000, 1 << 20):
        sampler = EpsilonGreedySampler(number, masked=masked)
        sampler.set_exploration({"epsilon": 1.0})
        assert sampler.sample(np.zeros((1, number), np.float32), noise) == [number - 1]


def test_a_subclass_inherits_only_what_follows_from_the_formulas_that_it_keeps() -> None:
    """Joint and closed forms are of the class that has defined the formulas, or a later one."""

    class Named:
        def __init_subclass__(cls, name: str, **arguments: object) -> None:
            super().__init_subclass__(**arguments)
            cls.name = name

    class Same(Categorical, Named, name="same"):
        pass

    class Sharper(Categorical):
        def logp(self, inputs: Tensor, actions: Tensor) -> Tensor:
            return super().logp(2.0 * inputs, actions)

    class Calm(Categorical):
        def entropy(self, inputs: Tensor) -> Tensor:
            return torch.zeros(len(inputs))

    class SharperWithMore(Sharper):
        def kl(self, inputs_p: Tensor, inputs_q: Tensor) -> Tensor:
            return super(Sharper, self).kl(2.0 * inputs_p, 2.0 * inputs_q)

        def logp_entropy(self, inputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
            return self.logp(inputs, actions), torch.ones(len(inputs))

    kinds = (Categorical, Same, Sharper, Calm, SharperWithMore)
    assert [kind.has_kl for kind in kinds] == [True, True, False, True, True]
    assert [kind.has_vjp for kind in kinds] == [True, False, False, False, False]
    inputs, actions = torch.randn(N, 3), torch.arange(N) % 3
    with pytest.raises(TypeError, match="Sharper has no KL divergence"):
        Sharper(3).kl(inputs, inputs)
    assert Same.logp_entropy is Categorical.logp_entropy
    assert Same.name == "same"
    parent = Categorical(3)
    sharp, entropy = parent.logp(2.0 * inputs, actions), parent.entropy(inputs)
    torch.testing.assert_close(Sharper(3).logp_entropy(inputs, actions), (sharp, entropy))
    calm = parent.logp(inputs, actions), torch.zeros(N)
    torch.testing.assert_close(Calm(3).logp_entropy(inputs, actions), calm)
    both = SharperWithMore(3).logp_entropy(inputs, actions)
    torch.testing.assert_close(both, (sharp, torch.ones(N)))


def test_extreme_inputs_stay_finite() -> None:
    categorical, sampler = (make(gym.spaces.Discrete(3)) for make in (
        build_distribution, action_sampler,
    ))  # fmt: skip
    logits = torch.tensor([[1e4, -1e4, 0.0]])
    for value in categorical.logp_entropy(logits, torch.tensor([1])):
        assert value.isfinite().all()
    assert categorical.kl(logits, logits.flip(-1)).isfinite().all()
    assert np.isfinite(sampler.log_prob(logits.numpy(), np.array([1]))).all()
    assert sampler.sample(logits.numpy(), np.zeros((1, 3), np.float32)).tolist() == [0]
    bits = build_distribution(gym.spaces.MultiBinary(2))
    for value in bits.logp_entropy(torch.tensor([[200.0, -200.0]]), torch.tensor([[0.0, 1.0]])):
        assert value.isfinite().all()


def test_integer_boxes_are_categories() -> None:
    space = gym.spaces.Box(np.array([2, -1]), np.array([4, 0]), dtype=np.int64)
    layout = action_layout(space)
    assert (layout.kind, layout.leaves[0].categories) == ("multi_categorical", (3, 2))
    logp = build_distribution(space).logp(torch.zeros(1, 5), torch.tensor([[2, 1]]))
    assert logp.item() == pytest.approx(-np.log(6))


@pytest.mark.parametrize("make", [build_distribution, action_sampler])
def test_spaces_without_a_distribution_are_named(make: Callable[[gym.Space], object]) -> None:
    with pytest.raises(ConfigError, match="Text"):
        make(gym.spaces.Text(5))
    unbounded = gym.spaces.Box(0, np.iinfo(np.int64).max, (1,), np.int64)
    unbounded.bounded_above[:] = False
    with pytest.raises(ConfigError, match="unboundedly many"):
        make(unbounded)
    with pytest.raises(ConfigError, match="among 18,446,744,073,709,551,616 categories"):
        make(gym.spaces.Box(-(2**63), 2**63 - 1, (1,), np.int64))
    assert action_layout(gym.spaces.Discrete(10_000_000)).num_inputs == 10_000_000
    for nothing in (gym.spaces.Tuple(()), gym.spaces.Box(-1, 1, (0,))):
        with pytest.raises(ConfigError, match="no numbers to choose"):
            make(nothing)


# -- a normal distribution squashed by tanh --------------------------------------------------------


def slow_squashed_logp(mean: list[float], log_std: list[float], noise: list[float]) -> float:
    """log N(u; mean, std) - log (1 - tanh(u)^2), dimension by dimension, in Python's floats."""
    total = 0.0
    for m, s, e in zip(mean, log_std, noise, strict=True):
        std = math.exp(min(max(s, LOG_STD_BOUNDS[0]), LOG_STD_BOUNDS[1]))
        u = m + std * e
        density = math.exp(-0.5 * ((u - m) / std) ** 2) / (std * math.sqrt(2 * math.pi))
        total += math.log(density) - math.log(1 - math.tanh(u) ** 2)
    return total


def test_the_squashed_log_probability_is_of_the_squashed_density() -> None:
    rng = np.random.default_rng(1)
    inputs = torch.tensor(rng.normal(size=(40, 6)), dtype=torch.float64)
    inputs[0, 3:] = torch.tensor([3.0, -25.0, 0.0])  # beyond the bounds on either side
    noise = torch.tensor(rng.normal(size=(40, 3)), dtype=torch.float64)
    actions, logp = squashed_sample(inputs, noise)
    for row, given, value in zip(inputs.tolist(), noise.tolist(), logp.tolist(), strict=True):
        assert value == pytest.approx(slow_squashed_logp(row[:3], row[3:], given))
    std = inputs[1, 3:].exp()
    torch.testing.assert_close(actions[1], torch.tanh(inputs[1, :3] + std * noise[1]))


def test_squashed_samples_in_numpy_are_those_of_torch_also_far_from_zero() -> None:
    means, log_stds = [-200.0, -20.0, -1.0, 0.0, 1.0, 20.0, 200.0], [-30.0, -2.0, 0.0, 5.0]
    inputs = torch.cartesian_prod(torch.tensor(means), torch.tensor(log_stds))
    noise = torch.linspace(-3.0, 3.0, len(inputs))[:, None]
    actions, logp, _ = squashed_sample_vjp(inputs.numpy(), noise.numpy())
    assert np.isfinite(logp).all()
    for mine, expected in zip((actions, logp), squashed_sample(inputs, noise), strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), expected)


def test_the_squashed_density_integrates_to_one() -> None:
    """Over a grid of actions, by the sampler's `log_prob` of each."""
    grid = np.linspace(-1, 1, 20_001)[1:-1].astype(np.float32)[:, None]
    inputs = np.tile(np.array([[0.3, -0.5]], dtype=np.float32), (len(grid), 1))
    density = np.exp(SquashedGaussianSampler(1).log_prob(inputs, grid).astype(np.float64))
    assert density.sum() * 1e-4 == pytest.approx(1.0, abs=1e-3)


def test_squashed_sampler_and_loss_agree() -> None:
    sampler, rng = SquashedGaussianSampler(2), np.random.default_rng(0)
    inputs = rng.normal(size=(30, 4)).astype(np.float32)
    inputs[:, 2] = 9.0  # more than the bound
    noise = sampler.draw(rng, 1, 30)[0] * 0.1
    actions = sampler.sample(inputs, noise)
    expected, logp = squashed_sample(torch.from_numpy(inputs), torch.from_numpy(noise))
    np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sampler.log_prob(inputs, actions), logp, rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(sampler.mode(inputs), np.tanh(inputs[:, :2]), rtol=1e-6)


@pytest.mark.parametrize("u", [-20.0, 20.0, 300.0])
def test_it_is_finite_with_its_gradient_where_tanh_is_flat(u: float) -> None:
    inputs = torch.tensor([[u, 0.0]], requires_grad=True)
    actions, logp = squashed_sample(inputs, torch.zeros(1, 1))
    assert actions.abs().item() == 1.0
    assert logp.item() == pytest.approx(2 * abs(u) - 2 * math.log(2) - 0.5 * math.log(2 * math.pi))
    logp.sum().backward()
    assert inputs.grad.isfinite().all()
    # d/du of -log(1 - tanh(u)^2) is 2 tanh(u).
    assert inputs.grad[0, 0].item() == pytest.approx(2 * math.copysign(1, u), rel=1e-5)
