"""Changes to Ray's private parts while it starts, which it has no public switches for.

Owns every private name of Ray that is replaced. It must not know why or where Ray is started.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any


@contextmanager
def single_machine(timeout_s: float) -> Iterator[None]:
    """Have Ray start for this machine alone: on the loopback interface, without three processes.

    These are the dashboard's server (which Ray starts even without a dashboard), the autoscaler's
    monitor and the process that copies the workers' output to the driver's terminal: half of the
    start-up time, a second at the end and 250 MB. Ray has no public switch for them, and reads the
    one for the interface when it is imported; a version of Ray without these names starts as usual.

    A signal to the process group of this process, as a scheduler sends it, does not reach Ray's
    processes, which save their state when this process asks for it.
    """
    from ray._private import ray_constants, services, worker
    from ray._private.node import Node

    changes: list[tuple[Any, str, Any]] = [(ray_constants, "ENABLE_RAY_CLUSTER", False)]
    # Prints what Ray thinks of a dead worker into the terminal; the group says it in one line.
    changes.append((worker, "listen_error_messages", lambda *_: None))
    for method in ("start_api_server", "start_monitor", "start_log_monitor"):
        changes.append((Node, method, lambda *_, **__: None))
    if sys.platform.startswith("linux"):  # elsewhere they end with the process group
        apart = partial(services.ConsolePopen, start_new_session=True)
        changes.append((services, "ConsolePopen", apart))
    changes.append((services, "get_node", _patient(services.get_node, timeout_s)))  # 30 s for it
    with _replaced(changes):
        yield


@contextmanager
def signals_wait() -> Iterator[None]:
    """Within, the first signal waits: a Ray that is interrupted then leaves processes behind.

    A handler of SIGTERM that the program has is not replaced by Ray's, which exits.
    """
    from ray._private import utils

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    handlers = {each: handler for each in numbers if callable(handler := signal.getsignal(each))}
    waiting: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        waiting.append(number)
        if len(waiting) > 1:
            handlers[signal.Signals(number)](number, frame)

    for number in handlers:
        signal.signal(number, handle)
    rays = (utils, "set_sigterm_handler", lambda handler: None)
    try:
        with _replaced([rays] if signal.SIGTERM in handlers else []):
            yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for each in waiting[:1]:
            handlers[signal.Signals(each)](each, None)


@contextmanager
def _replaced(changes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Within, attributes of Ray have other values: (owner, name, value); absent ones stay."""
    changes = [change for change in changes if change[1] in vars(change[0])]
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _patient(function: Callable[..., Any], timeout_s: float) -> Callable[..., Any]:
    """The function, with calls repeated while they raise RuntimeError, up to ``timeout_s``."""

    def until_ready(*arguments: Any) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return function(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    return until_ready
