"""CUDA graphs: work that a GPU repeats, recorded once and then launched as a whole.

An update of a small network is a hundred kernels of a few microseconds, and launching each from
Python takes longer than the kernel. Must not know losses, modules or optimizers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rlrun.data.column_data import leaves, map_leaves
from rlrun.policies.flat_parameters import to_tensor

T = TypeVar("T")

Outputs = dict[str, Any]
"""Tensors by name, scalars most of them."""

MAX_GRAPHS = 8  # of one function; the least recently used is dropped first


class CudaGraphs:
    """Calls a function; the second and later calls of a kind are recorded and replayed.

    A replay launches the same kernels on the same memory, and runs no Python: the function must
    depend on its arguments alone, and on memory that stays in its place, such as the parameters of
    a network. Kinds of calls differ in the shapes and types of their inputs or in a constant.
    The first of a kind runs as it is, in which libraries set themselves up.

    Args:
        function: ``function(*constants, inputs, **constants)`` -> `Outputs`, on the device.
        device: a GPU.
    """

    def __init__(self, function: Callable[..., Outputs], device: torch.device) -> None:
        self._function, self._device = function, device
        self._calls: OrderedDict[Hashable, _Replay | None] = OrderedDict()  # None: called once
        self._pool: Any = None

    def __call__(self, *arguments: Any, **named: Any) -> Outputs:
        """Call the function, or replay it.

        The last of the ``arguments`` are inputs, a dict of tensors, arrays and numbers, or nests of
        them. The function gets all as tensors on the device; they may change from call to call. The
        other arguments are constants and modules, hashable, which are recorded as they are.

        Raises:
            RuntimeError: the function cannot be recorded, for example as it waits for the GPU.
        """
        if torch.cuda.is_current_stream_capturing():  # a part of what is being recorded
            return self._function(*arguments, **named)
        *constants, inputs = arguments
        function = partial(self._function, *constants, **named)
        key = (*constants, *named.items(), *inputs, *map(_form, leaves(inputs)))
        if key not in self._calls:
            self._calls[key] = None
            if len(self._calls) > MAX_GRAPHS:
                self._calls.popitem(last=False)
            with side_stream(self._device):
                return function(self._on_device(inputs))
        self._calls.move_to_end(key)
        replay = self._calls[key]
        if replay is None:
            replay = self._calls[key] = self._recorded(function, self._on_device(inputs))
        return replay(inputs)

    def _on_device(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs in new memory of the device."""
        moved: dict[str, Any] = map_leaves(lambda leaf: _tensor(leaf, self._device), inputs)
        return moved

    def _recorded(self, function: Callable[..., Outputs], inputs: dict[str, Any]) -> _Replay:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()

        def call() -> tuple[Tensor | None, Outputs]:
            outputs = function(inputs)
            scalars = [x for x in outputs.values() if _is_scalar(x)]
            return torch.stack(scalars) if scalars else None, outputs

        try:
            launch, (scalars, outputs) = record(call, self._device, self._pool)
        except Exception as error:
            error.add_note(
                "This update cannot be recorded as a CUDA graph; set learners.cuda_graphs: false."
            )
            raise
        return _Replay(launch, inputs, scalars, outputs)


class _Replay:
    """A recorded call.

    Args:
        launch: computes the outputs from what lies in the inputs' memory.
        inputs: its inputs, whose memory is its own.
        scalars: the scalars among its outputs in one vector, so that one copy takes all; None if
            there are none.
        outputs: its outputs, whose memory each launch overwrites.
    """

    def __init__(
        self,
        launch: Callable[[], None],
        inputs: dict[str, Any],
        scalars: Tensor | None,
        outputs: Outputs,
    ) -> None:
        self._launch = launch
        self._inputs: list[Tensor] = list(leaves(inputs))
        self._numbers: list[Any] = [None] * len(self._inputs)  # as they lie there now
        self._scalars, self._outputs = scalars, outputs
        self._names = [name for name, value in outputs.items() if _is_scalar(value)]

    def __call__(self, inputs: dict[str, Any]) -> Outputs:
        """Launch it for other inputs; the outputs are copies."""
        for i, leaf in enumerate(leaves(inputs)):
            own = self._inputs[i]
            if isinstance(leaf, Tensor | np.ndarray):
                tensor = leaf if isinstance(leaf, Tensor) else to_tensor(leaf)
                own.copy_(tensor, non_blocking=True)
            elif leaf != self._numbers[i]:
                own.fill_(leaf)
                self._numbers[i] = leaf
        self._launch()
        outputs = dict(self._outputs)
        if self._scalars is not None:
            outputs.update(zip(self._names, self._scalars.clone().unbind(), strict=True))
        for name in outputs.keys() - self._names:
            outputs[name] = outputs[name].clone()
        return outputs


def record(call: Callable[[], T], device: torch.device, pool: Any) -> tuple[Callable[[], None], T]:
    """Record the kernels of a call without running them.

    Args:
        pool: of memory, see `torch.cuda.graph_pool_handle`; recordings that never run at the same
            time, and whose outputs are copied, may share it.

    Returns:
        What launches them, and what the call returned, whose memory each launch overwrites.
    """
    graph = torch.cuda.CUDAGraph()
    # torch.cuda.graph would collect Python's garbage first, which takes longer than all the rest.
    with side_stream(device):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            returned = call()
        except Exception:
            with suppress(RuntimeError):  # which says only that something was wrong before
                graph.capture_end()
            raise
        graph.capture_end()
    return graph.replay, returned


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Run on the one stream of this device on which calls are recorded, in turn with the present.

    The first call of a kind runs on it, too: autograd may remember the stream on which it first saw
    a parameter, and then waits for it, which recording on another stream does not permit.
    """
    present, stream = torch.cuda.current_stream(device), _side_stream(device)
    stream.wait_stream(present)
    with torch.cuda.stream(stream):
        yield
    present.wait_stream(stream)


def _is_scalar(output: Tensor) -> bool:
    return not output.dim() and output.dtype == torch.float32


def _form(leaf: Any) -> Any:
    """What must be equal for a recorded call to fit."""
    if isinstance(leaf, Tensor):
        return leaf.dtype, leaf.shape, leaf.stride(), leaf.device
    if isinstance(leaf, np.ndarray):
        return leaf.dtype, leaf.shape
    return type(leaf)


def _tensor(leaf: Any, device: torch.device) -> Tensor:
    """A copy on the device."""
    if isinstance(leaf, Tensor):
        return torch.empty_like(leaf, device=device).copy_(leaf)
    return torch.as_tensor(leaf).to(device, copy=True)
