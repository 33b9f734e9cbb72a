"""Environments in processes of their own, which step at the same time.

Owns the two ends of the connection: `EnvHost`, which has the environment, and `EnvProxy`, which
looks like the environment to a vector environment; each kind of process is a subclass of it. Must
not know whether the environments have one agent or several.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import multiprocessing
import os
import pickle
import select
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from operator import methodcaller
from typing import Any

import gymnasium
from gymnasium.vector.utils import CloudpickleWrapper

from rlrun.data.seeding import seed_generators
from rlrun.envs.env_state import STATE_CALLS
from rlrun.envs.errors import RAISED, EnvError, EnvFailure
from rlrun.envs.multi_agent_env import SubEnvs
from rlrun.envs.watchdog import end_forked_copy, end_late_calls

_DESCRIPTION = (
    "observation_space",
    "action_space",
    "observation_spaces",
    "action_spaces",
    "possible_agents",
    "metadata",
)
_END_S = 2.0  # for an environment to close itself


class EnvHost:
    """Has one environment, and calls it for its proxy.

    Seeds the global generators with each episode.
    """

    def __init__(self, make: Callable[[], Any], env_timeout_s: float | None = None) -> None:
        self._make = make
        self._env: Any = None
        self._watch = end_late_calls(env_timeout_s)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the environment.

        Raises:
            EnvError: the constructor failed.
            EnvFailure: the environment raised; the exception is kept as text.
        """
        try:
            if method == "build":
                self._env = self._make()
                return {
                    name: value if isinstance(value, gymnasium.Space) else _plain(value)
                    for name in _DESCRIPTION
                    if (value := getattr(self._env, name, None)) is not None
                }
            if method == "reset":
                (seed,) = arguments
                seed_generators(seed)
                return self._env.reset(seed=seed)
            if method == "apply":
                (pickled,) = arguments
                return pickle.loads(pickled).fn(self._env)
            if method in STATE_CALLS:
                return STATE_CALLS[method](self._env, *arguments)
            return getattr(self._env, method)(*arguments)
        except EnvError:
            raise
        except RAISED as error:
            raise EnvFailure.from_exception(error) from None


class EnvProxy(ABC):
    """Stands for an environment in another process.

    `step` and `reset` wait for the answer to a call that was begun, if there is one.

    An exception of a signal may come at any moment, also in the middle of a message; the process is
    then replaced by a new one at the next reset.

    Args:
        make: makes the environment, in its own process.
        env_timeout_s: limit of each call, see `end_late_calls`.

    Attributes:
        under_way: whether a call was begun and its answer not yet received.
    """

    under_way = False
    _in_message = False  # whether one is being sent or received, or was when an exception came

    def __init__(self, make: Callable[[], Any], env_timeout_s: float | None = None) -> None:
        self._make, self._env_timeout_s = make, env_timeout_s
        self._start()
        self.begin("build")

    def begin(self, method: str, *arguments: Any) -> None:
        """Begin a call of a method; `finish` returns its result.

        Waits for a call that is still under way, as after an exception that ended a vector step.
        """
        if self.under_way:
            with suppress(EnvError, EnvFailure):
                self.finish()
        if self._in_message:
            if method != "reset":
                self.under_way = True  # `finish` raises
                return
            self._start_anew()
        self._in_message = True
        self._send(method, arguments)
        self.under_way = True
        self._in_message = False

    def finish(self) -> Any:
        """Wait for the call that was begun.

        Raises:
            EnvError: the constructor failed.
            EnvFailure: the environment raised, or its process ended, or an exception of a signal
                has interrupted a message since the last reset.
        """
        if self._in_message:
            self.under_way = False
            raise EnvFailure("a message to or from the environment's process was interrupted")
        self._wait()
        self._in_message = True
        try:
            answer = self._receive()
        except (EnvError, EnvFailure):
            self.under_way = self._in_message = False
            raise
        self.under_way = self._in_message = False
        return answer

    def _start_anew(self) -> None:
        self.close()
        self._start()
        self._send("build", ())
        self.under_way = True
        self._in_message = False
        self.wait_until_built()

    def wait_until_built(self) -> None:
        """Wait for the constructor; then spaces and other descriptions are attributes."""
        vars(self).update(self.finish())

    def step(self, action: Any) -> Any:
        """See gymnasium, or `MultiAgentEnv`."""
        if not self.under_way:
            self.begin("step", action)
        return self.finish()

    def reset(self, *, seed: int | None = None) -> Any:
        """See gymnasium, or `MultiAgentEnv`."""
        if not self.under_way:
            self.begin("reset", seed)
        return self.finish()

    def render(self) -> Any:
        """The environment's frame."""
        return self.apply(methodcaller("render"))

    def apply(self, function: Callable[[Any], Any]) -> Any:
        """``function(env)`` in the environment's process; function and result are pickled."""
        wrapper = CloudpickleWrapper(function)  # type: ignore[arg-type]
        self.begin("apply", pickle.dumps(wrapper))
        return self.finish()

    @abstractmethod
    def _start(self) -> None:
        """Start the process."""

    @abstractmethod
    def _send(self, method: str, arguments: tuple[Any, ...]) -> None: ...

    @abstractmethod
    def _wait(self) -> None:
        """Wait for the answer; an interrupted wait can be repeated."""

    @abstractmethod
    def _receive(self) -> Any: ...

    @abstractmethod
    def close(self) -> None:
        """Close the environment and end its process."""


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class ProxyMaker:
    """Makes a runner's sub-environments in other processes; a call rebuilds one of them.

    Attributes:
        kind: class of the proxies, called with a maker of the environment and `env_timeout_s`.
        make: makes the sub-environment of an index, in its own process.
    """

    kind: Callable[[Callable[[], Any], float | None], EnvProxy]
    make: Callable[[int], Any]
    env_id: str
    env_timeout_s: float | None

    def __call__(self, env_index: int) -> EnvProxy:
        return self._built(env_index, self._begun(env_index))

    def all(self, num_envs: int) -> list[EnvProxy]:
        """All sub-environments, built at the same time."""
        with ExitStack() as begun:
            proxies = list[EnvProxy]()
            for env_index in range(num_envs):
                proxies.append(self._begun(env_index))
                begun.callback(proxies[-1].close)
            built = [self._built(env_index, proxy) for env_index, proxy in enumerate(proxies)]
            begun.pop_all()
        return built

    def _begun(self, env_index: int) -> EnvProxy:
        return self.kind(partial(self.make, env_index), self.env_timeout_s)

    def _built(self, env_index: int, proxy: EnvProxy) -> EnvProxy:
        try:
            proxy.wait_until_built()
        except EnvFailure as error:
            raise EnvError.from_exception(
                error, self.env_id, "constructor", env_index=env_index
            ) from None
        return proxy


class ParallelSubEnvs(SubEnvs):
    """Sub-environments in other processes, which step at the same time.

    Args:
        wait: tells for each busy environment whether it is ready; None waits for all.
    """

    parallel = True

    def __init__(
        self,
        envs: Sequence[EnvProxy],
        rebuild: Callable[[int], Any],
        wait: Callable[[Sequence[Any]], Sequence[bool]] | None = None,
        *,
        offers_state: bool = False,
    ) -> None:
        super().__init__(envs, rebuild, offers_state=offers_state)
        self._wait, self.waits = wait, wait is None

    @property
    def busy(self) -> Sequence[int]:
        return [index for index, env in enumerate(self.envs) if env.under_way]

    def begin(self, env_index: int, method: str, *arguments: Any) -> None:
        self.envs[env_index].begin(method, *arguments)

    def get_states(self) -> list[dict[str, Any] | None]:
        if not self.offers_state:
            return super().get_states()
        for env in self.envs:
            env.begin("get_state")
        return [env.finish() for env in self.envs]

    def set_state(self, env_index: int, state: dict[str, Any]) -> None:
        self.envs[env_index].begin("set_state", state)
        self.envs[env_index].finish()

    def ready(self) -> Sequence[int]:
        busy = self.busy
        if self._wait is None or not busy:
            return busy
        answered = self._wait([self.envs[index] for index in busy])
        return [index for index, has in zip(busy, answered, strict=True) if has]


# A fork shares the connections of this process. If it collected a handle of an actor, as garbage
# of this process, it would send Ray a request on one of them, and the next one of this process
# would never be answered. Frozen objects are not collected.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)


class ProcessEnv(EnvProxy):
    """An environment in a sub-process of this process."""

    def _start(self) -> None:
        self._connection, other_end = multiprocessing.Pipe()
        self._answers = select.poll()  # the connection's own poll() takes 8 times as long
        self._answers.register(self._connection.fileno(), select.POLLIN)
        host = partial(EnvHost, CloudpickleWrapper(self._make), self._env_timeout_s)
        in_main_thread = threading.current_thread() is threading.main_thread()
        arguments = (other_end, self._connection, host, in_main_thread)
        self._process = multiprocessing.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        self._at_exit = atexit.register(partial(_kill, self._process, os.getpid()))
        other_end.close()

    def _send(self, method: str, arguments: tuple[Any, ...]) -> None:
        with suppress(OSError):  # that the process has ended is found when its answer is read
            self._connection.send((method, arguments))

    def _wait(self) -> None:
        self._answers.poll()

    def _receive(self) -> Any:
        try:
            error, value = self._connection.recv()
        except (EOFError, OSError):
            # A pipe breaks a moment before the process has ended and has an exit code.
            self._process.join(timeout=1.0)
            reason = f"the environment's process ended, with exit code {self._process.exitcode}"
            raise EnvFailure(reason) from None
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        if not (self.under_way or self._in_message):
            self._send("close", ())
            self._connection.poll(_END_S)
        self._connection.close()
        self._process.kill()
        self._process.join()
        atexit.unregister(self._at_exit)


def _kill(process: BaseProcess, parent: int) -> None:
    """Kill a sub-process at the exit of its parent, but not at the exit of a fork of the parent.

    multiprocessing would send SIGTERM, which the sub-process ignores, and wait for its end.
    """
    if os.getpid() == parent:
        process.kill()


def _die_with_parent() -> None:
    """Let Linux kill this process when its parent ends, even in the middle of a step.

    A process that hangs in its environment would outlive a killed run, and keep the inherited lock
    of its run folder. On other systems it ends when it next reads from the connection. Must be
    called only if the parent's main thread started the process: Linux also kills it when the thread
    that started it ends.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _serve(
    connection: Connection,
    other_end: Connection,
    make_host: Callable[[], EnvHost],
    from_main_thread: bool,
) -> None:
    """Answer calls until the other process closes the connection or ends."""
    other_end.close()
    if from_main_thread:
        _die_with_parent()
    # The run, which receives the signals of its process group as well, ends its processes itself.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    host, process_id = make_host(), os.getpid()
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, OSError):
            return
        answer: tuple[Exception | None, Any]
        try:
            answer = None, host.call(method, *arguments)
        except (EnvError, EnvFailure) as error:
            answer = error, None
        end_forked_copy(process_id)
        with suppress(BrokenPipeError):
            try:
                connection.send(answer)
            except BrokenPipeError:
                raise
            except Exception as unsent:  # nothing was sent, since the answer cannot be pickled
                connection.send((EnvFailure.from_exception(unsent), None))
