"""One contiguous vector that a module's parameters and their gradients are views of.

Owns the re-homing of parameters. With it, weights travel as one buffer, an optimizer steps one
tensor, the global gradient norm is one call and zeroing gradients is one call. Must not know what
modules compute or how they are optimised.
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.data.column_data import map_leaves
from rlrun.data.nested import nest
from rlrun.policies.layers import Layout


class FlatParameters:
    """Re-homes every parameter and floating-point buffer of a module into one float32 vector.

    Flatten after the module is on its device: ``module.to(...)`` gives parameters new storage.
    Buffers (such as running statistics) come after all parameters so that copying the vector
    copies everything the module computes with; their gradient stays zero, which no optimizer
    without weight decay answers with a step.

    Attributes:
        vector: all values, float32 [P]. Changing it in place changes the module.
        grads: all gradients, float32 [P], also ``vector.grad``. Each parameter's ``.grad`` is a
            view of it, into which autograd accumulates in place: clear it with ``zero_grad()``,
            never by setting gradients to None.
        layout: name -> (offset, shape), in the order of ``module.named_parameters()`` and then
            ``module.named_buffers()``.
        buffers: names of the buffers, which may be infinite, as masks are.
        num_parameters: numbers of the vector that come before the buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        named = dict(_float_tensors(module))
        devices = {tensor.device for tensor in named.values()}
        if len(devices) > 1:
            raise ValueError(f"a module's parameters must be on one device, not on {devices}")
        self.layout: Layout = {}
        offset = 0
        for name, tensor in named.items():
            if tensor.dtype != torch.float32:
                raise TypeError(f"parameter {name!r} is {tensor.dtype}; only float32 is supported")
            self.layout[name] = (offset, tuple(tensor.shape))
            offset += tensor.numel()
        self.buffers = frozenset(
            name for name, tensor in named.items() if not isinstance(tensor, nn.Parameter)
        )
        self.num_parameters = offset - sum(named[name].numel() for name in self.buffers)
        device = next(iter(devices), torch.device("cpu"))
        self.vector = torch.empty(offset, dtype=torch.float32, device=device)
        self.grads = torch.zeros_like(self.vector)
        self.vector.grad = self.grads
        # In numpy what is done between closed forms in numpy: there a call of torch takes 20 us.
        on_cpu = device.type == "cpu"
        self._arrays = (self.vector.numpy(), self.grads.numpy()) if on_cpu else None
        for name, tensor in named.items():
            self.view(name).copy_(tensor.detach())
            tensor.data = self.view(name)
            if tensor.requires_grad:
                tensor.grad = self._slice(self.grads, name)

    def view(self, name: str) -> Tensor:
        """The part of the vector that is the parameter of this name, in its shape."""
        return self._slice(self.vector, name)

    def zero_grad(self) -> None:
        """Set all gradients to zero, in place."""
        self.grads.zero_()

    def clip_grad_norm(self, most: float | None) -> Tensor | float:
        """Scale all gradients together so that their norm is at most ``most``, if that is given.

        Returns:
            The norm before; on the CPU a number, elsewhere a tensor.
        """
        if self._arrays is None:
            norm = torch.linalg.vector_norm(self.grads)
            if most is not None:
                self.grads.mul_((most / (norm + 1e-6)).clamp(max=1.0))
            return norm
        _, grads = self._arrays
        with np.errstate(all="ignore"):  # a run that diverges is reported elsewhere
            length = math.sqrt(grads.dot(grads))
            share = 1.0 if most is None else most / (length + 1e-6)
            if not share >= 1.0:  # NaN included
                grads *= np.float32(share)
        return length

    def are_finite(self) -> bool:
        """Whether no parameter is NaN or infinite; buffers aside."""
        if self._arrays is None:
            return bool(torch.isfinite(self.vector[: self.num_parameters]).all())
        return bool(np.isfinite(self._arrays[0][: self.num_parameters]).all())

    def to_numpy(self) -> np.ndarray:
        """A copy of the vector on the CPU, float32 [P]."""
        if self._arrays is None:
            return self.vector.to("cpu", copy=True).numpy()
        return self._arrays[0].copy()

    def named_arrays(self) -> dict[str, np.ndarray]:
        """Copies of all parameters by name, as checkpoints store them."""
        flat = self.to_numpy()
        return {
            name: flat[offset : offset + math.prod(shape)].reshape(shape)
            for name, (offset, shape) in self.layout.items()
        }

    def load(self, values: np.ndarray | Tensor) -> None:
        """Overwrite all parameters from a vector [P]; one copy.

        Raises:
            ValueError: when the length differs from this module's.
        """
        if tuple(values.shape) != tuple(self.vector.shape):
            raise ValueError(
                f"these weights are {tuple(values.shape)}, the module's "
                f"{tuple(self.vector.shape)}: they belong to another model"
            )
        with torch.no_grad():
            self.vector.copy_(to_tensor(values) if isinstance(values, np.ndarray) else values)

    def load_named(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrite all parameters from arrays by name; raises ValueError as `require_named`."""
        self.require_named(arrays)
        flat = np.empty(self.vector.numel(), np.float32)
        for name, (offset, shape) in self.layout.items():
            flat[offset : offset + math.prod(shape)] = arrays[name].reshape(-1)
        self.load(flat)

    def require_named(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise ValueError, naming each parameter that is missing, unknown or of another shape."""
        problems = [f"{name} is unknown" for name in arrays if name not in self.layout]
        for name, (_, shape) in self.layout.items():
            if name not in arrays:
                problems.append(f"{name} is missing")
            elif arrays[name].shape != shape:
                problems.append(f"{name} is {arrays[name].shape}, the module has {shape}")
        if problems:
            raise ValueError("these weights belong to another model: " + "; ".join(problems))

    def check_valid(self) -> None:
        """Raise AssertionError if a parameter or gradient is no longer a view of the vectors."""
        for name, tensor in _float_tensors(self._module):
            assert tensor.data_ptr() == self.view(name).data_ptr(), f"{name} left the vector"
            if tensor.requires_grad:
                assert tensor.grad is not None, f"{name} lost its gradient"
                expected = self._slice(self.grads, name).data_ptr()
                assert tensor.grad.data_ptr() == expected, f"the gradient of {name} left the vector"

    def _slice(self, flat: Tensor, name: str) -> Tensor:
        offset, shape = self.layout[name]
        return flat[offset : offset + math.prod(shape)].view(shape)


def weights_checksum(module: nn.Module) -> int:
    """The same number for modules of one kind with the same weights, and hardly ever else.

    The weights are what `FlatParameters` holds: other buffers do not reach env runners.
    """
    checksum = 0
    for _, tensor in _float_tensors(module):
        checksum = zlib.crc32(tensor.detach().contiguous().cpu().numpy().data, checksum)
    return checksum


def integer_buffers(module: nn.Module) -> dict[str, np.ndarray]:
    """Copies of the persistent buffers of integers and truth values, which no vector holds, by
    name; such as the number of batches that BatchNorm has seen.
    """
    return {name: one.to("cpu", copy=True).numpy() for name, one in _other_buffers(module)}


def set_integer_buffers(module: nn.Module, kept: Mapping[str, np.ndarray]) -> None:
    """Load buffers from `integer_buffers`, as far as the module has them."""
    for name, buffer in _other_buffers(module):
        if name in kept:
            buffer.copy_(to_tensor(kept[name]))


def as_array(column: Any) -> Any:
    """A tensor as an array, sharing memory on the CPU; an array as it is."""
    return column.cpu().numpy() if isinstance(column, Tensor) else column


def to_tensor(array: np.ndarray) -> Tensor:
    """The array as a CPU tensor, sharing memory unless the array is read-only.

    Arrays out of Ray's object store are read-only, about which torch would warn each time.
    """
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def to_tensors(rows: Any, device: torch.device) -> Any:
    """Rows as a tensor on a device, or as a nest of tensors if they are nested."""
    return map_leaves(partial(_on_device, device=device), nest(rows))


def _on_device(leaf: Any, device: torch.device) -> Tensor:
    tensor = leaf if isinstance(leaf, Tensor) else to_tensor(np.ascontiguousarray(leaf))
    return tensor.to(device, non_blocking=True)


def _other_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    persistent = module.state_dict(keep_vars=True).keys()
    for name, buffer in module.named_buffers():
        if name in persistent and not (buffer.is_floating_point() or buffer.is_complex()):
            yield name, buffer


def _float_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    persistent = module.state_dict(keep_vars=True).keys()
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if isinstance(tensor, nn.Parameter) or (name in persistent and tensor.is_floating_point()):
            yield name, tensor
