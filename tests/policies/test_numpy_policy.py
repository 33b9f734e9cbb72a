"""Acting in numpy: what it hands out, what it leaves to torch. test_torch_policy compares both."""

import subprocess
import sys

import gymnasium as gym
import numpy as np

from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.numpy_policy import MLPPolicy, build_policy
from rlrun.policies.torch_policy import TorchPolicy

OBS_SPACE = gym.spaces.Box(-1, 1, (5,), np.float32)
ACTIONS = gym.spaces.Discrete(3)


def test_inputs_handed_out_are_not_overwritten_by_the_next_call():
    policy = MLPPolicy(OBS_SPACE, ACTIONS, ModelConfig())
    policy.set_weights(np.ones(policy.num_parameters, np.float32))
    first = policy.compute_actions(np.ones((2, 5), np.float32))[2][col.ACTION_DIST_INPUTS]
    before = first.copy()
    policy.compute_actions(np.zeros((2, 5), np.float32))
    np.testing.assert_array_equal(first, before)


def test_what_numpy_cannot_do_is_left_to_torch():
    image = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    assert isinstance(build_policy(OBS_SPACE, ACTIONS, ModelConfig()), MLPPolicy)
    assert isinstance(build_policy(image, ACTIONS, ModelConfig()), TorchPolicy)
    assert isinstance(build_policy(OBS_SPACE, ACTIONS, ModelConfig(activation="gelu")), TorchPolicy)


def test_a_runner_with_the_numpy_policy_never_imports_torch():
    code = (
        "import sys; from rlrun.config.schema import EnvSpec;"
        "from rlrun.sampling.env_runner import EnvRunner;"
        "from rlrun.sampling.runner_messages import RunnerSpec;"
        "EnvRunner(RunnerSpec(EnvSpec(use='CartPole-v1'))).sample();"
        "assert 'torch' not in sys.modules and 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
