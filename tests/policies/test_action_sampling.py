"""Acting in numpy: frequencies, modes and log-probabilities against torch and scipy-free truth."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.policies.action_sampling import action_sampler
from rlrun.policies.distributions import build_distribution

SPACES = {
    "discrete": gym.spaces.Discrete(3),
    "multi_discrete": gym.spaces.MultiDiscrete([2, 4]),
    "multi_binary": gym.spaces.MultiBinary(3),
    "box": gym.spaces.Box(-1, 1, (2,), np.float32),
    "matrix_box": gym.spaces.Box(-1, 1, (2, 2), np.float32),
    "integer_box": gym.spaces.Box(-2, 1, (2,), np.int32),
    "tuple": gym.spaces.Tuple(
        (gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.MultiBinary(2))
    ),
    "dict": gym.spaces.Dict(
        {
            "b": gym.spaces.Discrete(2),
            "a": gym.spaces.Dict({"x": gym.spaces.MultiDiscrete([3, 2])}),
        }
    ),
}


@pytest.mark.parametrize("name", SPACES)
def test_actions_and_log_probabilities_agree_with_the_learners(name):
    sampler, distribution = action_sampler(SPACES[name]), build_distribution(SPACES[name])
    assert sampler.num_inputs == distribution.num_inputs
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(50, sampler.num_inputs)).astype(np.float32)
    noise = sampler.draw(rng, 50, 1)[:, 0]
    assert noise.shape == (50, sampler.num_noise)
    assert noise.dtype == np.float32
    actions = sampler.sample(inputs, noise)
    assert actions.shape == (50, *sampler.shape)
    assert actions.dtype == sampler.dtype
    expected = distribution.logp(torch.from_numpy(inputs), torch.from_numpy(actions)).numpy()
    np.testing.assert_allclose(sampler.log_prob(inputs, actions), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SPACES)
def test_the_mode_is_as_likely_as_any_sample(name):
    sampler = action_sampler(SPACES[name])
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(40, sampler.num_inputs)).astype(np.float32)
    best = sampler.log_prob(inputs, sampler.mode(inputs))
    for _ in range(20):
        actions = sampler.sample(inputs, sampler.draw(rng, 40, 1)[:, 0])
        assert (sampler.log_prob(inputs, actions) <= best + 1e-5).all()


def test_categorical_frequencies_follow_the_probabilities():
    sampler = action_sampler(gym.spaces.Discrete(3))
    logits = np.log(np.array([[0.2, 0.5, 0.3]], np.float32)).repeat(20_000, axis=0)
    noise = sampler.draw(np.random.default_rng(0), 20_000, 1)[:, 0]
    counts = np.bincount(sampler.sample(logits, noise), minlength=3)
    chi_square = ((counts - 20_000 * np.array([0.2, 0.5, 0.3])) ** 2 / (
        20_000 * np.array([0.2, 0.5, 0.3])
    )).sum()  # fmt: skip
    assert chi_square < 13.8  # 2 degrees of freedom, p = 0.001


def test_binary_frequencies_follow_the_probabilities():
    sampler = action_sampler(gym.spaces.MultiBinary(1))
    inputs = np.full((20_000, 1), np.log(0.8 / 0.2), np.float32)
    bits = sampler.sample(inputs, sampler.draw(np.random.default_rng(0), 20_000, 1)[:, 0])
    assert abs(bits.mean() - 0.8) < 4 * np.sqrt(0.8 * 0.2 / 20_000)


def test_gaussian_samples_have_the_mean_and_deviation_asked_for():
    sampler = action_sampler(gym.spaces.Box(-1, 1, (1,), np.float32))
    inputs = np.tile(np.array([[3.0, np.log(0.5)]], np.float32), (20_000, 1))
    actions = sampler.sample(inputs, sampler.draw(np.random.default_rng(0), 20_000, 1)[:, 0])
    assert abs(actions.mean() - 3.0) < 4 * 0.5 / np.sqrt(20_000)
    assert abs(actions.std() - 0.5) < 0.02


def test_extreme_logits_stay_finite():
    sampler = action_sampler(gym.spaces.Discrete(2))
    inputs = np.array([[1e4, -1e4]], np.float32)
    assert np.isfinite(sampler.log_prob(inputs, np.array([1]))).all()
    assert sampler.sample(inputs, np.zeros((1, 2), np.float32)).tolist() == [0]


def test_a_space_without_a_distribution_is_refused_by_name():
    with pytest.raises(TypeError, match="Text"):
        action_sampler(gym.spaces.Text(5))
