"""One vector behind a module's parameters and gradients."""

import numpy as np
import pytest
import torch
from torch import nn

from rlrun.policies.flat_parameters import FlatParameters, integer_buffers, set_integer_buffers


def make_module(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))


def test_values_and_outputs_survive_the_move() -> None:
    module, untouched = make_module(), make_module()
    x = torch.randn(7, 3)
    flat = FlatParameters(module)
    flat.check_valid()
    torch.testing.assert_close(module(x), untouched(x), rtol=0, atol=0)
    assert flat.vector.shape == (15 + 5 + 10 + 10 + 2 + 10,)
    assert list(flat.layout)[:2] == ["0.weight", "0.bias"]
    assert flat.layout["0.bias"] == (15, (5,))
    assert list(flat.layout)[-2:] == ["1.running_mean", "1.running_var"]


def test_gradients_accumulate_in_place_and_stay_views() -> None:
    module, reference = make_module(), make_module()
    flat = FlatParameters(module)
    x = torch.randn(16, 3)
    for _ in range(2):
        module(x).square().sum().backward()
        reference(x).square().sum().backward()
    flat.check_valid()
    for name, parameter in reference.named_parameters():
        offset, shape = flat.layout[name]
        mine = flat.grads[offset : offset + parameter.numel()].view(shape)
        torch.testing.assert_close(mine, parameter.grad)
    flat.zero_grad()
    flat.check_valid()
    assert not flat.grads.any()


def test_round_trips() -> None:
    source, target = FlatParameters(make_module(1)), FlatParameters(make_module(2))
    frozen = source.to_numpy()
    frozen.flags.writeable = False  # as Ray's object store hands it out
    target.load(frozen)
    np.testing.assert_array_equal(target.to_numpy(), frozen)
    other = FlatParameters(make_module(3))
    other.load_named(source.named_arrays())
    np.testing.assert_array_equal(other.to_numpy(), frozen)
    other.load(source.vector)
    for flat in (source, target, other):
        flat.check_valid()


def test_copies_do_not_alias() -> None:
    flat = FlatParameters(make_module())
    vector, named = flat.to_numpy(), flat.named_arrays()
    before = vector.copy()
    with torch.no_grad():
        flat.vector += 1.0
    np.testing.assert_array_equal(vector, before)
    np.testing.assert_array_equal(named["0.bias"], before[15:20])


def test_weights_of_another_model_are_refused_and_change_nothing() -> None:
    flat = FlatParameters(make_module())
    before = flat.to_numpy()
    with pytest.raises(ValueError, match=r"\(3,\).*\(52,\).*another model"):
        flat.load(np.zeros(3, np.float32))
    arrays = {name: array + 1 for name, array in flat.named_arrays().items()}
    arrays["surplus"] = arrays.pop("3.bias")
    arrays["0.bias"] = arrays["0.bias"][:2]
    with pytest.raises(
        ValueError, match=r"surplus is unknown.*0\.bias is \(2,\).*3\.bias is missing"
    ):
        flat.load_named(arrays)
    np.testing.assert_array_equal(flat.to_numpy(), before)


def test_other_types_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"'bias' is torch\.float64|'weight' is torch\.float64"):
        FlatParameters(nn.Linear(2, 2).double())


def test_parameters_on_two_devices_are_an_error() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(ValueError, match="must be on one device"):
        FlatParameters(module)


def test_check_valid_notices_a_parameter_that_left() -> None:
    module = make_module()
    flat = FlatParameters(module)
    module.zero_grad(set_to_none=True)
    with pytest.raises(AssertionError, match="lost its gradient"):
        flat.check_valid()
    module[0].weight.data = module[0].weight.data.clone()
    with pytest.raises(AssertionError, match=r"0\.weight left the vector"):
        flat.check_valid()


def test_a_module_without_parameters() -> None:
    flat = FlatParameters(nn.Identity())
    assert flat.vector.shape == (0,)
    assert flat.named_arrays() == {}


def test_buffers_of_integers_go_from_one_module_to_another() -> None:
    """Those of floats lie in the vector."""
    one, other = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    one(torch.randn(3, 2))
    kept = integer_buffers(one)
    assert {name: array.tolist() for name, array in kept.items()} == {"num_batches_tracked": 1}
    set_integer_buffers(other, kept)
    assert other.num_batches_tracked == 1
