"""Layers: layout, numpy forward, torch module and gradient of one description are one network."""

import copy
import ctypes
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.learning.machine import OPENBLAS_THREADS, set_num_threads
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.layers import Layers, Network, has_image
from rlrun.policies.networks import MLP, TwinMLP
from rlrun.policies.numpy_policy import FlatArrays, NumpyMLP

WIDTHS = st.integers(1, 5)


@settings(max_examples=60)
@given(
    sizes=st.lists(WIDTHS, min_size=2, max_size=5).map(tuple),
    num_shared=st.integers(0, 2),
    activation=st.sampled_from(["tanh", "relu", "silu", "linear"]),
    sigma0=st.sampled_from([None, 0.5]),
)
def test_numpy_and_torch_have_the_same_parameters_and_outputs(
    sizes, num_shared, activation, sigma0
):
    num_shared = min(num_shared, len(sizes) - 2)
    encoder = Layers(sizes[: num_shared + 1], activation)
    head = Layers(sizes[num_shared:], activation, 1.0, "uniform", sigma0)
    network = Network({"encoder": encoder, "head": head})
    modules = torch.nn.ModuleDict({"encoder": MLP(encoder), "head": MLP(head)})
    flat, arrays = FlatParameters(modules), FlatArrays(network)
    assert arrays.layout == flat.layout
    assert not arrays.vector.any(), "until there are weights"
    rng = np.random.default_rng(0)
    arrays.vector[:] = rng.normal(0, 0.5, len(arrays.vector))
    flat.load(arrays.vector)
    forward = NumpyMLP(arrays, "encoder", "head")
    forward.draw_noise(np.random.default_rng(1))
    modules["head"].draw_noise(np.random.default_rng(1))
    for noisy in (True, False):
        x = rng.normal(size=(7, sizes[0])).astype(np.float32)
        expected = modules["head"](modules["encoder"](torch.from_numpy(x)), noisy=noisy)
        np.testing.assert_allclose(forward(x, noisy), expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear"])
@pytest.mark.parametrize("output_gain", [None, 1.0])
@pytest.mark.parametrize("noise", [None, "not drawn yet", "drawn"])
def test_the_gradient_is_autograds(activation, output_gain, noise):
    torch.manual_seed(0)
    sigma0 = None if noise is None else 0.5
    module = MLP(Layers((3, 5, 4), activation, output_gain, sigma0=sigma0))
    if noise == "drawn":
        module.draw_noise(np.random.default_rng(0))
    flat, x = FlatParameters(module), torch.randn(6, 3, requires_grad=True)
    up = torch.randn(6, 4)
    outputs = module(x)
    outputs.backward(up)
    expected = flat.grads.clone()
    flat.grads.fill_(float("nan"))  # every gradient is written, not added to
    mine, backward = module.vjp(x.detach().numpy())
    torch.testing.assert_close(torch.from_numpy(mine), outputs.detach())
    of_input = backward(up.clone().numpy(), to_input=True)
    torch.testing.assert_close(torch.from_numpy(of_input), x.grad)
    torch.testing.assert_close(flat.grads, expected)


def test_twins_start_apart_and_without_biases():
    module = TwinMLP(Layers((3, 5, 1), "relu", 1.0))
    for weight, bias in zip(module.weights, module.biases, strict=True):
        assert not torch.equal(*weight)
        assert not bias.any()


def test_uniform_twins_start_as_two_of_torchs_linear_layers():
    """Within 1 / sqrt(inputs)."""
    torch.manual_seed(0)
    module = TwinMLP(Layers((4, 64, 1), "relu", 1.0, "uniform"))
    for weight, bias in zip(module.weights, module.biases, strict=True):
        bound = weight.shape[1] ** -0.5
        for half in (*weight, *bias):
            assert half.abs().max() <= bound
            assert half.numel() < 30 or half.abs().max() > 0.8 * bound
        assert not torch.equal(*weight)
        assert not torch.equal(*bias)


def autograd_and_closed_form(module, x):
    """Outputs and gradients of a module, by both."""
    grads = [parameter.grad for parameter in module.parameters()]
    outputs, results = module(x), []
    outputs.sum().backward()
    results.append((outputs.detach(), *(grad.clone() for grad in grads)))
    for grad in grads:
        grad.fill_(float("nan"))
    mine, backward = module.vjp(x.numpy())
    backward(np.ones_like(mine))
    return *results, (torch.from_numpy(mine), *(grad.clone() for grad in grads))


def test_the_gradient_is_of_the_parameters_where_they_are_now():
    """They move into a vector, and copies of a module have parameters of their own."""
    torch.manual_seed(0)
    module, x = MLP(Layers((3, 5, 4), "tanh", 1.0)), torch.randn(6, 3)
    module.vjp(x.numpy())
    FlatParameters(module)
    torch.testing.assert_close(*autograd_and_closed_form(module, x))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        flat = FlatParameters(other)
        flat.load(torch.randn_like(flat.vector))
        torch.testing.assert_close(*autograd_and_closed_form(other, x))
    FlatParameters(module)
    torch.testing.assert_close(*autograd_and_closed_form(module, x))


def test_a_module_without_gradients_has_outputs_in_closed_form():
    module, x = MLP(Layers((3, 5, 4), "relu", 1.0)), torch.randn(6, 3)
    np.testing.assert_allclose(module.vjp(x.numpy())[0], module(x).detach(), rtol=1e-6)


def test_the_threads_of_numpys_matrix_products_are_bounded_too():
    library = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    names = [name.replace("set", "get") for name in OPENBLAS_THREADS]
    found = [getattr(library, name) for name in names if hasattr(library, name)]
    if not found:
        pytest.skip("numpy does not compute with OpenBLAS here")
    for number in (2, 1):
        set_num_threads(number)
        assert (torch.get_num_threads(), found[0]()) == (number, number)


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear"])
@pytest.mark.parametrize("hidden", [(), (5,)])
def test_the_gradient_of_twins_is_autograds(activation, hidden):
    torch.manual_seed(0)
    module = TwinMLP(Layers((3, *hidden, 1), activation, 1.0))
    assert module.has_vjp
    flat, x = FlatParameters(module), torch.randn(6, 3, requires_grad=True)
    up = torch.randn(2, 6)
    up[0, ::2] = up[1, 1::2] = 0.0  # of the smaller value, half of the rows have a gradient
    outputs = module(x).squeeze(-1)
    outputs.backward(up)
    expected = flat.grads.clone()
    flat.grads.fill_(float("nan"))
    mine, backward = module.vjp(x.detach().numpy())
    torch.testing.assert_close(torch.from_numpy(mine), outputs.detach())
    backward.to_parameters(up.numpy())
    torch.testing.assert_close(flat.grads, expected)
    of_input = module.vjp(x.detach().numpy())[1].to_input(up.numpy())
    torch.testing.assert_close(torch.from_numpy(of_input), x.grad)
    module = copy.deepcopy(module)  # its parameters are elsewhere
    FlatParameters(module).vector.fill_(0.0)
    assert not module.vjp(x.detach().numpy())[0].any()


@pytest.mark.parametrize(
    "module",
    [MLP(Layers((3, 5, 4), "relu", 1.0)), TwinMLP(Layers((3, 5, 1), "relu", 1.0))],
    ids=["one", "twins"],
)
def test_closed_forms_are_of_layers_on_the_cpu(module):
    assert module.has_vjp
    assert not module.to("meta").has_vjp  # as on a GPU


def test_twins_with_several_outputs_have_no_closed_form():
    assert not TwinMLP(Layers((3, 5, 2), "relu", 1.0)).has_vjp


def test_an_image_anywhere_in_a_nest_is_found():
    image, vector = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8), gym.spaces.Box(-1, 1, (4,))
    for nest in (gym.spaces.Tuple([image, vector]), gym.spaces.Dict(a=vector, b=image)):
        assert has_image(nest)
        assert has_image(gym.spaces.Tuple([vector, nest]))
        assert has_image(gym.spaces.Dict(a=vector, b=nest))
    assert not has_image(gym.spaces.Tuple([vector, gym.spaces.Dict(a=gym.spaces.Discrete(9))]))
