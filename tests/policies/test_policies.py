"""Acting with torch modules and in numpy, with the same weights and the same noise."""

import subprocess
import sys
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.config.schema import ModelConfig
from rlrun.policies.catalog import build_module
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.layers import QOptions
from rlrun.policies.numpy_policy import MLPPolicy, build_policy
from rlrun.policies.q_policy import build_q_policy
from rlrun.policies.rl_module import RLModule
from rlrun.policies.sac_policy import build_sac_policy
from rlrun.policies.torch_policy import TorchPolicy

DQN_POLICY = partial(build_q_policy, options=QOptions())
VECTOR = gym.spaces.Box(-1, 1, (4,))
ACTION_SPACES: dict[str, gym.Space] = {
    "discrete": gym.spaces.Discrete(3),
    "multi_discrete": gym.spaces.MultiDiscrete([3, 2]),
    "multi_binary": gym.spaces.MultiBinary(3),
    "box": gym.spaces.Box(-1, 1, (2,)),
    "dict": gym.spaces.Dict(a=gym.spaces.Discrete(3), b=gym.spaces.Box(-1, 1, (2,))),
}


def observations(n: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 4)).astype(np.float32)


def trained_weights(size: int) -> np.ndarray:
    """Larger than at the start, so that every layer and head matters."""
    return np.random.default_rng(1).normal(0, 0.4, size).astype(np.float32)


@pytest.mark.parametrize(
    "layers",
    [
        {},
        {"share_layers": True},
        {"value_hidden": (9, 7, 5)},
        {"value_hidden": ()},
        {"share_layers": True, "head_hidden": (9, 7)},
        {"head_hidden": (5,), "value_hidden": (3,)},
    ],
)
@pytest.mark.parametrize(
    ("activation", "hidden", "free_log_std"),
    [("tanh", (64, 64), True), ("relu", (16,), False), ("silu", (), True)],
)
@pytest.mark.parametrize("actions", ACTION_SPACES)
def test_the_numpy_twin_agrees(
    actions: str, activation: Any, hidden: Any, layers: dict[str, Any], free_log_std: bool
) -> None:
    model = ModelConfig(hidden=hidden, activation=activation, free_log_std=free_log_std, **layers)
    space, obs = ACTION_SPACES[actions], observations()
    theirs, mine = MLPPolicy(VECTOR, space, model), TorchPolicy(VECTOR, space, model)
    assert theirs.layout == mine.layout
    weights = trained_weights(len(theirs.get_weights()))
    theirs.set_weights(weights)
    mine.set_weights(weights)
    noise = mine.draw_noise(np.random.default_rng(2), 1, len(obs))[0]
    expected, _, columns = theirs.compute_actions(obs, noise=noise)
    actual, _, fetches = mine.compute_actions(obs, noise=noise)
    np.testing.assert_allclose(
        fetches["action_dist_inputs"], columns["action_dist_inputs"], rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.float16, np.float64])
@pytest.mark.parametrize("build", [build_policy, DQN_POLICY, build_sac_policy])
def test_flat_observations_of_every_type_of_number_are_acted_on(build: Any, dtype: Any) -> None:
    space = gym.spaces.Box(0, 9, (4,), dtype)
    raw, plain = (build(box, ACTION_SPACES["discrete"], ModelConfig()) for box in (space, VECTOR))
    weights = trained_weights(len(plain.get_weights()))
    raw.set_weights(weights)
    plain.set_weights(weights)
    obs = np.random.default_rng(0).integers(0, 9, (6, 4)).astype(dtype)
    actions, _, _ = raw.compute_actions(obs, explore=False)
    expected, _, _ = plain.compute_actions(obs.astype(np.float32), explore=False)
    np.testing.assert_array_equal(actions, expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16])
def test_flat_observations_of_every_type_of_number_are_learned_from_as_they_are_acted_on(
    dtype: Any,
) -> None:
    """They are no images, whose bytes become numbers in [0, 1]."""
    space, discrete = gym.spaces.Box(0, 200, (4,), dtype), ACTION_SPACES["discrete"]
    policy, module = (make(space, discrete, ModelConfig()) for make in (build_policy, build_module))
    flat: Any = FlatParameters(module)
    policy.set_weights(flat.to_numpy())
    obs = np.random.default_rng(0).integers(0, 200, (6, 4)).astype(dtype)
    acted = policy.compute_actions(obs)[2]["action_dist_inputs"]
    by_autograd = module.forward_train({"obs": torch.from_numpy(obs)})["action_dist_inputs"]
    in_closed_form, *_ = module.vjp({"obs": obs})  # type: ignore[operator]
    for learned in (by_autograd.detach(), in_closed_form):
        np.testing.assert_allclose(learned, acted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("actions", ACTION_SPACES)
def test_actions_follow_from_the_noise_alone(actions: str) -> None:
    space, obs = ACTION_SPACES[actions], observations()
    policy = TorchPolicy(VECTOR, space, ModelConfig())
    noise = policy.draw_noise(np.random.default_rng(0), 2, len(obs))
    torch.manual_seed(1)
    first = policy.compute_actions(obs, noise=noise[0])[0]
    torch.manual_seed(2)
    np.testing.assert_array_equal(policy.compute_actions(obs, noise=noise[0])[0], first)
    greedy, states, fetches = policy.compute_actions(obs, explore=False)
    np.testing.assert_array_equal(greedy, policy.sampler.mode(fetches["action_dist_inputs"]))
    assert states == []
    policy.explores = False
    np.testing.assert_array_equal(policy.compute_actions(obs, explore=None)[0], greedy)
    assert len(policy.compute_actions(obs)[0]) == len(obs)
    assert isinstance(first, np.ndarray)


def test_log_probabilities_agree_with_the_learner() -> None:
    space, obs = ACTION_SPACES["dict"], observations(20)
    policy = TorchPolicy(VECTOR, space, ModelConfig())
    actions, _, fetches = policy.compute_actions(obs)
    columns = policy.fragment_columns({**fetches, "actions": actions})
    with torch.no_grad():
        inputs = policy.module.forward_train({"obs": torch.from_numpy(obs)})["action_dist_inputs"]
        logp = policy.module.distribution.logp(inputs, torch.from_numpy(actions))
    np.testing.assert_allclose(columns["action_logp"], logp, rtol=1e-5, atol=1e-5)
    certain = policy.fragment_columns({**fetches, "actions": actions}, explore=False)
    assert not certain["action_logp"].any()


def test_weights_travel_as_the_learners_vector() -> None:
    model = ModelConfig()
    module = build_module(VECTOR, ACTION_SPACES["box"], model)
    weights = FlatParameters(module).to_numpy()
    weights.flags.writeable = False
    policy = TorchPolicy(VECTOR, ACTION_SPACES["box"], model)
    policy.set_weights(weights)
    np.testing.assert_array_equal(policy.get_weights(), weights)
    other = TorchPolicy(VECTOR, ACTION_SPACES["box"], model)
    other.set_state(policy.get_state())
    np.testing.assert_array_equal(other.get_weights(), weights)
    other.get_weights()[:] = 0.0
    np.testing.assert_array_equal(other.get_weights(), weights)


class Noted(RLModule):
    """Writes down how it was called."""

    def __init__(self, observation_space: Any, action_space: Any, model: Any) -> None:
        super().__init__(observation_space, action_space, model)
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.seen: list[tuple[str, bool, bool]] = []

    def _outputs(self, name: str, batch: Any) -> dict[str, torch.Tensor]:
        self.seen.append((name, self.training, torch.is_grad_enabled()))
        obs = batch["obs"]["x"] if isinstance(batch["obs"], dict) else batch["obs"]
        logits = obs[:, :3].float() * self.scale
        return {"action_dist_inputs": logits, "vf_preds": logits[:, 0]}

    def forward_train(self, batch: Any) -> dict[str, torch.Tensor]:
        return self._outputs("train", batch)

    def forward_exploration(self, batch: Any) -> dict[str, torch.Tensor]:
        return self._outputs("exploration", batch)

    def forward_inference(self, batch: Any) -> dict[str, torch.Tensor]:
        return self._outputs("inference", batch)


def test_which_forward_pass_and_in_which_mode() -> None:
    model = ModelConfig(use=f"{__name__}:Noted")
    policy = TorchPolicy(VECTOR, ACTION_SPACES["discrete"], model)
    obs = observations()
    obs.flags.writeable = False
    _, _, fetches = policy.compute_actions(obs)
    policy.compute_actions(obs, explore=False)
    assert policy.module.seen == [("exploration", False, False), ("inference", False, False)]
    assert set(fetches) == {"action_dist_inputs", "vf_preds"}


def test_raw_nested_observations_reach_the_module() -> None:
    space = gym.spaces.Dict(x=VECTOR, y=gym.spaces.Tuple((gym.spaces.Discrete(2),)))
    model = ModelConfig(use=f"{__name__}:Noted")
    policy = TorchPolicy(space, ACTION_SPACES["discrete"], model)
    obs = {"x": observations(), "y": (np.zeros(6, np.int64),)}
    actions, _, _ = policy.compute_actions(obs, explore=False)
    np.testing.assert_array_equal(actions, obs["x"][:, :3].argmax(-1))


def test_inputs_handed_out_are_not_overwritten_by_the_next_call() -> None:
    policy = MLPPolicy(VECTOR, ACTION_SPACES["discrete"], ModelConfig())
    policy.set_weights(np.ones(len(policy.get_weights()), np.float32))
    first = policy.compute_actions(np.ones((2, 4), np.float32))[2]["action_dist_inputs"]
    before = first.copy()
    policy.compute_actions(np.zeros((2, 4), np.float32))
    np.testing.assert_array_equal(first, before)


def test_what_numpy_cannot_do_is_left_to_torch() -> None:
    image, actions = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8), ACTION_SPACES["discrete"]
    assert isinstance(build_policy(VECTOR, actions, ModelConfig()), MLPPolicy)
    assert isinstance(build_policy(image, actions, ModelConfig()), TorchPolicy)
    assert isinstance(build_policy(VECTOR, actions, ModelConfig(activation="gelu")), TorchPolicy)


def test_a_runner_with_the_numpy_policy_never_imports_torch() -> None:
    code = (
        "import sys; from rlrun.config.schema import EnvSpec;"
        "from rlrun.sampling.env_runner import EnvRunner;"
        "from rlrun.sampling.runner_messages import RunnerSpec;"
        "EnvRunner(RunnerSpec(EnvSpec(use='CartPole-v1'))).sample();"
        "assert 'torch' not in sys.modules and 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
