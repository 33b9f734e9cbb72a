"""Where an iteration's wall time goes: phases, not steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

PHASES = ("sample", "transfer", "learn", "sync", "evaluate", "checkpoint", "report")


class PhaseTimers:
    """Adds up seconds by phase between two calls of `lap`.

    Phases do not nest. What no phase covers is `other_s`, so that the parts add up to the whole.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._lap_started = perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the ``with`` block towards a phase of `PHASES`."""
        started = perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += perf_counter() - started

    def restart(self) -> None:
        """Begin a lap now and forget what was counted."""
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._lap_started = perf_counter()

    def elapsed(self) -> float:
        """Seconds since the lap began."""
        return perf_counter() - self._lap_started

    def lap(self) -> tuple[dict[str, float], float]:
        """End the lap: seconds by phase as ``<phase>_s``, ``other_s`` included, and their sum."""
        now = perf_counter()
        wall = now - self._lap_started
        seconds = {f"{name}_s": value for name, value in self._seconds.items()}
        seconds["other_s"] = wall - sum(seconds.values())
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._lap_started = now
        return seconds, wall
