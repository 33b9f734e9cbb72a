"""Acting by action values: numpy and torch agree, epsilon means what it says."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.config.problems import ConfigError
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.action_sampling import EpsilonGreedySampler
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.q_network import QNetwork, build_q_network, dueling_values
from rlrun.policies.q_policy import MLPQPolicy, build_q_policy

OBS_SPACE = gym.spaces.Box(-1, 1, (5,), np.float32)
ACTIONS = gym.spaces.Discrete(3)


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("hidden", [(), (7,), (7, 6), (7, 6, 5)])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_numpy_policy_acts_with_the_networks_values(dueling, hidden, activation):
    model = ModelConfig(hidden=hidden, activation=activation)
    network = build_q_network(OBS_SPACE, ACTIONS, model, dueling=dueling)
    flat = FlatParameters(network)
    policy = build_q_policy(OBS_SPACE, ACTIONS, model, dueling=dueling)
    assert isinstance(policy, MLPQPolicy)
    assert policy.layout == flat.layout
    weights = np.random.default_rng(0).normal(size=policy.num_parameters).astype(np.float32)
    flat.load(weights)
    policy.set_weights(weights)
    for rows in (4, 9):
        obs = np.random.default_rng(1).normal(size=(rows, 5)).astype(np.float32)
        actions, _, extras = policy.compute_actions(obs, explore=False)
        with torch.no_grad():
            values = network.forward_train({col.OBS: torch.from_numpy(obs)})
        expected = values[col.ACTION_DIST_INPUTS].numpy()
        np.testing.assert_allclose(extras[col.ACTION_DIST_INPUTS], expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(actions, expected.argmax(1))


def test_images_are_acted_on_with_torch_and_the_same_weights():
    space = gym.spaces.Box(0, 255, (40, 40, 3), np.uint8)
    model = ModelConfig(conv_head=16)
    network = QNetwork(space, ACTIONS, model, dueling=True)
    policy = build_q_policy(space, ACTIONS, model, dueling=True)
    policy.set_weights(FlatParameters(network).to_numpy())
    obs = np.random.default_rng(1).integers(256, size=(4, 40, 40, 3), dtype=np.uint8)
    _, _, extras = policy.compute_actions(obs, explore=False)
    with torch.no_grad():
        values = network.forward_train({col.OBS: torch.from_numpy(obs)})[col.ACTION_DIST_INPUTS]
    np.testing.assert_allclose(extras[col.ACTION_DIST_INPUTS], values.numpy(), rtol=1e-5)


def test_pitfall_41_dueling_subtracts_the_mean_over_actions():
    values = dueling_values(torch.tensor([[10.0]]), torch.tensor([[1.0, 2.0, 6.0]]))
    assert values.tolist() == [[8.0, 9.0, 13.0]]


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_is_the_share_of_uniform_actions_and_logp_says_so(epsilon):
    sampler = EpsilonGreedySampler(ACTIONS)
    sampler.set_exploration({"epsilon": epsilon})
    noise = sampler.draw(np.random.default_rng(0), 1, 30_000)[0]
    values = np.tile(np.array([0.0, 5.0, -1.0], np.float32), (30_000, 1))
    actions = sampler.sample(values, noise)
    expected = np.full(3, epsilon / 3)
    expected[1] += 1 - epsilon
    np.testing.assert_allclose(np.bincount(actions, minlength=3) / 30_000, expected, atol=0.01)
    logp = sampler.log_prob(values[:3], np.arange(3))
    np.testing.assert_allclose(np.exp(logp), expected, rtol=1e-5)
    assert sampler.mode(values[:2]).tolist() == [1, 1]


def test_the_highest_noise_there_is_chooses_the_last_action():
    sampler = EpsilonGreedySampler(ACTIONS)
    sampler.set_exploration({"epsilon": 1.0})
    highest = np.nextafter(np.float32(1), np.float32(0))
    assert sampler.sample(np.zeros((1, 3), np.float32), np.array([[0.5, highest]])).tolist() == [2]


def test_other_action_spaces_are_refused_by_name():
    with pytest.raises(ConfigError, match="Discrete action space"):
        build_q_policy(OBS_SPACE, gym.spaces.Box(-1, 1, (2,)), ModelConfig(), dueling=False)
