"""Modules: shapes, parameters, initialisation, users' own, and several by policy id."""

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlrun.config.problems import ConfigError
from rlrun.config.schema import ModelConfig
from rlrun.data.column_data import map_leaves
from rlrun.policies import networks
from rlrun.policies.action_sampling import FORBIDDEN, action_layout
from rlrun.policies.catalog import build_module, seeded_module
from rlrun.policies.layers import Layers, channels_first, is_image
from rlrun.policies.masked_module import with_action_mask
from rlrun.policies.networks import ACTIVATIONS, MLP, ConvEncoder
from rlrun.policies.rl_module import (
    ActorCritic,
    EncoderInput,
    MultiAgentRLModule,
    RLModule,
    actor_critic_outputs,
    flattens,
)
from rlrun.policies.soft_actor_critic import SACPolicyNetwork, TwinQNetwork

VECTOR = gym.spaces.Box(-1, 1, (4,))
ACTION_SPACES: dict[str, gym.Space] = {
    "discrete": gym.spaces.Discrete(3),
    "multi_discrete": gym.spaces.MultiDiscrete([3, 2]),
    "multi_binary": gym.spaces.MultiBinary(3),
    "box": gym.spaces.Box(-1, 1, (2,)),
    "dict": gym.spaces.Dict(a=gym.spaces.Discrete(3), b=gym.spaces.Box(-1, 1, (2,))),
}
OBSERVATION_SPACES: dict[str, gym.Space] = {
    "vector": VECTOR,
    "matrix": gym.spaces.Box(-1, 1, (2, 3)),
    "bytes": gym.spaces.Box(0, 255, (6,), np.uint8),
    "image": gym.spaces.Box(0, 255, (40, 40, 3), np.uint8),
    "small_image": gym.spaces.Box(0, 1, (4, 10, 10)),
}


def build(observations: gym.Space, actions: gym.Space, **model: Any) -> RLModule:
    torch.manual_seed(0)
    return build_module(observations, actions, ModelConfig(**model))


def rows(space: gym.Space, n: int = 5) -> dict[str, Tensor]:
    space.seed(0)
    return {"obs": torch.from_numpy(np.stack([space.sample() for _ in range(n)]))}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("share_layers", [None, True, False])
@pytest.mark.parametrize("actions", ACTION_SPACES)
@pytest.mark.parametrize("observations", OBSERVATION_SPACES)
def test_shapes(observations: str, actions: str, share_layers: bool | None) -> None:
    obs_space, space = OBSERVATION_SPACES[observations], ACTION_SPACES[actions]
    module = build(obs_space, space, share_layers=share_layers, conv_head=16, hidden=(8,))
    batch = rows(obs_space)
    out = module.forward_train(batch)
    assert out["action_dist_inputs"].shape == (5, action_layout(space).num_inputs)
    assert out["vf_preds"].shape == (5,)
    assert {value.dtype for value in out.values()} == {torch.float32}
    assert module.values_when_acting == ("image" in observations and share_layers is not False)
    exploring = {*out} if module.values_when_acting else {"action_dist_inputs"}
    for forward, names in (
        (module.forward_exploration, exploring),
        (module.forward_inference, {"action_dist_inputs"}),
    ):
        acting = forward(batch)
        assert set(acting) == names
        for name in names:
            torch.testing.assert_close(acting[name], out[name])
    torch.testing.assert_close(module.compute_values(batch), out["vf_preds"])
    sum(value.sum() for value in out.values()).backward()
    missing = [name for name, parameter in module.named_parameters() if parameter.grad is None]
    assert missing == []


def test_names_and_counts_of_separate_mlps() -> None:
    module = build(VECTOR, gym.spaces.Box(-1, 1, (2,)), hidden=(64, 64))
    names = [f"{branch}.{i}.{kind}" for branch in ("pi", "vf") for i in range(3)
             for kind in ("weight", "bias")]  # fmt: skip
    assert [name for name, _ in module.named_parameters()] == ["log_std", *names]
    trunk = 4 * 64 + 64 + 64 * 64 + 64
    assert count(module) == 2 * trunk + (64 * 2 + 2) + (64 + 1) + 2
    assert module.pi(torch.zeros(1, 4)).shape == (1, 2)


def test_names_and_counts_of_a_shared_mlp_and_of_linear_networks() -> None:
    module = build(VECTOR, gym.spaces.Discrete(3), hidden=(32,), share_layers=True)
    assert [name for name, _ in module.named_parameters()] == [
        "encoder.0.weight", "encoder.0.bias", "pi.0.weight", "pi.0.bias",
        "vf.0.weight", "vf.0.bias",
    ]  # fmt: skip
    assert count(module) == (4 * 32 + 32) + (32 * 3 + 3) + (32 + 1)
    for share_layers in (True, False):
        linear = build(VECTOR, gym.spaces.Discrete(3), hidden=(), share_layers=share_layers)
        assert count(linear) == (4 * 3 + 3) + (4 + 1)


@pytest.mark.parametrize(
    ("observations", "model", "policy", "value"),
    [
        ("vector", {}, [8, 5, 3], [8, 5, 1]),
        ("vector", {"value_hidden": [7]}, [8, 5, 3], [7, 1]),
        ("vector", {"share_layers": True}, [5, 3], [5, 1]),
        ("vector", {"share_layers": True, "value_hidden": [7, 6]}, [5, 3], [7, 6, 1]),
        ("small_image", {}, [5, 3], [5, 1]),
        ("small_image", {"value_hidden": []}, [5, 3], [1]),
        ("small_image", {"share_layers": False, "value_hidden": [7]}, [5, 3], [7, 1]),
    ],
)
def test_policy_and_value_function_have_hidden_layers_of_their_own(
    observations: str, model: dict[str, Any], policy: list[int], value: list[int]
) -> None:
    settings = {"hidden": [8], "head_hidden": [5], "conv_head": 6, **model}
    module: Any = build(OBSERVATION_SPACES[observations], gym.spaces.Discrete(3), **settings)
    for branch, widths in ((module.pi, policy), (module.vf, value)):
        assert [layer.out_features for layer in branch.children()] == widths


@pytest.mark.parametrize(
    ("model", "policy", "value"),
    [
        ({"head_hidden": [5]}, [5, 3], [5, 1]),
        ({"head_hidden": [5], "value_hidden": [7, 6]}, [5, 3], [7, 6, 1]),
        ({"value_hidden": [7]}, [3], [7, 1]),
        ({}, [3], [1]),
    ],
)
@pytest.mark.parametrize("memory", ["use_lstm", "use_gru", "use_attention"])
def test_heads_on_a_memory_have_hidden_layers_of_their_own(
    memory: str, model: dict[str, Any], policy: list[int], value: list[int]
) -> None:
    settings = {"hidden": [8], "lstm_cell_size": 4, memory: True, **model}
    module: Any = build(VECTOR, gym.spaces.Discrete(3), **settings)
    for branch, widths in ((module.heads.pi, policy), (module.heads.vf, value)):
        layers = [part for part in branch.modules() if isinstance(part, nn.Linear)]
        assert [layer.out_features for layer in layers] == widths


def test_deviations_that_a_head_computes_begin_where_they_are_told() -> None:
    settings: Any = {"use_lstm": True, "lstm_cell_size": 4, "hidden": [8], "head_hidden": [5]}
    settings |= {"free_log_std": False, "log_std_init": -3}
    module: Any = build(VECTOR, gym.spaces.Box(-1, 1, (2,)), **settings)
    assert module.heads.pi.last.bias.tolist() == [0, 0, -3, -3]


def test_nature_cnn_is_shared_by_default_and_has_the_published_size() -> None:
    atari = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    conv = (32 * 4 * 64 + 32) + (64 * 32 * 16 + 64) + (64 * 64 * 9 + 64)
    encoder = conv + 64 * 7 * 7 * 512 + 512
    module = build(atari, gym.spaces.Discrete(6))
    assert count(module) == encoder + (512 * 6 + 6) + (512 + 1)
    assert {name.split(".")[0] for name, _ in module.named_parameters()} == {
        "encoder", "pi", "vf",
    }  # fmt: skip
    separate = build(atari, gym.spaces.Discrete(6), share_layers=False)
    assert count(separate) == count(module) + encoder


@pytest.mark.parametrize(("shape", "num_layers"), [((36, 40, 3), 3), ((40, 35, 3), 2)])
def test_small_images_have_convolutions_of_their_own(shape, num_layers) -> None:
    module = build(gym.spaces.Box(0, 255, shape, np.uint8), gym.spaces.Discrete(2), conv_head=4)
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    assert len(convolutions) == num_layers


def test_both_image_layouts_give_the_same_numbers() -> None:
    torch.manual_seed(0)
    first = ConvEncoder((3, 40, 48), None, 16)
    last = ConvEncoder((40, 48, 3), None, 16)
    last.load_state_dict(first.state_dict())
    images = torch.rand(2, 3, 40, 48)
    torch.testing.assert_close(last(images.permute(0, 2, 3, 1)), first(images))
    assert channels_first((4, 84, 84))
    assert not channels_first((84, 84, 4))
    assert not channels_first((10, 10, 10))
    assert not channels_first((8, 8, 111))  # planes of a board
    assert channels_first((111, 8, 8))
    assert not is_image(gym.spaces.Box(0, 255, (3, 4, 3), np.uint8))
    assert not is_image(gym.spaces.Box(0, 255, (9, 4, 3), np.uint8))
    assert is_image(gym.spaces.Box(0, 255, (9, 5, 3), np.uint8))
    assert not is_image(gym.spaces.Box(0, 255, (3, 4, 9), np.uint8))
    assert not is_image(gym.spaces.Box(0, 255, (3, 9, 4), np.uint8))
    assert is_image(gym.spaces.Box(0, 255, (3, 5, 9), np.uint8))


@pytest.mark.parametrize("shape", [(4, 40, 48, 3), (4, 3, 40, 48), (4, 40, 48, 1)])
def test_the_images_of_a_stack_are_further_channels(shape) -> None:
    space = gym.spaces.Box(0, 255, shape, np.uint8)
    assert is_image(space)
    torch.manual_seed(0)
    stacked = ConvEncoder(shape, None, 16)
    images = torch.randint(256, (2, *shape), dtype=torch.uint8)
    planes = images if channels_first(shape[1:]) else images.permute(0, 1, 4, 2, 3)
    channels = planes.reshape(2, -1, 40, 48)
    flat = ConvEncoder(channels.shape[1:], None, 16)
    flat.load_state_dict(stacked.state_dict())
    torch.testing.assert_close(stacked(images), flat(channels))
    module = build(space, gym.spaces.Discrete(2))
    assert module.forward_train({"obs": images})["vf_preds"].shape == (2,)


def test_images_are_laid_out_channels_last_while_they_are_bytes(monkeypatch) -> None:
    laid_out, channels_last = [], networks.channels_last

    def noting(images: Tensor) -> Tensor:
        laid_out.append(images.dtype)
        return channels_last(images)

    encoder = ConvEncoder((3, 40, 48), None, 16)
    images = torch.randint(256, (2, 3, 40, 48), dtype=torch.uint8)
    expected = encoder(images.float() / 255)
    monkeypatch.setattr(networks, "channels_last", noting)
    with torch.no_grad():
        torch.testing.assert_close(encoder(images), expected)
    assert laid_out == [torch.uint8]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_numbers_of_other_types_are_taken_as_they_are(dtype) -> None:
    module = build(gym.spaces.Box(-9, 9, (4,)), gym.spaces.Discrete(2))
    seen = torch.randint(-9, 10, (5, 4))
    outputs = [module.forward_train({"obs": seen.to(kind)}) for kind in (dtype, torch.float32)]
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("highest", [255, 10, 1])
def test_bytes_are_divided_by_the_highest_one_of_their_space(highest) -> None:
    """Grids of zeros and ones would be all but zero if they were divided by 255."""
    image = gym.spaces.Box(0, highest, (40, 40, 3), np.uint8)
    nest = gym.spaces.Dict({"image": image, "bytes": gym.spaces.Box(0, highest, (3,), np.uint8)})
    for space in (image, nest):
        module = build(space, gym.spaces.Discrete(2), conv_head=8)
        space.seed(0)
        obs = map_leaves(lambda leaf: torch.from_numpy(leaf[None]), space.sample())
        scaled = map_leaves(lambda bytes_: bytes_.float() / highest, obs)
        outputs = module.forward_train({"obs": scaled})
        torch.testing.assert_close(module.forward_train({"obs": obs}), outputs)
    given = torch.full((2, 40, 40, 3), highest, dtype=torch.uint8)
    own = ModelConfig(use="tests.policies.test_rl_module:Doubler")
    assert torch.equal(EncoderInput(image, own)(given, None), torch.ones(2, 40, 40, 3))


SHARED = {"hidden": (64, 64), "share_layers": True}
ROOT = 2**0.5


@pytest.mark.parametrize(
    ("observations", "model", "gains"),
    [
        ("vector", {"hidden": (64, 64)}, {
            "pi.0": ROOT, "pi.1": ROOT, "vf.1": ROOT, "pi.2": 0.01, "vf.2": 1.0,
        }),
        ("vector", SHARED, {
            "encoder.0": ROOT, "encoder.1": ROOT, "pi.0": 0.01, "vf.0": 1.0,
        }),
        ("image", {"conv_head": 32}, {
            "encoder.conv.0": ROOT, "encoder.conv.2": ROOT, "encoder.fc": ROOT,
            "pi.0": 0.01, "vf.0": 1.0,
        }),
        ("vector", {"use_lstm": True, "lstm_cell_size": 8}, {
            "encoder.1": ROOT, "memory.weight_ih_l0": 1.0, "memory.weight_hh_l0": 1.0,
            "heads.pi": 0.01, "heads.vf": 1.0,
        }),
    ],
)  # fmt: skip
def test_initialisation_is_the_papers(
    observations: str, model: dict[str, Any], gains: dict[str, float]
) -> None:
    module = build(OBSERVATION_SPACES[observations], gym.spaces.Discrete(3), **model)
    parameters = dict(module.named_parameters())
    for name, parameter in parameters.items():
        if "bias" in name:
            assert not parameter.any(), name
    for name, gain in gains.items():
        weight = parameters[name if name in parameters else f"{name}.weight"]
        singular = torch.linalg.svdvals(weight.flatten(1))
        torch.testing.assert_close(singular, torch.full_like(singular, gain), msg=name)


@pytest.mark.parametrize(
    ("observations", "model"),
    [
        ("vector", {"hidden": (64, 64)}),
        ("vector", SHARED),
        ("image", {"conv_head": 32}),
        ("image", {"conv_head": 32, "share_layers": False}),
        ("vector", {"use_gru": True, "lstm_cell_size": 8}),
    ],
)
def test_uniform_initialisation_is_torchs_own(observations: str, model: dict[str, Any]) -> None:
    """Weights and biases of a layer with n inputs are within 1 / sqrt(n)."""
    space = OBSERVATION_SPACES[observations]
    module = build(space, gym.spaces.Discrete(3), init="uniform", **model)
    layers = [m for m in module.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert len(layers) >= 4
    for layer in layers:
        bound = layer.weight[0].numel() ** -0.5
        for values in (layer.weight, layer.bias):
            assert values.abs().max() <= bound
            assert values.numel() < 30 or values.abs().max() > 0.8 * bound


@pytest.mark.parametrize("network", [SACPolicyNetwork, TwinQNetwork])
@pytest.mark.parametrize("observations", ["vector", "image"])
def test_uniform_initialisation_of_policy_and_critics(network: Any, observations: str) -> None:
    settings = ModelConfig(init="uniform", hidden=(64, 64), conv_head=32)
    module = network(OBSERVATION_SPACES[observations], ACTION_SPACES["box"], settings)
    weights = {name: x for name, x in module.named_parameters() if "weight" in name}
    assert len(weights) == (7 if observations == "image" else 3)
    for name, weight in weights.items():
        twins = network is TwinQNetwork and name.startswith("q.")
        bound = (weight.shape[1] if twins else weight[0].numel()) ** -0.5
        assert 0.8 * bound < weight.abs().max() <= bound


@pytest.mark.parametrize("actions", ["box", "dict"])
def test_log_std_starts_at_its_setting(actions: str) -> None:
    space = ACTION_SPACES[actions]
    if actions == "box":
        free = dict(build(VECTOR, space, log_std_init=-0.5).named_parameters())
        assert free["log_std"].tolist() == [-0.5, -0.5]
    module = build(VECTOR, space, free_log_std=False, log_std_init=-1.0)
    inputs = module.forward_train({"obs": torch.zeros(1, 4)})["action_dist_inputs"][0]
    expected = [0, 0, -1, -1] if actions == "box" else [0, 0, 0, 0, 0, -1, -1]
    assert inputs.tolist() == expected
    assert "log_std" not in dict(module.named_parameters())
    other = build(VECTOR, ACTION_SPACES["box"], distribution="beta", log_std_init=-1.0)
    assert not other.pi.last.bias.any()


@pytest.mark.parametrize(
    ("activation", "function"),
    [("tanh", torch.tanh), ("relu", torch.relu), ("elu", nn.functional.elu),
     ("silu", nn.functional.silu), ("gelu", nn.functional.gelu)],
)  # fmt: skip
def test_mlp_against_sequential(activation: str, function: Any) -> None:
    mlp = MLP(Layers((3, 8, 5, 2), activation, output_gain=1.0))
    encoder = MLP(Layers((3, 8, 5), activation))
    encoder.load_state_dict({k: v for k, v in mlp.state_dict().items() if k[0] != "2"})
    x = torch.randn(4, 3)
    layers = list(mlp.children())
    features = function(layers[1](function(layers[0](x))))
    torch.testing.assert_close(encoder(x), features)
    torch.testing.assert_close(mlp(x), layers[2](features))
    assert (mlp.output_size, encoder.output_size) == (2, 5)


def test_convolutions_may_compute_in_bfloat16() -> None:
    torch.manual_seed(0)
    exact, rough = (ConvEncoder((3, 40, 48), None, 16, bfloat16=b) for b in (False, True))
    rough.load_state_dict(exact.state_dict())
    images = torch.rand(4, 3, 40, 48)
    features, about = exact(images), rough(images)
    assert about.dtype == torch.float32
    assert not torch.equal(about, features)
    torch.testing.assert_close(about, features, rtol=0.05, atol=0.05)
    about.sum().backward()
    assert all(weight.grad.dtype == torch.float32 for weight in rough.parameters())


def test_a_kernel_larger_than_the_image_is_refused_with_its_numbers() -> None:
    with pytest.raises(ValueError, match=r"layer 1 has a 8x8 kernel, but only 4x4 pixels"):
        ConvEncoder((20, 20, 3), [[8, 8, 4], [8, 8, 4]], 16)
    with pytest.raises(ValueError, match=r"layer 1 has a 8x8 kernel, but only 4x14 pixels"):
        ConvEncoder((20, 60, 3), [[8, 8, 4], [8, 8, 4]], 16)
    with pytest.raises(ValueError, match="4-D observations"):
        build(VECTOR, gym.spaces.Discrete(2), conv=((8, 3, 1),))


def test_raw_nested_observations_need_a_module_of_the_users_own() -> None:
    with pytest.raises(ValueError, match="not in a Discrete"):
        build(gym.spaces.Discrete(5), gym.spaces.Discrete(2))


def test_bytes_in_nested_observations_are_scaled_unless_they_are_categories() -> None:
    space = gym.spaces.Dict({
        "categories": gym.spaces.MultiDiscrete([3, 4], start=[1, 2], dtype=np.uint8),
        "bytes": gym.spaces.Box(0, 255, (2,), np.uint8),
        "image": gym.spaces.Box(0, 255, (12, 12, 1), np.uint8),
    })  # fmt: skip
    module = build(space, gym.spaces.Discrete(2), hidden=(4,))
    seen: list[Tensor] = []
    module.encoder.rest.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    obs = {
        "bytes": torch.tensor([[0, 255]], dtype=torch.uint8),
        "categories": torch.tensor([[3, 3]], dtype=torch.uint8),
        "image": torch.zeros(1, 12, 12, 1, dtype=torch.uint8),
    }
    module.forward_train({"obs": obs})
    assert seen[0].tolist() == [[0, 1, 0, 0, 1, 0, 1, 0, 0]]


class OneLayer(RLModule):
    """The least that a user writes."""

    def __init__(self, observation_space: Any, action_space: Any, model: Any, bias: float = 0.0):
        super().__init__(observation_space, action_space, model)
        self.net = nn.Linear(4, self.distribution.num_inputs)
        nn.init.constant_(self.net.bias, bias)

    def forward_train(self, batch: Any) -> dict[str, Tensor]:
        return {"action_dist_inputs": self.net(batch["obs"])}


class Doubler(nn.Module):
    output_size = 8

    def __init__(self, observation_space: gym.spaces.Box, scale: float = 2.0) -> None:
        super().__init__()
        self.net = nn.Linear(observation_space.shape[0], 8)
        self.scale = scale

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs) * self.scale


class Sizeless(Doubler):
    output_size = None  # type: ignore[assignment]


HERE = __name__


def test_a_users_module_needs_one_method() -> None:
    module = build(VECTOR, gym.spaces.Discrete(3), use=f"{HERE}:OneLayer", kwargs={"bias": 2.0})
    assert isinstance(module, OneLayer)
    batch = rows(VECTOR)
    expected = module.net(batch["obs"])
    for forward in (
        module,
        module.forward_train,
        module.forward_exploration,
        module.forward_inference,
    ):
        torch.testing.assert_close(forward(batch)["action_dist_inputs"], expected)
    with pytest.raises(KeyError, match="vf_preds"):
        module.compute_values(batch)


class Returns(RLModule):
    """Returns zeros of these shapes."""

    def __init__(self, inputs: Any, values: Any) -> None:
        super().__init__(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2), ModelConfig())
        self.shapes = {"action_dist_inputs": inputs, "vf_preds": values}

    def forward_train(self, batch: Any) -> dict[str, Tensor]:
        return {name: torch.zeros(shape) for name, shape in self.shapes.items() if shape}


@pytest.mark.parametrize(
    ("inputs", "values"), [((5, 2), (5, 1)), ((5, 2), None), ((5, 3), (5,)), ((5,), (5,))]
)
def test_outputs_that_a_loss_would_broadcast_are_refused(inputs: Any, values: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        actor_critic_outputs(Returns(inputs, values), {})
    assert "model.use" in str(caught.value)
    assert "of shape (5, 2) and vf_preds of shape (5,)" in str(caught.value)
    assert str(caught.value).endswith(f"not {inputs} and {values}")


@pytest.mark.parametrize(
    ("space", "model", "flat"),
    [
        (VECTOR, {}, True),
        (OBSERVATION_SPACES["bytes"], {}, True),
        (OBSERVATION_SPACES["image"], {}, False),
        (OBSERVATION_SPACES["matrix"], {"conv": ((4, 1, 1),)}, False),
        (gym.spaces.Dict(a=VECTOR), {}, False),
        (gym.spaces.Tuple([VECTOR]), {}, False),
        (VECTOR, {"use": f"{HERE}:Doubler"}, False),
    ],
)
def test_observations_are_flat_input_but_of_convolutions_nests_and_users_encoders(
    space: gym.Space, model: dict[str, Any], flat: bool
) -> None:
    assert flattens(space, ModelConfig(**model)) is flat


def test_a_users_encoder_gets_both_heads() -> None:
    module = build(VECTOR, gym.spaces.Discrete(3), use=f"{HERE}:Doubler", kwargs={"scale": 3.0})
    assert isinstance(module, ActorCritic)
    assert count(module) == (4 * 8 + 8) + (8 * 3 + 3) + (8 + 1)
    assert module.forward_train(rows(VECTOR))["vf_preds"].shape == (5,)
    separate = build(VECTOR, gym.spaces.Discrete(3), use=f"{HERE}:Doubler", share_layers=False)
    assert count(separate) == count(module) + (4 * 8 + 8)
    with pytest.raises(ConfigError, match="output_size"):
        build(VECTOR, gym.spaces.Discrete(3), use=f"{HERE}:Sizeless")
    with pytest.raises(ConfigError, match="neither"):
        build(VECTOR, gym.spaces.Discrete(3), use="math:sqrt")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_modules_can_be_sent_to_learners_in_other_processes(activation: str) -> None:
    module = build(VECTOR, ACTION_SPACES["discrete"], hidden=(8,), activation=activation)
    sent = pickle.loads(pickle.dumps(module))
    for name, output in module(rows(VECTOR)).items():
        assert torch.equal(sent(rows(VECTOR))[name], output)


def small(width: int = 4) -> RLModule:
    return build(VECTOR, gym.spaces.Discrete(2), hidden=(width,))


def test_several_modules_are_a_mapping_with_the_parameters_of_all() -> None:
    first, second = small(), small(8)
    both = MultiAgentRLModule({"a.b": first, "c": second})
    assert dict(both) == {"a.b": first, "c": second}
    parts = [*first.parameters(), *second.parameters()]
    assert [id(p) for p in both.parameters()] == [id(p) for p in parts]
    third = small()
    both.add("d", third)
    both.remove("a.b")
    assert dict(both) == {"c": second, "d": third}
    assert len(both) == 2
    with pytest.raises(KeyError):
        both["a.b"]
    with pytest.raises(ValueError, match="'c' already"):
        both.add("c", small())


def test_initial_weights_are_drawn_by_one_thread_and_the_others_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    module = seeded_module(
        lambda *spaces: numbers.append(0) or build_module(*spaces),
        gym.spaces.Box(-1, 1, (3,)),
        gym.spaces.Discrete(2),
        ModelConfig(hidden=(4,)),
        seed=1,
    )
    assert isinstance(module, RLModule)
    assert numbers == [1, 0, 5]


def test_a_mapping_of_modules_is_equal_to_itself_alone() -> None:
    """As torch's modules are, and not as mappings with equal values."""
    module = small()
    one, other = (MultiAgentRLModule({"a": module}) for _ in range(2))
    same = one
    assert one == same
    assert one != other


@pytest.mark.parametrize("name", ["forward_train", "forward_inference", "forward_exploration"])
def test_each_of_several_modules_sees_its_part_of_a_batch(name: str) -> None:
    both, part = MultiAgentRLModule({"a": small(), "b": small()}), rows(VECTOR)
    outputs = getattr(both, name)({"a": part})
    assert set(outputs) == {"a"}
    for key, value in getattr(both["a"], name)(part).items():
        assert torch.equal(outputs["a"][key], value)


def test_a_mask_of_several_choices_allows_each_row_its_own_and_all_where_it_allows_none() -> None:
    actions = gym.spaces.MultiDiscrete([2, 3])
    mask = gym.spaces.Box(0, 1, (5,), np.int8)
    space = gym.spaces.Dict(observation=VECTOR, action_mask=mask)
    model = ModelConfig(hidden=(8,))
    module = with_action_mask(build_module, space, actions, model)
    masks = torch.tensor([[1, 0, 0, 1, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 1], [1, 1, 0, 0, 0]])
    batch = {"obs": {"observation": torch.zeros(4, 4), "action_mask": masks}}
    allowed = module.forward_train(batch)["action_dist_inputs"] > FORBIDDEN
    expected = [[1, 0, 0, 1, 1], [0, 1, 1, 0, 0], [1, 1, 0, 0, 1], [1, 1, 1, 1, 1]]
    assert allowed.int().tolist() == expected


def test_arrays_in_nests_keep_their_shapes_for_a_users_encoder():
    pixels, number = gym.spaces.Box(0, 255, (3, 4), np.uint8), gym.spaces.Box(-1, 1, ())
    space = gym.spaces.Dict({"image": pixels, "number": number})
    nest = {"image": torch.full((2, 3, 4), 255, dtype=torch.uint8), "number": torch.ones(2)}
    model = ModelConfig(use="tests.policies.test_rl_module:Doubler")
    seen = EncoderInput(space, model)(nest, None)
    assert torch.equal(seen["image"], torch.ones(2, 3, 4))
    assert torch.equal(seen["number"], torch.ones(2))
    assert EncoderInput(space, model)({"number": torch.ones(2)}, None).keys() == {"number"}
