"""Watchdog: ends calls of environments that do not return, or return twice after a fork.

Owns which call of the main thread is an environment's, how long it has lasted, and how it is ended.
Must not know what environments are, nor what follows. Calls that return cost nothing: a thread
inspects the stack of the main thread now and then.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from time import monotonic
from types import FrameType
from typing import Any

from rlrun.envs.errors import RAISED

# Functions of `EnvProxy`s whose callees wait for an environment that is elsewhere.
_WAITING = ("finish", "_wait", "_receive", "ready")
_IDLE = "_serve"  # waits for a call
_MORE_S = 5.0  # for what should have ended by itself
_EXIT_CODE = 1

CLOSE_S = 30.0
"""Seconds that environments may take to close themselves at the end of a run."""

SIGNAL_S = 2.5
"""Seconds that a call of an environment may still take after a signal that ends a run."""

_log = logging.getLogger(__name__)

OnLate = Callable[[FrameType, float], None]
"""Called repeatedly, in the watchdog's thread, with a late call of an environment and the seconds
that it has lasted, until it returns."""


class EnvTimeoutError(Exception):
    """An environment has not answered in time."""


class CallEnded(BaseException):
    """A signal ended a call of an environment that did not return; not the environment's error."""


class CallWatch:
    """Finds calls of environments in the main thread that last longer than ``limit_s``.

    Watches until `stop`, or as long as there is a reference to it.
    """

    def __init__(self, limit_s: float, on_late: OnLate) -> None:
        self._limit_s, self._on_late = limit_s, on_late
        self._stopped = threading.Event()
        self._call: FrameType | None = None
        self._since = 0.0
        pause_s = min(1.0, limit_s / 4)
        arguments = weakref.ref(self), self._stopped, pause_s
        threading.Thread(target=_watch, args=arguments, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def look(self) -> None:
        """Check the call that is under way."""
        call = call_of_env(sys._current_frames().get(threading.main_thread().ident or 0))
        # The reference keeps the frame: no other call can have one that is equal.
        if call is None or call is not self._call:
            self._call, self._since = call, monotonic()
            return
        lasted_s = monotonic() - self._since
        if lasted_s >= self._limit_s:
            self._on_late(call, lasted_s)


def _watch(of: weakref.ref[CallWatch], stopped: threading.Event, pause_s: float) -> None:
    while not stopped.wait(pause_s):
        watch = of()
        if watch is None:
            return
        watch.look()
        del watch


def call_of_env(innermost: FrameType | None) -> FrameType | None:
    """The outermost frame of an environment's code that `rlrun.envs` has called; None for none."""
    called: FrameType | None = None
    for frame in _outwards(innermost):
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("rlrun.envs."):
            return None if frame.f_code.co_name == _IDLE else called or frame
        if module.startswith("rlrun."):
            return None
        called = frame
    return None


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


_late: set[FrameType] = set()  # calls that are to be ended


def close_in_time(close: Callable[[], None], limit_s: float = CLOSE_S) -> None:
    """Close environments; only warn of those that raise or do not return.

    The limit holds in the main thread.
    """
    is_main = threading.current_thread() is threading.main_thread()
    watch = end_late_calls(limit_s, f"{limit_s:g} s") if is_main else None
    try:
        close()
    except RAISED as error:
        _log.warning("an environment failed to close: %s: %s", type(error).__name__, error)
        _log.info("its traceback:", exc_info=error)
    finally:
        if watch is not None:
            watch.stop()


def close_all(envs: Iterable[Any]) -> None:
    """Close environments, also those after one that raises; its error is raised in the end."""
    with ExitStack() as to_close:
        for env in envs:
            to_close.callback(env.close)


def end_late_calls(limit_s: float | None, limit: str = "") -> CallWatch | None:
    """Raise `EnvTimeoutError` in calls of environments that last longer; None sets no limit.

    The traceback of the error shows where the environment was. A call that does not return to
    Python ends the process instead, after twice the time, with the stacks of all threads on stderr.

    Args:
        limit: name of the limit in messages; default: the setting.

    Raises:
        RuntimeError: this is not the main thread.
    """
    if limit_s is None:
        return None
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("fault_tolerance.env_timeout_s needs the main thread of a process")
    setting = limit or f"fault_tolerance.env_timeout_s={limit_s:g}"

    def on_late(call: FrameType, lasted_s: float) -> None:
        waits = call.f_back is not None and call.f_back.f_code.co_name in _WAITING
        limit = limit_s + _MORE_S if waits else limit_s
        if lasted_s > 2 * limit + _MORE_S:
            sys.stderr.write(
                f"an environment gave no answer within {setting} and cannot be ended:\n"
            )
            faulthandler.dump_traceback(sys.stderr)
            os._exit(_EXIT_CODE)
        if lasted_s > limit:
            _late.add(call)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    signal.signal(signal.SIGALRM, _AlarmHandler(setting))
    return CallWatch(limit_s, on_late)


class _AlarmHandler:
    """Raises in a late call. Alarms that the watchdog has not sent are the program's own.

    It stays when the watch has stopped, as a last alarm may still be on its way.
    """

    def __init__(self, setting: str) -> None:
        self._setting, before = setting, signal.getsignal(signal.SIGALRM)
        self.of_program: Any = before.of_program if isinstance(before, _AlarmHandler) else before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _late:
            is_late = any(outer in _late for outer in _outwards(frame))
            _late.clear()
            if is_late:
                raise EnvTimeoutError(f"no answer within {self._setting}")
        elif callable(self.of_program):
            self.of_program(number, frame)


def end_forked_copy(process_id: int) -> None:
    """End this process if it is a fork of process ``process_id`` that returned from an environment.

    This happens if the child of a fork was to run another program and did not find it: the child
    would go on training, in the same folder and on the same connections.
    """
    if os.getpid() != process_id:
        sys.stderr.write("a process that an environment forked returned from it, and was ended\n")
        os._exit(_EXIT_CODE)


def end_calls_after(number: signal.Signals) -> None:
    """After this signal, raise `CallEnded` in calls of environments that last over `SIGNAL_S`."""
    main, watches = threading.main_thread().ident or 0, list[CallWatch]()

    def handle(_: int, frame: FrameType | None) -> None:
        if not watches:
            watches.append(CallWatch(SIGNAL_S, lambda *_: signal.pthread_kill(main, number)))
        elif call_of_env(frame) is not None:
            raise CallEnded("a call of an environment did not return")

    signal.signal(number, handle)
