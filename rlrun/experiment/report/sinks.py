"""Sinks: the objects that receive the result of every iteration, all of them the same dict.

Owns the interface, how sinks are made, and the TensorBoard sink. It must not know which numbers a
result holds.
"""

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from rlrun.config.registry import import_object
from rlrun.config.schema import UseSpec
from rlrun.data.results import addresses, number_at
from rlrun.experiment.report.jsonl import JsonlSink
from rlrun.experiment.run_folder import RunFolder

CONSOLE = "console"


class Sink(Protocol):
    """The interface of everything that ``report.sinks`` names."""

    def write(self, result: dict[str, Any], /) -> None:
        """Receive one iteration's result; it is shared and must not be changed."""

    def close(self) -> None:
        """The run has ended, for whatever reason."""


class SinkError(Exception):
    """A sink cannot be made; the message says why."""

    exit_code = 2


def make_sinks(specs: Iterable[UseSpec], folder: RunFolder) -> list[Sink]:
    """Make the sinks of ``report.sinks``, except the console.

    Custom sinks are called with their arguments from the file, and with the path of the run folder
    if they have a parameter ``run_dir``.
    """
    return [_make_sink(spec, folder) for spec in specs if spec.use != CONSOLE]


def _make_sink(spec: UseSpec, folder: RunFolder) -> Sink:
    if spec.use == "jsonl":
        return JsonlSink(folder.metrics)
    if spec.use == "tensorboard":
        return TensorBoardSink(folder.tensorboard)
    return _custom_sink(spec, folder)


def _custom_sink(spec: UseSpec, folder: RunFolder) -> Sink:
    factory = import_object(spec.use)
    arguments = dict(spec.kwargs)
    if "run_dir" in inspect.signature(factory).parameters:
        arguments.setdefault("run_dir", folder.path)
    sink: Sink = factory(**arguments)
    for method in ("write", "close"):
        if not callable(getattr(sink, method, None)):
            raise SinkError(f"report.sinks: {spec.use}: a sink needs a method {method}()")
    return sink


class TensorBoardSink:
    """Writes every number as a scalar over env steps, named ``evaluation/episode_return_mean``."""

    def __init__(self, directory: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SinkError(
                'report.sinks: tensorboard: not installed: pip install "rlrun[tensorboard]"'
            ) from None
        self._writer = SummaryWriter(str(directory))

    def write(self, result: dict[str, Any]) -> None:
        """Add one result's numbers, without null and text."""
        step = int(result["env_steps"])
        for address in addresses(result):
            value = number_at(result, address)
            if value is not None:
                self._writer.add_scalar(address, value, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()
