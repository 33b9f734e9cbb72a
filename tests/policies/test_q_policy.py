"""Acting by action values: numpy and torch agree, epsilon means what it says."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.config.problems import ConfigError
from rlrun.config.schema import EnvSpec, ModelConfig
from rlrun.data import columns as col
from rlrun.data.view_requirement import ViewRequirement
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.layers import Layers, QOptions
from rlrun.policies.networks import MLP
from rlrun.policies.numpy_policy import MLPPolicy
from rlrun.policies.q_network import QNetwork, build_q_network, dueling_values
from rlrun.policies.q_policy import build_q_policy
from rlrun.policies.rl_module import RLModule
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest

OBS_SPACE = gym.spaces.Box(-1, 1, (5,), np.float32)
ACTIONS = gym.spaces.Discrete(3)


@pytest.mark.parametrize("atoms", [{}, {"num_atoms": 5, "v_min": -1.0, "v_max": 3.0}])
@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize(
    ("hidden", "streams"), [((), None), ((7,), None), ((7, 6), None), ((7, 6, 5), (4,)), ((7,), ())]
)
def test_the_numpy_policy_acts_with_the_networks_values(dueling, hidden, streams, noisy, atoms):
    model = ModelConfig(hidden=hidden, activation="relu" if noisy else "tanh")
    options = QOptions(dueling=dueling, hiddens=streams, noisy=noisy, **atoms)
    network = build_q_network(OBS_SPACE, ACTIONS, model, options=options)
    flat = FlatParameters(network)
    policy = build_q_policy(OBS_SPACE, ACTIONS, model, options=options)
    assert isinstance(policy, MLPPolicy)
    assert policy.layout == flat.layout
    weights = np.random.default_rng(0).normal(size=len(policy.get_weights())).astype(np.float32)
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
    network = QNetwork(space, ACTIONS, model, options=QOptions(dueling=True))
    policy = build_q_policy(space, ACTIONS, model, options=QOptions(dueling=True))
    policy.set_weights(FlatParameters(network).to_numpy())
    obs = np.random.default_rng(1).integers(256, size=(4, 40, 40, 3), dtype=np.uint8)
    _, _, extras = policy.compute_actions(obs, explore=False)
    with torch.no_grad():
        values = network.forward_train({col.OBS: torch.from_numpy(obs)})[col.ACTION_DIST_INPUTS]
    np.testing.assert_allclose(extras[col.ACTION_DIST_INPUTS], values.numpy(), rtol=1e-5)


def test_dueling_subtracts_the_mean_over_actions():
    values = dueling_values(torch.tensor([[10.0]]), torch.tensor([[1.0, 2.0, 6.0]]))
    assert values.tolist() == [[8.0, 9.0, 13.0]]


def test_other_action_spaces_are_refused_by_name():
    with pytest.raises(ConfigError, match="Discrete action space"):
        build_q_policy(
            OBS_SPACE, gym.spaces.Box(-1, 1, (2,)), ModelConfig(), options=QOptions(dueling=False)
        )


def test_noise_is_new_in_each_fragment_the_learners_own_and_not_there_in_evaluation():
    model, options = ModelConfig(hidden=(7, 6)), QOptions(dueling=True, noisy=True)
    network = build_q_network(OBS_SPACE, ACTIONS, model, options=options)
    policy = build_q_policy(OBS_SPACE, ACTIONS, model, options=options)
    policy.set_weights(FlatParameters(network).to_numpy())
    obs = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
    noise = np.ones((4, 2), dtype=np.float32)  # no epsilon-greedy action

    def acted(explore=True):
        return policy.compute_actions(obs, explore=explore, noise=noise)[2]["action_dist_inputs"]

    def learned(forward):
        with torch.no_grad():
            return forward({col.OBS: torch.from_numpy(obs)})[col.ACTION_DIST_INPUTS].numpy()

    means = acted(explore=False)
    np.testing.assert_array_equal(acted(), means)  # before any noise was drawn
    np.testing.assert_allclose(learned(network.forward_train), means, rtol=1e-4, atol=1e-5)
    policy.begin_fragment(np.random.default_rng(3))
    first = acted()
    assert np.abs(first - means).max() > 0.01
    np.testing.assert_array_equal(acted(), first)
    policy.begin_fragment(np.random.default_rng(4))
    assert np.abs(acted() - first).max() > 0.01
    np.testing.assert_array_equal(acted(explore=False), means)
    # The same seed gives learner and runner the same noise, layer by layer.
    network.draw_noise(np.random.default_rng(4))
    np.testing.assert_allclose(learned(network.forward_train), acted(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(learned(network.forward_exploration), acted(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(learned(network.forward_inference), means, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("noisy", [True, False])
def test_networks_with_noise_alone_draw_it_for_fragments(dueling, noisy):
    options = QOptions(dueling=dueling, noisy=noisy)
    policy = build_q_policy(OBS_SPACE, ACTIONS, ModelConfig(hidden=(7, 6)), options=options)
    assert policy.draws_for_fragments is noisy


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("images", [True, False])
def test_layers_start_uniform_within_the_root_of_their_inputs(dueling, noisy, images):
    """As torch's own do (Mnih et al. 2015); orthogonal ones let the values run away."""
    torch.manual_seed(0)
    space = gym.spaces.Box(0, 255, (40, 40, 3), np.uint8) if images else OBS_SPACE
    model = ModelConfig(hidden=(64, 48), conv_head=64)
    network = QNetwork(space, ACTIONS, model, options=QOptions(dueling=dueling, noisy=noisy))
    layers = [m for m in network.modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d)]
    assert len(layers) >= 3
    for layer in layers:
        bound = layer.weight[0].numel() ** -0.5
        weights, biases = layer.weight.detach().abs(), layer.bias.detach().abs()
        assert bound * 0.9 < weights.max() <= bound
        assert 0 < biases.max() <= bound
        assert weights.mean().item() == pytest.approx(bound / 2, rel=0.25)


@pytest.mark.parametrize(
    ("options", "widths"),
    [
        ({"dueling": True}, {"advantage": [16, 3], "value": [16, 1]}),
        ({"dueling": True, "hiddens": (5,)}, {"advantage": [5, 3], "value": [5, 1]}),
        ({"dueling": False}, {"q": [3]}),
    ],
)
def test_streams_behind_convolutions_have_a_hidden_layer_each(options, widths):
    space = gym.spaces.Box(0, 255, (40, 40, 3), np.uint8)
    network = QNetwork(space, ACTIONS, ModelConfig(conv_head=16), options=QOptions(**options))
    found = {}
    for name, parameter in network.named_parameters():
        stream = name.partition(".")[0]
        if stream != "encoder" and parameter.dim() == 1:  # the biases of its layers
            found.setdefault(stream, []).append(len(parameter))
    assert found == widths


def test_noisy_weights_are_their_means_and_factorised_noise():
    """Fortunato et al., eq. 10 and 11, for one layer, number by number."""
    torch.manual_seed(0)
    layer = MLP(Layers((3, 2), "relu", 1.0, "uniform", sigma0=0.5))
    rng = np.random.default_rng(7)
    layer.draw_noise(rng)
    e = np.random.default_rng(7).standard_normal(5, dtype=np.float32)
    f = [np.sign(x) * np.sqrt(abs(x)) for x in e]
    means, x = getattr(layer, "0"), torch.tensor([[0.3, -1.0, 2.0]])
    for i in range(2):
        y = means.bias[i] + means.bias_sigma[i] * f[3 + i]
        for j in range(3):
            y = y + (means.weight[i, j] + means.weight_sigma[i, j] * f[3 + i] * f[j]) * x[0, j]
        assert layer(x)[0, i].item() == pytest.approx(y.item(), rel=1e-5)
    assert means.weight_sigma.unique().tolist() == pytest.approx([0.5 / 3**0.5])
    assert means.weight.abs().max() <= 3**-0.5
    layer(x).sum().backward()
    assert means.weight_sigma.grad.abs().min() > 0


def test_images_have_noise_in_each_fragment_too():
    space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    model, options = ModelConfig(conv_head=16), QOptions(noisy=True)
    policy = build_q_policy(space, ACTIONS, model, options=options)
    obs = np.random.default_rng(1).integers(256, size=(4, 8, 8, 3), dtype=np.uint8)
    values = []
    for seed in (3, 3, 4):
        rng = np.random.default_rng(seed)
        policy.begin_fragment(rng)
        noise = policy.draw_noise(rng, 1, 4)[0]
        values.append(policy.compute_actions(obs, noise=noise)[2]["action_dist_inputs"])
    np.testing.assert_array_equal(values[0], values[1])
    assert (values[0] != values[2]).all()


def test_a_runner_acts_with_noisy_weights_when_it_explores():
    runner = EnvRunner(
        RunnerSpec(
            EnvSpec(use="CartPole-v1"),
            policy_factory=partial(build_q_policy, options=QOptions(noisy=True)),
        )
    )
    weights = np.random.default_rng(0).normal(size=len(runner.policy.get_weights()))
    runner.set_weights({"default_policy": weights.astype(np.float32)})
    batch = runner.sample_fragment(SampleRequest(0, 8)).batch
    means = runner.policy.compute_actions(batch["obs"], explore=False)[2]["action_dist_inputs"]
    assert (np.abs(batch["action_dist_inputs"] - means) > 1e-4).all()


class Zeros(RLModule):
    """A network of its own."""

    def forward_train(self, batch):
        return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 3)}


@pytest.mark.parametrize("num_atoms", [1, 2, 3])
def test_distributions_of_values_come_with_their_logits_and_values_alone(num_atoms):
    options = QOptions(num_atoms=num_atoms)
    network = build_q_network(OBS_SPACE, ACTIONS, ModelConfig(hidden=(7,)), options=options)
    with torch.no_grad():
        outputs = network.forward_train({col.OBS: torch.zeros(2, 5)})
    assert outputs[col.ACTION_DIST_INPUTS].shape == (2, 3)
    assert ("atom_logits" in outputs) is (num_atoms > 1)


def test_a_network_of_its_own_is_taken_as_it_is():
    model = ModelConfig(use=f"{__name__}:Zeros")
    assert type(build_q_network(OBS_SPACE, ACTIONS, model, options=QOptions())) is Zeros


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("noisy", QOptions(noisy=True)),
        ("num_atoms", QOptions(num_atoms=5)),
        ("hiddens", QOptions(hiddens=(7,))),
    ],
)
def test_what_cannot_be_done_to_a_network_of_its_own_is_named(key, options):
    model = ModelConfig(use=f"{__name__}:Zeros")
    with pytest.raises(ConfigError, match=rf"training.{key}: it does not apply to .*Zeros"):
        build_q_network(OBS_SPACE, ACTIONS, model, options=options)


class Remembers(Zeros):
    def initial_state(self):
        return [torch.zeros(3)]


class LooksBack(Zeros):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.view_requirements["prev_rewards"] = ViewRequirement("rewards", shift=-1)


@pytest.mark.parametrize("kind", [Remembers, LooksBack])
def test_a_network_of_its_own_that_sees_more_than_a_transition_holds_is_refused(kind):
    model = ModelConfig(use=f"{__name__}:{kind.__name__}")
    with pytest.raises(ConfigError, match=r"model.use: .* has states or views of other steps"):
        build_q_network(OBS_SPACE, ACTIONS, model, options=QOptions())
