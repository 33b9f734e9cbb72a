"""RunnerHost: the Ray actor around one env runner.

Owns the runner's process: its global generators, the signals that it answers to, and its log, which
is not shown and so comes with replies. Must not know what runners do. Imports Ray.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray

from rlrun.actors.ray_runtime import STACK_SIGNAL
from rlrun.data.seeding import generators_seed, seed_generators
from rlrun.envs.watchdog import CallEnded, end_calls_after, end_forked_copy
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest

RunnerFactory = Callable[..., Any]
"""Makes a runner; called as `EnvRunner` is, in the actor's process."""

INTERRUPT_SIGNAL = signal.SIGUSR1
"""Has a runner's process end a call of its environment that does not return."""


@dataclass(frozen=True)
class Warned:
    """A reply with what its runner has warned of."""

    reply: Any
    warnings: list[str]


class _Warnings(logging.Handler):
    """What a runner warns of, for its next reply: the log of an actor is not shown."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message, with its traceback."""
        self._messages.append(self.format(record))

    def take(self) -> list[str]:
        """The messages since the last call."""
        taken, self._messages = self._messages, []
        return taken


class RunnerHost:
    """The actor: builds a runner, and passes calls on to it.

    The runner is built by a call, not by the actor's constructor, so that an exception of its
    constructor reaches the driver as it is.
    """

    def __init__(self) -> None:
        faulthandler.register(STACK_SIGNAL, file=2, all_threads=False)
        end_calls_after(INTERRUPT_SIGNAL)
        self._warnings = _Warnings()
        logging.getLogger("rlrun").addHandler(self._warnings)
        self._make: Callable[[], Any]
        self._place: tuple[int, int, int]  # seed, role and index of the runner
        self._runner: Any = None
        self._failure: Exception | None = None
        self._process_id = os.getpid()

    def place(self) -> tuple[str, int]:
        """Node and process id, as soon as the process runs, before the runner is built."""
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def build(
        self,
        make_runner: RunnerFactory,
        spec: RunnerSpec,
        arguments: Mapping[str, Any],
    ) -> None:
        """Build the runner; an exception of its constructor is raised by the first call to it."""
        self._make = partial(make_runner, spec, **arguments)
        self._place = spec.seed, arguments["role"], arguments["runner_index"]
        seed_generators(generators_seed(*self._place))
        try:
            self._runner = self._make()
        except Exception as error:
            self._failure = error

    def ping(self) -> Any:
        """Answer a health probe."""
        return self._built().ping()

    def sample_fragment(self, request: bytes, weights: Any) -> Any:
        """See `EnvRunner.sample_fragment`; the request is packed, and weights may be."""
        return self.apply(_sample_fragment, request, weights)

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """See `EnvRunner.set_weights`."""
        self._built().set_weights(weights)

    def set_state(self, state: dict[str, Any] | None) -> None:
        """See `EnvRunner.set_state`; None is the state in which a runner is built."""
        if state is None:
            self._built().stop()
            self._runner = self._make()
        else:
            self._built().set_state(state)

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(runner, *arguments)``; a request and weights are the arguments, if any."""
        unpacked = [
            ray.cloudpickle.loads(one) if isinstance(one, bytes) else one for one in arguments
        ]
        if unpacked:
            seed_generators(generators_seed(*self._place, unpacked[0].fragment))
        with _calls_may_be_ended():
            reply = function(self._built(), *unpacked)
        if not unpacked:
            return reply
        end_forked_copy(self._process_id)
        warnings = self._warnings.take()
        return Warned(reply, warnings) if warnings else reply

    def stop(self) -> None:
        """Close the environments."""
        if self._runner is not None:
            self._runner.stop()

    def _built(self) -> Any:
        if self._failure is not None:
            raise self._failure
        return self._runner


def pack(message: Any) -> bytes:
    """A message as bytes, which Ray sends as they are: pickled once, for any number of runners."""
    packed: bytes = ray.cloudpickle.dumps(message)  # type: ignore[no-untyped-call]
    return packed


def _sample_fragment(runner: Any, request: SampleRequest, weights: Any) -> Any:
    return runner.sample_fragment(request, weights)


@contextmanager
def _calls_may_be_ended() -> Iterator[None]:
    """Pass `CallEnded` on as an exception that Ray brings to the driver."""
    try:
        yield
    except CallEnded as ended:
        raise RuntimeError(str(ended)) from None
