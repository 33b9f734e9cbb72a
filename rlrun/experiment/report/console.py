"""The console: what a person sees of a run.

Owns when and where text appears: a live panel on a terminal, one line an iteration when piped,
only the end when quiet. It must not know how the panel is drawn (panel.py). Its ``write`` only
stores numbers; rich redraws the panel from a thread of its own, four times a second.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol, TextIO

from rlrun.experiment.report.progress import Progress, RunHeader, clock_time

ConsoleStyle = Literal["panel", "lines", "quiet"]

_FRAMES_PER_S = 4


class RunConsole(Protocol):
    """A sink that also hears what happens between results."""

    def status(self, text: str) -> None:
        """What happens before the first result."""

    def write(self, result: Mapping[str, Any], /) -> None:
        """One iteration is done."""

    def saved(self, checkpoint: str, best: str | None) -> None:
        """A checkpoint was written."""

    def notice(self, text: str) -> None:
        """One line that a person should see."""

    def close(self) -> None:
        """No more results will come; may be called twice."""

    def summary(self, lines: Sequence[str]) -> None:
        """How the run ended; the first line is the headline."""


def choose_style(*, quiet: bool = False, plain: bool = False) -> ConsoleStyle:
    """A panel needs a terminal that can redraw and show block characters."""
    if quiet:
        return "quiet"
    if plain or not sys.stdout.isatty():
        return "lines"
    from rich.console import Console

    console = Console()
    return "panel" if console.is_terminal and not console.options.ascii_only else "lines"


def make_console(
    style: ConsoleStyle, header: RunHeader, history: Iterable[Mapping[str, Any]] = ()
) -> RunConsole:
    """Make the console of a style; ``history`` is the rows of earlier sessions."""
    if style == "panel":
        return PanelConsole(header, history)
    return LineConsole(header) if style == "lines" else QuietConsole()


class QuietConsole:
    """Says only what must not be missed, on stderr."""

    def status(self, text: str) -> None:
        """Not shown."""

    def write(self, result: Mapping[str, Any], /) -> None:
        """Not shown."""

    def saved(self, checkpoint: str, best: str | None) -> None:
        """Not shown."""

    def notice(self, text: str) -> None:
        """Shown on stderr."""
        print_error(text)

    def close(self) -> None:
        """Nothing is open."""

    def summary(self, lines: Sequence[str]) -> None:
        """The one thing that is always shown."""
        for line in lines:
            print_line(line)


class LineConsole(QuietConsole):
    """One line an iteration, for files and pipes."""

    def __init__(self, header: RunHeader) -> None:
        self._progress = Progress(header)
        kind = "resumes" if header.resumed_from is not None else "trains"
        print_line(
            f"{header.algorithm} {kind} on {header.env}, seed {header.seed}, in {header.folder}"
        )

    def write(self, result: Mapping[str, Any], /) -> None:
        """Print the result's line."""
        self._progress.update(result)
        print_line(result_line(self._progress))
        dry = self._progress.dry_spell()
        if dry:
            self.notice(dry)


class PanelConsole(QuietConsole):
    """The live panel."""

    def __init__(self, header: RunHeader, history: Iterable[Mapping[str, Any]]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._progress = Progress(header)
        self._progress.recall(history)
        self._console = Console()
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=_FRAMES_PER_S,
        )
        self._live.start(refresh=True)

    def _draw(self) -> Any:
        from rlrun.experiment.report.panel import draw

        return draw(self._progress, self._console.width)

    def status(self, text: str) -> None:
        """Shown until the first result."""
        self._progress.status = text
        self._live.refresh()

    def write(self, result: Mapping[str, Any], /) -> None:
        """Take the numbers; the next frame shows them."""
        self._progress.update(result)
        dry = self._progress.dry_spell()
        if dry:
            self.notice(dry)

    def saved(self, checkpoint: str, best: str | None) -> None:
        """Shown from the next frame on."""
        self._progress.saved, self._progress.best_saved = checkpoint, best

    def notice(self, text: str) -> None:
        """Shown above the panel."""
        self._console.print(text, style="yellow", markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last frame standing."""
        self._progress.stop_clock()
        self._live.stop()

    def summary(self, lines: Sequence[str]) -> None:
        """Shown below the last frame, paths in one piece so that they can be copied."""
        for i, line in enumerate(lines):
            style = "bold" if i == 0 else "default"
            self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def result_line(progress: Progress) -> str:
    """One iteration in one line: what was reached, how fast, and where the time went."""
    result = progress.result or {}
    mean = progress.value("episode_return_mean")
    parts = [
        f"{int(result.get('training_iteration', 0)):>5}",
        f"env_steps {int(progress.value('env_steps') or 0):>10,}",
        f"return {'-' if mean is None else f'{mean:,.2f}':>9}",
        f"({int(progress.value('episodes_in_mean') or 0):>3} episodes)",
        f"{progress.value('env_steps_per_s') or 0:>8,.0f} steps/s",
    ]
    timers = {key: value for key, value in (result.get("timers") or {}).items() if value}
    total = sum(timers.values())
    for key in ("sample_s", "learn_s"):
        if key in timers:
            parts.append(f"{key.removesuffix('_s')} {timers[key] / total:.0%}")
    evaluated = progress.value("evaluation/episode_return_mean")
    if evaluated is not None:
        parts.append(f"evaluation {evaluated:,.2f}")
    parts.append(clock_time(progress.elapsed_s))
    return "  ".join(parts)


def print_line(text: str) -> None:
    """Write a line to stdout at once."""
    _write(sys.stdout, text)


def print_error(text: str) -> None:
    """Write a line to stderr at once."""
    _write(sys.stderr, text)


def _write(stream: TextIO, text: str) -> None:
    # A closed pipe (`| head`) is not worth the run.
    with suppress(BrokenPipeError, ValueError):
        stream.write(text + "\n")
        stream.flush()
