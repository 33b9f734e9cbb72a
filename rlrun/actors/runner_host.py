"""RunnerHost: the Ray actor around one env runner.

Owns the runner's process: its global generators, its signal handlers, the format of messages, and
its log, whose warnings travel with replies because Ray does not show it. Must not know what runners
do. Imports Ray.

Messages are bytes, which Ray sends as they are. Ray's own pickling is in Python and stores every
array separately; a reply has dozens of small ones.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray

from rlrun.actors.ray_runtime import STACK_SIGNAL
from rlrun.config.problems import keep_traceback
from rlrun.data.seeding import Role, generators_seed, seed_generators
from rlrun.envs.watchdog import CallEnded, end_calls_after, end_forked_copy
from rlrun.sampling.runner_messages import RunnerSpec

RunnerFactory = Callable[..., Any]
"""Makes a runner; called as `EnvRunner` is, in the actor's process."""

INTERRUPT_SIGNAL = signal.SIGUSR1
"""Signal that makes a runner's process end a call of its environment that does not return."""

INLINE_BYTES = 64 * 1024
"""Larger messages go through Ray's object store; a call or its reply holds up to 100 kB."""

PackedReply = tuple[bytes, list[pickle.PickleBuffer], bytes | None, list[str]]
"""A reply, the memory of its arrays of more than `INLINE_BYTES`, the runner's state after it, and
the runner's warnings."""


class _Warnings(logging.Handler):
    """Collects a runner's warnings for its next reply, since the log of an actor is not shown."""

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

    The runner is built by a call, not by the actor's constructor, so that an exception of the
    runner's constructor reaches the driver unchanged.
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
        self, make_runner: RunnerFactory, spec: RunnerSpec, arguments: Mapping[str, Any]
    ) -> None:
        """Build the runner; an exception of its constructor is raised by the first call to it."""
        self._make = partial(make_runner, spec, **arguments)
        self._place = spec.seed, arguments["role"], arguments["runner_index"]
        seed_generators(generators_seed(*self._place))
        try:
            with errors_for_the_driver():
                self._runner = self._make()
        except Exception as error:
            self._failure = error

    def ping(self) -> Any:
        """Answer a health probe."""
        return self._built().ping()

    def sample_fragment(self, request: bytes, weights: Any) -> Any:
        """See `EnvRunner.sample_fragment`; the request is packed, and weights may be."""
        return self.apply(lambda runner, *asked: runner.sample_fragment(*asked), request, weights)

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """See `EnvRunner.set_weights`."""
        self.apply(lambda runner: runner.set_weights(weights))

    def set_state(self, state: bytes | None) -> None:
        """See `EnvRunner.set_state`; packed, or None for the state in which a runner is built."""
        if state is None:
            self._built().stop()
            self._runner = self._make()
        else:
            self.apply(lambda runner: runner.set_state(unpack(state)))

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(runner, *arguments)``; the arguments, if any, are a request and weights.

        Returns:
            The function's result; for a request it is packed, with the runner's state.
        """
        unpacked = [unpack(one) if isinstance(one, bytes) else one for one in arguments]
        if unpacked:
            seed_generators(generators_seed(*self._place, unpacked[0].fragment))
        with errors_for_the_driver():
            reply = function(self._built(), *unpacked)
            if not unpacked:
                return reply
            state = self._state()
        end_forked_copy(self._process_id)
        return pack_reply(reply, state, self._warnings.take())

    def call(self, function: Callable[[Any], Any]) -> tuple[Any, bytes]:
        """``function(runner)``, and the runner's state after it, packed."""
        result = self.apply(function)
        return result, pack(self._state())

    def _state(self) -> Any:
        """Evaluations begin afresh: a replaced runner has nothing to go on from."""
        return self._runner.get_state() if self._place[1] is Role.TRAIN else None

    def stop(self) -> None:
        """Close the environments."""
        if self._runner is not None:
            self._runner.stop()

    def _built(self) -> Any:
        if self._failure is not None:
            raise self._failure
        return self._runner


def pack(message: Any) -> bytes:
    """A message to runners, pickled once for any number of them."""
    packed: bytes = ray.cloudpickle.dumps(message)  # type: ignore[no-untyped-call]
    return packed


def unpack(packed: bytes, large: Iterable[Any] = ()) -> Any:
    """A message, reply or state; large arrays are read-only views of Ray's memory."""
    return pickle.loads(packed, buffers=large)


def pack_reply(reply: Any, state: Any, warnings: list[str]) -> PackedReply:
    """Pack a runner's reply, without copying its large arrays.

    Args:
        state: pickled separately, since only a restart or a checkpoint reads it; None for none.
    """

    def packed_by(dumps: Callable[..., bytes]) -> PackedReply:
        large: list[pickle.PickleBuffer] = []

        def goes_within(array: pickle.PickleBuffer) -> bool:
            within = array.raw().nbytes <= INLINE_BYTES
            if not within:
                large.append(array)
            return within

        packed = dumps(reply, protocol=5, buffer_callback=goes_within)
        return packed, large, None if state is None else dumps(state, protocol=5), warnings

    try:
        return packed_by(pickle.dumps)
    except Exception:  # of an object whose class has no import path in this process
        return packed_by(ray.cloudpickle.dumps)


@contextmanager
def errors_for_the_driver() -> Iterator[None]:
    """Raise exceptions in a form that Ray can bring to the driver, with their tracebacks.

    Those that would end the process, such as SystemExit, become RuntimeErrors.
    """
    try:
        yield
    except Exception as error:
        keep_traceback(error)
        raise
    except CallEnded as ended:
        raise RuntimeError(str(ended)) from None
    except BaseException as error:
        keep_traceback(error)
        passed_on = RuntimeError(f"{type(error).__name__}: {error}")
        vars(passed_on).update(vars(error))
        raise passed_on from None
