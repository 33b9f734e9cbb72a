"""Sinks: who receives the result of every iteration.

Owns the interface and the table of built-in sinks. All sinks get the same dict. It must not know
what a result holds.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from rlrun.config.schema import UseSpec
from rlrun.experiment.report.jsonl import JsonlSink
from rlrun.experiment.run_folder import RunFolder

CONSOLE = "console"


class Sink(Protocol):
    """What ``report.sinks`` may name: any object with these two methods."""

    def write(self, result: dict[str, Any], /) -> None:
        """Take one iteration's result; it is shared, so it must not be changed."""

    def close(self) -> None:
        """The run has ended, by whatever cause."""


class SinkError(Exception):
    """A sink cannot be made; the message says what is missing."""

    exit_code = 2


def make_sinks(specs: Iterable[UseSpec], folder: RunFolder) -> list[Sink]:
    """Make the sinks that the experiment names, the console excepted.

    A sink of the user's own is called with its arguments from the file; one that takes a parameter
    ``run_dir`` is given the run folder's path.
    """
    return [_make_sink(spec, folder) for spec in specs if spec.use != CONSOLE]


def _make_sink(spec: UseSpec, folder: RunFolder) -> Sink:
    if spec.use == "jsonl":
        return JsonlSink(folder.metrics)
    if spec.use == "tensorboard":
        from rlrun.experiment.report.tensorboard import TensorBoardSink

        return TensorBoardSink(folder.tensorboard)
    return _users_sink(spec, folder)


def _users_sink(spec: UseSpec, folder: RunFolder) -> Sink:
    import inspect

    from rlrun.config.registry import import_object

    factory = import_object(spec.use)
    arguments = dict(spec.kwargs)
    if "run_dir" in inspect.signature(factory).parameters:
        arguments.setdefault("run_dir", folder.path)
    sink: Sink = factory(**arguments)
    for method in ("write", "close"):
        if not callable(getattr(sink, method, None)):
            raise SinkError(f"report.sinks: {spec.use}: a sink needs a method {method}()")
    return sink
