"""Consoles: a live panel, one line per iteration, or only the outcome of a run.

Owns when and where text appears. It must not know how the panel is drawn (panel.py).
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Any, Literal, TextIO, cast, get_args

from rlrun.data.results import RETURN, SUCCESS_RATE
from rlrun.experiment.report.console_state import ConsoleState, RunHeader
from rlrun.experiment.report.numbers import clock_time, number
from rlrun.experiment.stopping import COUNTERS

ConsoleStyle = Literal["panel", "lines", "quiet"]

_ECHO = len("^C")
"""Columns to the right of a frame, where the terminal itself writes this for Ctrl-C: in a line that
is full it would wrap, and the next frame would be drawn a line too low."""


class Console:
    """Shows notices on stderr and the summary on stdout, nothing else."""

    def notice(self, text: str) -> None:
        """Show one line at once."""
        print_error(text)

    def close(self) -> None:
        """Stop updating; may be called twice."""

    def summary(self, lines: Sequence[str]) -> None:
        """Show the outcome; the first line is the headline."""
        for line in lines:
            print_line(line)


class LiveFrame(Console):
    """A frame at the bottom of the terminal, which rich redraws from its own thread."""

    def start_frame(self, draw: Callable[[int, int], Any], *, frames_per_s: float) -> None:
        """Show the frame that ``draw(width, height)`` returns until ``close``."""
        from rich.console import Console as Terminal
        from rich.live import Live

        self._terminal = Terminal(file=cast(IO[str], _LastingFile(sys.stdout)))
        self._make_live = partial(
            Live,
            console=self._terminal,
            get_renderable=lambda: draw(self._terminal.width - _ECHO, self._terminal.height),
            refresh_per_second=frames_per_s,
        )
        self._live = self._make_live()
        self._live.start(refresh=True)
        self._hook, sys.breakpointhook = sys.breakpointhook, self._break

    def _break(self, *args: Any, **kwargs: Any) -> Any:
        """Replace `sys.breakpointhook`: stop drawing, which would overwrite the prompt."""
        named = os.environ.get("PYTHONBREAKPOINT")
        if named != "0":  # "0" disables breakpoints
            self._live.stop()
        if named or args or kwargs or self._hook is not sys.__breakpointhook__:
            return self._hook(*args, **kwargs)
        from pdb import Pdb

        return Pdb().set_trace(sys._getframe(1))  # the original hook would stop in this method

    def draw_again(self) -> None:
        """Show the frame again after a breakpoint, once the debugger has ended."""
        if not self._live.is_started and sys.gettrace() is None:
            self._live = self._make_live()
            self._live.start()

    def refresh(self) -> None:
        """Draw the next frame now."""
        self._live.refresh()

    def notice(self, text: str) -> None:
        """Show one line above the frame."""
        self._terminal.print(text, style="yellow", markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last frame on the terminal."""
        self._live.stop()
        if sys.breakpointhook == self._break:
            sys.breakpointhook = self._hook

    def summary(self, lines: Sequence[str]) -> None:
        """Show the outcome below the last frame, without wrapping paths, so they can be copied."""
        for i, line in enumerate(lines):
            style = "bold" if i == 0 else "default"
            self._terminal.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


class RunConsole(Console):
    """The console of a run: a sink with two more events. This base class is the quiet one."""

    def status(self, text: str) -> None:
        """Receive the name of a step of the start, which has begun."""

    def write(self, result: Mapping[str, Any], /) -> None:
        """Receive one iteration's result."""

    def saved(self, checkpoint: str, best: str | None) -> None:
        """Receive the names of a checkpoint that was written, and of the best one."""


class LineConsole(RunConsole):
    """One line per iteration, for files and pipes."""

    def __init__(self, header: RunHeader) -> None:
        self._state = ConsoleState(header)
        verb = "resumes" if header.resumed_from is not None else "trains"
        print_line(
            f"{header.algorithm} {verb} on {header.env}, seed {header.seed}, in {header.folder}"
        )

    def write(self, result: Mapping[str, Any], /) -> None:
        """Print the result's line."""
        self._state.update(result)
        print_line(result_line(self._state))
        if warning := self._state.dry_spell():
            self.notice(warning)


class PanelConsole(LiveFrame, RunConsole):
    """The live panel."""

    def __init__(self, header: RunHeader, history: Iterable[Mapping[str, Any]]) -> None:
        from rlrun.experiment.report.panel import draw

        self._state = ConsoleState(header)
        self._state.recall(history)
        self.start_frame(lambda width, height: draw(self._state, width), frames_per_s=4)

    def status(self, text: str) -> None:
        """Show the step until the first result."""
        self._state.status = text
        self.refresh()

    def write(self, result: Mapping[str, Any], /) -> None:
        """Update the numbers for the next frame."""
        self.draw_again()
        self._state.update(result)
        if warning := self._state.dry_spell():
            self.notice(warning)

    def saved(self, checkpoint: str, best: str | None) -> None:
        """Show the checkpoint from the next frame on."""
        self._state.saved, self._state.best_saved = checkpoint, best

    def close(self) -> None:
        """Leave the last frame on the terminal."""
        self._state.stop_clock()
        super().close()


def known_style(style: ConsoleStyle | None) -> ConsoleStyle | None:
    """The same style, or None for the default.

    Raises:
        ValueError: there is no such style.
    """
    if style is not None and style not in get_args(ConsoleStyle):
        names = ", ".join(get_args(ConsoleStyle))
        raise ValueError(f"console: expected one of {names}, got {style!r}")
    return style


def choose_style() -> ConsoleStyle:
    """The style for this stdout: a panel needs one that redraws and shows block characters."""
    if sys.stdout is None or not sys.stdout.isatty():
        return "lines"
    from rich.console import Console as Terminal

    terminal = Terminal()
    draws = terminal.is_terminal and not terminal.is_dumb_terminal
    return "panel" if draws and not terminal.options.ascii_only else "lines"


def make_console(
    style: ConsoleStyle, header: RunHeader, history: Iterable[Mapping[str, Any]] = ()
) -> RunConsole:
    """Make the console of a style; ``history`` has the rows of earlier sessions."""
    if style == "panel":
        return PanelConsole(header, history)
    return LineConsole(header) if style == "lines" else RunConsole()


_SHOWN = COUNTERS | {RETURN, "evaluation/episode_return_mean"}
"""Numbers that have a place of their own in a line, or need none."""


def result_line(state: ConsoleState) -> str:
    """One iteration in one line: return, speed, shares of time, success, and other goals."""
    result = state.result or {}
    mean = state.value(RETURN)
    parts = [
        f"{int(result.get('training_iteration', 0)):>5}",
        f"env_steps {int(state.value('env_steps') or 0):>10,}",
        f"return {'-' if mean is None else f'{mean:,.2f}':>9}",
        f"({int(state.value('episodes_in_mean') or 0):>3} episodes)",
        f"{state.value('env_steps_per_s') or 0:>8,.0f} steps/s",
    ]
    timers = {key: value for key, value in (result.get("timers") or {}).items() if value}
    total = sum(timers.values())
    for key in ("sample_s", "learn_s"):
        if key in timers:
            parts.append(f"{key.removesuffix('_s')} {timers[key] / total:.0%}")
    evaluated = state.value("evaluation/episode_return_mean")
    if evaluated is not None:
        parts.append(f"evaluation {evaluated:,.2f}")
    for address in dict.fromkeys(
        (SUCCESS_RATE, "evaluation/success_rate", *state.header.stop.latest)
    ):
        value = state.value(address)
        if value is not None and address not in _SHOWN:
            parts.append(f"{address.removeprefix('env_runners/')} {number(value)}")
    parts.append(clock_time(state.elapsed_s))
    return "  ".join(parts)


def print_line(text: str) -> None:
    """Write a line to stdout at once."""
    _write(sys.stdout, text)


def print_error(text: str) -> None:
    """Write a line to stderr at once."""
    _write(sys.stderr, text)


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # closed when the program started
        return
    lasting = _LastingFile(stream)
    lasting.write(text + "\n")
    lasting.flush()


class _LastingFile:
    """A text file whose writes are dropped once its terminal or pipe is closed.

    A run continues after `| head` has ended, and is saved after its terminal was closed.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            return self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
