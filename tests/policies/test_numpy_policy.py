"""The numpy twin acts as the torch module does, from the same vector of weights."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.numpy_policy import MLPPolicy, build_policy, mlp_layout
from rlrun.policies.rl_module import build_module
from rlrun.policies.torch_policy import TorchPolicy

OBS_SPACE = gym.spaces.Box(-1, 1, (5,), np.float32)
ACTION_SPACES = {
    "discrete": gym.spaces.Discrete(3),
    "box": gym.spaces.Box(-1, 1, (2,), np.float32),
    "tuple": gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (1,), np.float32))),
}
MODELS = {
    "separate": ModelConfig(hidden=(8, 7)),
    "shared": ModelConfig(hidden=(8, 7), share_layers=True),
    "linear": ModelConfig(hidden=()),
    "relu": ModelConfig(hidden=(9,), activation="relu"),
    "silu": ModelConfig(hidden=(9,), activation="silu"),
    "state_dependent_std": ModelConfig(hidden=(4,), free_log_std=False),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("action_space", ACTION_SPACES)
def test_same_weights_same_inputs(model, action_space):
    space, settings = ACTION_SPACES[action_space], MODELS[model]
    torch.manual_seed(0)
    module = build_module(OBS_SPACE, space, settings)
    flat = FlatParameters(module)
    with torch.no_grad():
        flat.vector.add_(0.1 * torch.randn_like(flat.vector))
    assert mlp_layout(5, space, settings) == (flat.layout, flat.vector.numel())
    policy = MLPPolicy(OBS_SPACE, space, settings)
    policy.set_weights(flat.to_numpy())
    obs = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    inputs = policy.compute_actions(obs)[2][col.ACTION_DIST_INPUTS]
    with torch.no_grad():
        expected = module.forward_train({col.OBS: torch.from_numpy(obs)})[col.ACTION_DIST_INPUTS]
    np.testing.assert_allclose(inputs, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_numpy_and_torch_policies_choose_the_same_actions_from_the_same_noise():
    space = ACTION_SPACES["discrete"]
    flat = FlatParameters(build_module(OBS_SPACE, space, ModelConfig()))
    numpy_policy = MLPPolicy(OBS_SPACE, space, ModelConfig())
    torch_policy = TorchPolicy(OBS_SPACE, space, ModelConfig())
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(64, 5)).astype(np.float32)
    noise = numpy_policy.draw_noise(rng, 1, 64)[0]
    actions = []
    for policy in (numpy_policy, torch_policy):
        policy.set_weights(flat.to_numpy())
        actions.append(policy.compute_actions(obs, noise=noise)[0])
    np.testing.assert_array_equal(*actions)


def test_inputs_handed_out_are_not_overwritten_by_the_next_call():
    policy = MLPPolicy(OBS_SPACE, ACTION_SPACES["discrete"], ModelConfig())
    policy.set_weights(np.ones(policy.num_parameters, np.float32))
    first = policy.compute_actions(np.ones((2, 5), np.float32))[2][col.ACTION_DIST_INPUTS]
    before = first.copy()
    policy.compute_actions(np.zeros((2, 5), np.float32))
    np.testing.assert_array_equal(first, before)


def test_what_numpy_cannot_do_is_left_to_torch():
    image = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    discrete = ACTION_SPACES["discrete"]
    assert isinstance(build_policy(OBS_SPACE, discrete, ModelConfig()), MLPPolicy)
    assert isinstance(build_policy(image, discrete, ModelConfig()), TorchPolicy)
    assert isinstance(
        build_policy(OBS_SPACE, discrete, ModelConfig(activation="gelu")), TorchPolicy
    )


def test_a_runner_with_the_numpy_policy_never_imports_torch():
    code = (
        "import sys; from rlrun.config.schema import EnvSpec;"
        "from rlrun.sampling.env_runner import EnvRunner;"
        "from rlrun.sampling.runner_messages import RunnerSpec;"
        "EnvRunner(RunnerSpec(EnvSpec(use='CartPole-v1'))).sample();"
        "assert 'torch' not in sys.modules and 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
