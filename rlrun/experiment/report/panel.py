"""Drawing the live panel of a run: one frame for a terminal.

Owns the drawing: ``draw`` is a pure function of a ConsoleState and a width. It must not know when
it is called (console.py).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.text import Text

from rlrun.data.results import RETURN, SUCCESS_RATE, number_at
from rlrun.experiment.report.console_state import ConsoleState, RunHeader
from rlrun.experiment.report.numbers import clock_time, number, two_decimals

WIDEST = 120

_LABEL_WIDTH = 11  # two columns apart from the content
_SPARKS = "▁▂▃▄▅▆▇█"
_PHASE_COLOURS = {
    "sample": "cyan",
    "learn": "magenta",
    "transfer": "blue",
    "sync": "yellow",
    "evaluate": "green",
    "checkpoint": "red",
    "report": "bright_blue",
    "other": "bright_black",
}
_LEARNER_STATISTICS = {
    "approx_kl": "kl",
    "entropy": "entropy",
    "clip_fraction": "clipped",
    "vf_explained_variance": "explained",
    "lr": "lr",
}
"""Statistics that come first -> their labels; others follow if there is room."""


def draw(state: ConsoleState, width: int) -> RenderableType:
    """Draw one frame, at most ``width`` columns wide."""
    width = min(width, WIDEST)
    return Panel(
        _lines(_rows(state, width - 4 - _LABEL_WIDTH)),
        title=_title(state),
        title_align="left",
        subtitle=Text(_shortened(state.header.folder, width - 8), style="dim"),
        subtitle_align="left",
        border_style="bright_black",
        width=width,
    )


def picture(header: RunHeader, results: Iterable[Mapping[str, Any]], title: str) -> str:
    """The last frame of a run with these results, as an SVG."""
    time_s = 0.0
    state = ConsoleState(header, clock=lambda: time_s)
    for result in results:
        time_s = number_at(result, "time_s") or 0.0
        state.update(result)
    console = Console(record=True, width=WIDEST, file=StringIO())
    console.print(draw(state, WIDEST))
    drawn = console.export_svg(title=title)
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # fonts from the web


def _rows(state: ConsoleState, room: int) -> Iterator[tuple[str, Text]]:
    """Label and content of each row."""
    if state.result is None:
        yield "", Text(f"{state.status} …", style="italic")
        yield from _criteria(state, room)
        return
    yield "return", _returns(state, room)
    yield "episodes", _episodes(state)
    yield "", Text()
    yield from _criteria(state, room)
    yield "", Text()
    yield "speed", _speed(state)
    yield "time", _time_bar(state, room)
    yield "", _time_legend(state, room)
    for text in _learner(state, room):
        yield "learner", text
    if (healthy := state.value("env_runners/healthy")) is not None and state.header.num_env_runners:
        yield "runners", _runners(state, int(healthy))
    if state.evaluation is not None:
        yield "evaluated", _evaluation(*state.evaluation)
    if state.saved is not None:
        best = f" · best {state.best_saved}" if state.best_saved else ""
        yield "saved", Text(f"checkpoint {state.saved}{best}")


def _lines(rows: Iterable[tuple[str, Text]]) -> Text:
    """All rows as one text; a rich table would take three times as long to draw."""
    lines = []
    for label, content in rows:
        lines.append(Text(f"{label:<{_LABEL_WIDTH}}", style="bright_black").append_text(content))
    text = Text("\n").join(lines)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _title(state: ConsoleState) -> Text:
    header = state.header
    title = Text.assemble(
        ("rlrun", "bold cyan"), " · ", (header.algorithm, "bold"), " · ", (header.env, "bold")
    )
    title.append(f" · seed {header.seed} · {clock_time(state.elapsed_s)}")
    return title


def _returns(state: ConsoleState, room: int) -> Text:
    mean = state.value(RETURN)
    if mean is None:
        return Text("no episode has ended yet", style="italic")
    text = Text(f"{two_decimals(mean):<10}", style="bold green")
    tail = "" if state.best_return is None else f"  best {two_decimals(state.best_return)}"
    returns = [value for _, value in state.returns.points]
    text.append(sparkline(returns, max(8, room - len(text) - len(tail) - 1)), "green")
    return text.append(tail, "default")


def _episodes(state: ConsoleState) -> Text:
    window = state.header.stop.smoothing_episodes
    counted = state.value("episodes_in_mean")
    parts = [f"{number(state.value('episodes') or 0)} finished"]
    length = state.value("episode_len_mean")
    if length is not None:
        parts.append(f"{length:,.1f} steps each")
    if counted is not None:
        parts.append(f"mean of {int(counted):,}" + (f" (of {window})" if counted < window else ""))
    success = state.value(SUCCESS_RATE)
    if success is not None:
        parts.append(f"{success:.0%} successful")
    return Text(" · ".join(parts))


def _criteria(state: ConsoleState, room: int) -> list[tuple[str, Text]]:
    bounds, latest = state.header.stop.bounds, state.header.stop.latest
    if not bounds:
        return [("until", Text("Ctrl-C, which saves"))]
    cells = []
    for key, bound in bounds.items():
        value, left = latest.get(key), state.left_s(key)
        goal = f"{'-' if value is None else number(value)} / {number(bound)}"
        cells.append((key, goal, "" if left is None else f"~{clock_time(left)}"))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    bar_width = min(40, room - sum(widths) - 6)
    rows: list[tuple[str, Text]] = []
    for key, goal, left_text in cells:
        text = Text(f"{key:<{widths[0]}}  ")
        if bar_width >= 6:
            text.append_text(_bar(state.share(key), bar_width)).append("  ")
        text.append(f"{goal:>{widths[1]}}", "bold")
        text.append(f"  {left_text}" if left_text else "", "bright_black")
        rows.append(("or" if rows else "until", text))
    return rows


def _bar(share: float, width: int) -> Text:
    halves = round(share * width * 2)
    full, half = divmod(halves, 2)
    text = Text("━" * full + "╸" * half, style="cyan" if share < 1 else "green")
    return text.append("─" * (width - full - half), "bright_black")


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve in one line of at most ``width`` characters, each the mean of its share of values."""
    if not values:
        return ""
    width = min(width, len(values))
    edges = [i * len(values) // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_SPARKS[round((mean - low) * scale)] for mean in means)


def _speed(state: ConsoleState) -> Text:
    speed = state.value("env_steps_per_s")
    text = Text(f"{number(round(speed or 0))}", style="bold")
    text.append(" env steps/s", "default")
    return text.append(f" · iteration {number(state.value('training_iteration') or 0)}", "default")


def _phases(state: ConsoleState) -> list[tuple[str, float]]:
    timers = dict(state.timers_s)  # a copy: the run continues in another thread
    total = sum(timers.values()) or 1.0
    return [(phase, seconds / total) for phase, seconds in timers.items()]


def _time_bar(state: ConsoleState, room: int) -> Text:
    text = Text()
    done = 0.0
    for phase, share in _phases(state):
        # Rounding the edges, not the widths, makes the parts fill the bar exactly.
        cells = round((done + share) * room) - round(done * room)
        done += share
        text.append("▬" * cells, _PHASE_COLOURS.get(phase, "white"))
    return text


def _time_legend(state: ConsoleState, room: int) -> Text:
    text = Text()
    for phase, share in sorted(_phases(state), key=lambda item: -item[1]):
        entry = f"{phase} {share:.0%}"
        if share < 0.01 or len(text) + len(entry) + 4 > room:
            continue
        text.append("▬ ", _PHASE_COLOURS.get(phase, "white")).append(f"{entry}  ")
    return text


def _learner(state: ConsoleState, room: int) -> list[Text]:
    learners: Any = (state.result or {}).get("learners")
    if not isinstance(learners, dict):
        return []
    rows = []
    for policy_id, learner in learners.items():
        address = f"learners/{policy_id}/learner_stats"
        found = [
            f"{_LEARNER_STATISTICS.get(key, key)} {value:.3g}"
            for key in dict.fromkeys((*_LEARNER_STATISTICS, *learner.get("learner_stats", ())))
            if (value := state.value(f"{address}/{key}")) is not None
        ]
        name = f"{policy_id}: " if len(learners) > 1 else ""
        while len(name + " · ".join(found)) > room:
            found.pop()
        if found:
            rows.append(Text(name + " · ".join(found)))
    return rows


def _runners(state: ConsoleState, healthy: int) -> Text:
    count, restarts = state.header.num_env_runners, state.value("env_runners/restarts") or 0
    style = "default" if healthy >= count else "bold red"
    text = Text(f"{healthy} of {count} healthy", style=style)
    note = f" · {int(restarts)} restart{'' if restarts == 1 else 's'}"
    return text.append(note, "yellow" if restarts else "default")


def _evaluation(iteration: int, mean: float, spread: float | None) -> Text:
    text = Text(two_decimals(mean), style="bold green")
    text.append("" if spread is None else f" ± {two_decimals(spread)}", "default")
    return text.append(f" at iteration {iteration:,}", "default")


def _shortened(path: Path, width: int) -> str:
    text = str(path)
    return text if len(text) <= width else "…" + text[-(width - 1) :]
