"""State-dependent noise: numpy and torch act alike, and actions are those of noisy weights."""

import re

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.config.problems import ConfigError
from rlrun.config.schema import ExplorationConfig, ModelConfig
from rlrun.data import columns as col
from rlrun.policies.catalog import build_module
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.layers import Layers, Network, StateNoise
from rlrun.policies.networks import mlp
from rlrun.policies.numpy_policy import FlatArrays, MLPPolicy, NumpyMLP, build_policy
from rlrun.policies.sac_policy import build_sac_policy
from rlrun.policies.torch_policy import TorchPolicy

OBSERVATIONS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = gym.spaces.Box(-1, 1, (2,), np.float32)
MODEL = ModelConfig(hidden=(6, 5), use_sde=True, log_std_init=-0.5, init="uniform")
NUM_WEIGHTS = 2 * 5


@pytest.fixture(params=[(3, 4), (3, 5, 4), (3, 6, 5, 4)], ids=len)
def sizes(request):
    return request.param


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_numpy_torch_and_the_gradient_are_of_one_network(sizes, activation, moves):
    torch.manual_seed(0)
    layers = Layers(sizes, activation, 1.0, "uniform", state_noise=StateNoise(-1.0, moves))
    module, arrays = mlp(layers), FlatArrays(Network({"pi": layers}))
    flat, x = FlatParameters(torch.nn.ModuleDict({"pi": module})), torch.randn(6, 3)
    assert arrays.layout == flat.layout
    assert (module.weight_log_std == -1.0).all()
    flat.load(np.random.default_rng(0).normal(0, 0.5, len(arrays.vector)).astype(np.float32))
    arrays.vector[:] = flat.vector.numpy()
    x.requires_grad = True
    outputs, up = module(x), torch.randn(6, 8)
    outputs.backward(up)
    expected = flat.grads.clone()
    flat.grads.fill_(float("nan"))
    mine, backward = module.vjp(x.detach().numpy())
    of_input = backward(up.clone().numpy(), to_input=True)
    acting = NumpyMLP(arrays, "pi")(x.detach().numpy(), noisy=True)
    for found in (mine, acting):
        np.testing.assert_allclose(found, outputs.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.from_numpy(of_input), x.grad)
    torch.testing.assert_close(flat.grads, expected)


def policies(**model):
    """The policies of PPO and SAC, in numpy and in torch, with equal weights."""
    settings = MODEL.model_copy(update=model)
    spaces = OBSERVATIONS, ACTIONS, settings
    return {
        "PPO": (build_policy(*spaces), build_policy(*spaces, device="cpu")),
        "SAC": (build_sac_policy(*spaces), build_sac_policy(*spaces, device="cpu")),
    }


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_actions_are_those_of_the_last_layer_with_noise_in_its_weights(name):
    in_numpy, in_torch = policies()[name]
    assert isinstance(in_numpy, MLPPolicy)
    assert isinstance(in_torch, TorchPolicy)
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.5, len(in_numpy.get_weights())).astype(np.float32)
    obs = rng.normal(size=(4, 3)).astype(np.float32)
    noise = in_numpy.draw_noise(rng, 1, 4)[0]
    assert noise.shape == (4, NUM_WEIGHTS)
    x, z = torch.from_numpy(obs), torch.from_numpy(noise).reshape(4, 2, 5)
    w = {k: torch.from_numpy(weights[o : o + np.prod(s)].reshape(s)) for k, (o, s) in
         in_numpy.layout.items()}  # fmt: skip
    for i in (0, 1):
        x = torch.tanh(x @ w[f"pi.{i}.weight"].T + w[f"pi.{i}.bias"])
    noisy = w["pi.2.weight"] + w["pi.weight_log_std"].exp() * z  # one matrix for each row
    expected = (noisy @ x[:, :, None])[:, :, 0] + w["pi.2.bias"]
    deviation = ((w["pi.weight_log_std"].exp() * x[:, None]).square().sum(-1) + 1e-6).sqrt()
    mean = x @ w["pi.2.weight"].T + w["pi.2.bias"]
    logp = torch.distributions.Normal(mean, deviation).log_prob(expected).sum(-1)
    for policy in (in_numpy, in_torch):
        policy.set_weights(weights)
        actions, _, extras = policy.compute_actions(obs, explore=True, noise=noise.copy())
        modes, _, _ = policy.compute_actions(obs, explore=False)
        assert extras.keys() == {col.ACTION_DIST_INPUTS}
        squash = torch.tanh if name == "SAC" else torch.clone
        np.testing.assert_allclose(actions, squash(expected), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(modes, squash(mean), rtol=1e-4, atol=1e-5)
        if name == "PPO":
            found = policy.fragment_columns({**extras, col.ACTIONS: actions})
            np.testing.assert_allclose(found[col.ACTION_LOGP], logp, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["PPO", "SAC"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_policy_says_for_how_many_steps_noise_stays_the_same(name, which):
    assert policies()[name][which].noise_steps is None
    assert policies(sde_sample_freq=7)[name][which].noise_steps == 7
    assert policies(use_sde=False)[name][which].noise_steps == 1


def test_random_actions_have_noise_of_their_own():
    exploration = ExplorationConfig(random_steps=10)
    policy = build_sac_policy(OBSERVATIONS, ACTIONS, MODEL, exploration=exploration)
    policy.set_exploration({"random": 1.0})
    assert policy.noise_steps == 1
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(2000, 3)).astype(np.float32)
    noise = policy.draw_noise(rng, 1, 2000)[0]
    actions, _, _ = policy.compute_actions(obs, explore=True, noise=noise)
    for edge in (-0.5, 0.0, 0.5):  # uniform
        assert (actions < edge).mean() == pytest.approx((edge + 1) / 2, abs=0.04)
    policy.set_exploration({"random": 0.0})
    assert policy.noise_steps is None


@pytest.mark.parametrize("build", [build_policy, build_sac_policy, build_module])
@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({}, "model.use_sde: state-dependent noise needs actions in a Box of floats"),
        ({"use_lstm": True}, "model.use_sde: there is no state-dependent noise with a memory"),
        ({"distribution": "beta"}, "model.distribution: the distribution with model.use_sde is a"),
        ({"free_log_std": False}, "model.free_log_std: with model.use_sde deviations depend"),
    ],
)
def test_what_it_does_not_go_together_with(build, model, says):
    actions = ACTIONS if model else gym.spaces.Discrete(3)
    with pytest.raises(ConfigError, match=re.escape(says)):
        build(OBSERVATIONS, actions, MODEL.model_copy(update=model))
