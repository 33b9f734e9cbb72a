"""Ways to explore: what the actions are, beside formulas written out here."""

import gymnasium as gym
import numpy as np
import pytest

from rlrun.algorithms.dqn import DQNConfig
from rlrun.algorithms.ppo import PPOConfig
from rlrun.algorithms.sac import SACConfig
from rlrun.config.problems import ConfigError
from rlrun.config.schema import ExplorationConfig
from rlrun.policies.action_sampling import (
    FORBIDDEN,
    CategoricalSampler,
    EpsilonGreedySampler,
    SquashedGaussianSampler,
)
from rlrun.policies.exploration import exploring_sampler

COUNT = 40_000
DISCRETE, BOX = gym.spaces.Discrete(4), gym.spaces.Box(-3.0, 5.0, (2,))
VALUES = np.array([3.0, 1.0, FORBIDDEN, 2.5], np.float32)


def exploring(sampler, space=DISCRETE, present=None, **settings):
    """A sampler of `exploration` with these settings, as a run has set it at present."""
    made = exploring_sampler(sampler, ExplorationConfig(**settings), space)
    if present is not None:
        made.set_exploration(present)
    return made


def drawn(sampler, row):
    noise = sampler.draw(np.random.default_rng(3), 1, COUNT)[0]
    return sampler.sample(np.tile(row, (COUNT, 1)), noise), noise


@pytest.mark.parametrize("temperature", [1e-6, 0.7, 40.0, 1e9])
def test_soft_q_draws_in_proportion_to_exponentials_of_allowed_values(temperature):
    greedy = EpsilonGreedySampler(4, masked=True)
    sampler = exploring(greedy, type="SoftQ", present={"temperature": temperature})

    actions, _ = drawn(sampler, VALUES)

    allowed = np.array([True, True, False, True])
    weights = np.exp((VALUES.astype(np.float64) - 3.0) / temperature) * allowed
    expected = weights / weights.sum()
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / COUNT, expected, atol=0.012)
    assert (actions != 2).all()
    logp = sampler.log_prob(np.tile(VALUES, (4, 1)), np.arange(4))
    np.testing.assert_allclose(np.exp(logp), expected, atol=1e-6)
    assert sampler.mode(VALUES[None]) == [0]


@pytest.mark.parametrize("own", [EpsilonGreedySampler(4, masked=True), CategoricalSampler(4)])
@pytest.mark.parametrize("always", [True, False])
def test_random_actions_are_uniform_over_those_allowed(own, always):
    if always:
        sampler = exploring(own, type="Random")
    elif isinstance(own, EpsilonGreedySampler):
        sampler = exploring(own, random_steps=5, present={"epsilon": 1.0})
    else:
        sampler = exploring(own, random_steps=5, present={"random": 1.0})

    actions, _ = drawn(sampler, VALUES)

    expected = np.array([1, 1, 0, 1]) / 3
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / COUNT, expected, atol=0.012)
    logp = sampler.log_prob(np.tile(VALUES, (2, 1)), np.array([0, 3]))
    np.testing.assert_allclose(logp, -np.log(3), rtol=1e-5)


def test_random_steps_of_a_box_are_uniform_and_then_the_policy_acts():
    sampler = exploring(SquashedGaussianSampler(2), BOX, random_steps=5, present={"random": 1.0})
    row = np.array([2.0, -2.0, 0.0, 0.0], np.float32)

    actions, noise = drawn(sampler, row)

    for column in actions.T:
        np.testing.assert_allclose(np.sort(column), np.linspace(-1, 1, COUNT), atol=0.02)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.02
    sampler.set_exploration({"random": 0.0})
    inputs = np.tile(row, (COUNT, 1))
    np.testing.assert_allclose(sampler.sample(inputs, noise), np.tanh(row[:2] + noise), atol=1e-6)


def test_gaussian_noise_is_added_to_the_mode_and_clipped():
    own = SquashedGaussianSampler(2)
    sampler = exploring(own, BOX, type="GaussianNoise", stddev=0.3, present={"scale": 2.0})
    row = np.array([0.5, -1.5, 1.0, 1.0], np.float32)

    actions, noise = drawn(sampler, row)

    expected = np.clip(np.tanh(row[:2]) + 0.6 * noise, -1.0, 1.0)
    np.testing.assert_allclose(actions, expected, atol=1e-6)
    np.testing.assert_allclose(sampler.mode(row[None])[0], np.tanh(row[:2]), atol=1e-6)


def test_ornstein_uhlenbeck_noise_is_the_process_of_each_episode():
    theta, sigma, scale = 0.2, 0.1, 0.5
    noise = {"type": "OrnsteinUhlenbeckNoise", "theta": theta, "sigma": sigma, "scale": scale}
    config = SACConfig().environment("Pendulum-v1").exploration(**noise).debugging(seed=4)
    config = config.env_runners(num_envs_per_env_runner=20).training(train_batch_size=4000)
    built = config.build()
    try:
        built.set_weights({k: np.zeros_like(v) for k, v in built.get_weights().items()})
        batch = built.sample()  # with zero weights every mode is 0
    finally:
        built.stop()
    process = batch["actions"].reshape(20, 200) / scale
    added = (process[:, 1:] - (1 - theta) * process[:, :-1]) / sigma
    assert abs(added.mean()) < 0.05
    assert added.std() == pytest.approx(1.0, abs=0.03)
    assert abs(np.corrcoef(added[:, 1:].ravel(), added[:, :-1].ravel())[0, 1]) < 0.05
    stationary = sigma / np.sqrt(theta * (2 - theta))
    assert process.std() == pytest.approx(stationary, rel=0.1)


def test_random_first_steps_are_independent_even_where_noise_lasts():
    noise = {"type": "OrnsteinUhlenbeckNoise", "random_steps": 4000, "theta": 0.2}
    config = SACConfig().environment("Pendulum-v1").exploration(**noise).debugging(seed=4)
    config = config.env_runners(num_envs_per_env_runner=20).training(train_batch_size=4000)
    built = config.build()
    try:
        first, second = (built.sample()["actions"].reshape(20, 200) for _ in range(2))
    finally:
        built.stop()
    assert abs(np.corrcoef(first[:, 1:].ravel(), first[:, :-1].ravel())[0, 1]) < 0.05
    assert first.std() == pytest.approx(np.sqrt(1 / 3), abs=0.02)  # uniform in [-1, 1]
    assert np.corrcoef(second[:, 1:].ravel(), second[:, :-1].ravel())[0, 1] > 0.7


@pytest.mark.parametrize("kind", ["GaussianNoise", "OrnsteinUhlenbeckNoise"])
def test_noise_on_discrete_actions_is_refused(kind):
    with pytest.raises(ConfigError, match=rf"exploration.type: {kind} cannot draw .*Discrete\(4\)"):
        exploring(CategoricalSampler(4), type=kind)


@pytest.mark.parametrize(
    ("config", "exploration", "training", "says"),
    [
        (SACConfig, {"type": "SoftQ"}, {}, "exploration.type: SAC explores by Stochastic"),
        (DQNConfig, {"type": "GaussianNoise"}, {}, "type: DQN explores by EpsilonGreedy or SoftQ"),
        (DQNConfig, {"temperature": 2.0}, {}, "temperature: EpsilonGreedy does not use it"),
        (DQNConfig, {"type": "SoftQ", "epsilon": 0.1}, {}, "epsilon: SoftQ does not use it"),
        (DQNConfig, {"type": "SoftQ", "temperature": 0.0}, {}, "temperature: expected a number"),
        (DQNConfig, {"type": "Random", "random_steps": 9}, {}, "random_steps: all actions are"),
        (DQNConfig, {"type": "SoftQ"}, {"noisy": True}, "exploration.type: noisy weights explore"),
        (SACConfig, {"type": "Random"}, {"noise_correlation": 0.5}, "noise_correlation: the noise"),
        (PPOConfig, {"type": "Random"}, {}, "exploration: "),
    ],
)
def test_what_does_not_fit_an_algorithm_is_refused(config, exploration, training, says):
    wrong = config().environment("CartPole-v1").exploration(**exploration).training(**training)
    with pytest.raises(ConfigError, match=says):
        wrong.experiment()
