"""The ends of a run: its stop criteria, and signals.

Owns the rule of the ``stop:`` section and the signal handlers. It must not know what is running.

A run ends after the first iteration whose result has any of the named numbers at its bound or above
(``>=``, also for a return of -150). A mean return counts only once its window of episodes is full.

The first Ctrl-C or SIGTERM ends a run after the current iteration: in the middle of one the state
is inconsistent, and a copy of the state before it would cost time in every iteration. A second
signal ends the run at once, and the last state in memory is saved. So does the first signal if a
call of an environment does not return.
"""

import logging
import math
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any, Self

from rlrun.config.problems import InputError
from rlrun.config.registry import nearest, suggestion
from rlrun.data.results import addresses, comes_later, counts_already, lookup, number_at
from rlrun.envs.watchdog import SIGNAL_S, CallWatch
from rlrun.experiment.report.numbers import number

_log = logging.getLogger(__name__)

COUNTERS = frozenset({"training_iteration", "env_steps", "agent_steps", "episodes", "time_s"})
"""Result keys that only grow: as criteria they are budgets; all others are goals."""

_SAMPLED = frozenset({"env_steps", "agent_steps"})


class StopCriteria:
    """All criteria of a run; the first that is reached ends it.

    Attributes:
        bounds: result key, ``a/b`` for nesting -> lowest value that ends the run.
        latest: the last known value by key; evaluations are not in every result.
    """

    def __init__(self, stop: Mapping[str, float], *, smoothing_episodes: int) -> None:
        self.bounds = dict(stop)
        self.smoothing_episodes = smoothing_episodes
        self.latest: dict[str, float] = {}

    def note(self, result: Mapping[str, Any]) -> None:
        """Keep the values that a result has for the criteria."""
        for key in self.bounds:
            value = number_at(result, key)
            if value is not None:
                self.latest[key] = value

    def reached(self, result: Mapping[str, Any]) -> dict[str, str]:
        """Note a result, and return the criteria that it has reached, as text by key."""
        self.note(result)
        found = {}
        for key, bound in self.bounds.items():
            value = number_at(result, key)  # null reaches nothing
            counts = counts_already(key, result, self.smoothing_episodes)
            if value is not None and value >= bound and counts:
                found[key] = f"{key} {number(value)} >= {number(bound)}"
        return found

    def missed(self, result: Mapping[str, Any]) -> list[str]:
        """The goals that ``result`` has not reached, as text, each with its latest value."""
        done = COUNTERS | self.reached(result).keys()
        texts = []
        for key, bound in self.bounds.items():
            if key not in done:
                got = number(self.latest[key]) if key in self.latest else "unknown"
                few = ""
                if self.latest.get(key, -math.inf) >= bound:  # it does not count yet
                    episodes = number(number_at(result, "episodes_in_mean") or 0)
                    few = f", over {episodes} of {self.smoothing_episodes} episodes"
                texts.append(f"{key} {got} of {number(bound)}{few}")
        return texts

    def used_budget(self, result: Mapping[str, Any]) -> float | None:
        """Used fraction of the budget, 0 to 1; None without a budget. Goals do not count."""
        shares = [
            (number_at(result, key) or 0.0) / bound
            for key, bound in self.bounds.items()
            if key in COUNTERS and bound > 0
        ]
        return min(1.0, max(shares)) if shares else None

    def check_keys(self, result: Mapping[str, Any], others: Iterable[tuple[str, str]] = ()) -> None:
        """Raise InputError if ``result``, a run's first, lacks the key of a criterion.

        All further results have the same keys, so the criterion could never be reached. Keys that
        episodes or evaluations may add are errors only if they look misspelt. Warn of steps that
        are learned from and not counted.

        Args:
            others: further settings that name a result key, each with the key.
        """
        problems = []
        for setting, address in [*(("stop", key) for key in self.bounds), *others]:
            try:
                value = lookup(result, address)
            except KeyError:
                if not may_come(address, result):
                    problems.append(f"{setting}: {address}: {_suggest(address, result)}")
                continue
            if isinstance(value, Mapping):
                inside = ", ".join(f"{address}/{key}" for key in list(value)[:4])
                problems.append(f"{setting}: {address}: a group, not a number; it has {inside}")
            elif address in _SAMPLED and not value and result.get("agent_steps_trained"):
                message = (
                    "%s.%s: the first iteration learned and counted no steps; use self.sample()"
                )
                _log.warning(message, setting, address)
        if problems:
            raise InputError("\n".join(problems))


def may_come(address: str, result: Mapping[str, Any]) -> bool:
    """Whether a key that a result lacks is one of `comes_later`, and not a known one misspelt."""
    evaluation = result.get("evaluation")
    known = evaluation if isinstance(evaluation, Mapping) else {}
    group, _, name = address.partition("/")
    misspelt = group == "evaluation" and nearest(name, known) is not None
    return comes_later(address) and not misspelt


def _suggest(address: str, result: Mapping[str, Any]) -> str:
    known = list(addresses(result))
    last_part = address.rpartition("/")[2]
    near = next((name for name in known if name.rpartition("/")[2] == last_part), None)
    hint = suggestion(address, known) if near is None else f" - did you mean {near}?"
    return f"no such result key{hint}"


ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Sent by Ctrl-C, at a system's shutdown, by a terminal that closes, and by a scheduler before its
time limit."""


class Interrupts:
    """Context manager: after ``defer()``, the first of `ENDING_SIGNALS` only sets `requested`.

    Before that, for the second signal, and in a call of an environment that does not return, it
    raises KeyboardInterrupt. It has no effect outside the main thread, where Python delivers no
    signals. SIGHUP stays ignored under `nohup`.
    """

    def __init__(self, on_first: Callable[[str], None] = lambda name: None) -> None:
        self._on_first = on_first
        self._ended = False
        self._deferring, self._elsewhere = False, tuple[Callable[[], None], ...]()
        self._previous: dict[signal.Signals, Any] = {}
        self._watch: CallWatch | None = None
        self.cause: str | None = None
        """Name of the received signal, or another reason to end the run; None before."""

    @property
    def requested(self) -> bool:
        """Whether the run is to end."""
        return self.cause is not None

    def look(self) -> bool:
        """Whether a signal was received; restores handlers that an environment replaced."""
        self._install()
        return self.requested

    def defer(self, *elsewhere: Callable[[], None]) -> None:
        """Defer the first signal from now on; also replaces the handlers that Ray installed.

        Args:
            elsewhere: called at the first signal, to end calls of environments in other processes.
        """
        self._deferring, self._elsewhere = True, elsewhere
        self._install()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in ENDING_SIGNALS:
                handler = signal.getsignal(number)
                if number != signal.SIGHUP or handler != signal.SIG_IGN:
                    self._previous[number] = handler
        self._install()
        return self

    def __exit__(self, *error: object) -> None:
        if self._watch is not None:
            self._watch.stop()
        self._ended = True
        for each in self._previous:
            signal.signal(each, self._handler_before(each))

    def _handler_before(self, number: signal.Signals) -> Any:
        """The previous handler; if it belongs to a run that has ended since, the one before that.

        Two runs may be active at once.
        """
        handler = self._previous[number]
        owner = getattr(handler, "__self__", None)
        if isinstance(owner, Interrupts) and owner._ended:
            return owner._handler_before(number)
        return handler

    def _install(self) -> None:
        for each in self._previous:
            signal.signal(each, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._deferring or self.requested:
            self.cause = signal.Signals(number).name
            raise KeyboardInterrupt
        self.cause = signal.Signals(number).name
        main = threading.get_ident()
        self._watch = CallWatch(SIGNAL_S, lambda call, lasted_s: signal.pthread_kill(main, number))
        self._on_first(self.cause)
        for end_calls in self._elsewhere:
            end_calls()
