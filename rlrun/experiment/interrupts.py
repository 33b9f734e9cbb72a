"""Ctrl-C and SIGTERM: ask a run to end where its state is whole.

Owns the signal handlers while a run iterates. It must not know what ends a run. An iteration that
is under way is finished: its state in the middle is half old and half new, and a copy of the state
at every boundary would cost each iteration what only an interrupted one needs. So the first signal
is remembered and the run saves at the next boundary; a second one stops at once, and the last
checkpoint stands.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupts:
    """Context manager. Before ``defer()`` a signal raises KeyboardInterrupt; after it, it waits.

    In a thread other than the main one Python delivers no signals: there it does nothing.
    """

    def __init__(self, on_first: Callable[[str], None] = lambda name: None) -> None:
        self._on_first = on_first
        self._deferring = False
        self._previous: dict[signal.Signals, Any] = {}
        self.signal_name: str | None = None
        """The signal that asked for the end, None if none did."""

    @property
    def requested(self) -> bool:
        """Whether the run is to end at the next boundary."""
        return self.signal_name is not None

    def defer(self) -> None:
        """From now on the first signal is only remembered. Also takes back what Ray installed."""
        self._deferring = True
        self._install()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.getsignal(number)
        self._install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _install(self) -> None:
        for number in self._previous:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._deferring or self.requested:
            self.signal_name = signal.Signals(number).name
            raise KeyboardInterrupt
        self.signal_name = signal.Signals(number).name
        self._on_first(self.signal_name)
