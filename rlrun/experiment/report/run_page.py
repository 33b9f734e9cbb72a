"""The page of a run: outcome, curves, time by phase, faults, sessions and settings.

Owns what is shown, and in which order. Everything is read from the run folder, and no code that its
settings name is imported. It must not know HTML.
"""

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlrun.config.dump import flow, to_plain
from rlrun.config.registry import ALGORITHMS, algorithm_class
from rlrun.config.schema import ExperimentConfig
from rlrun.data.results import RETURN, Row, flat, flat_numbers, number_at
from rlrun.experiment.report.charts import Chart, GrowingCurve
from rlrun.experiment.report.numbers import clock_time, number
from rlrun.experiment.report.sinks import read_rows
from rlrun.experiment.report.tables import Table
from rlrun.experiment.report.web_page import WebPage
from rlrun.experiment.run_folder import RunFolder, plain_settings
from rlrun.experiment.session import last_session, sessions_of

MOST_POINTS = 400
_MOST_WARNINGS = 50
_LEVEL = re.compile(r"[\d :,-]{23} (WARNING|ERROR) ")
_FAULTS = ("restarts", "restarts_by_cause", "dropped_env_steps", "faulty_episodes")
_CURVES = {
    RETURN: {"training": RETURN, "evaluation": f"evaluation/{RETURN}"},
    "episode_len_mean": {"": "episode_len_mean"},
    "env_steps_per_s": {"": "env_steps_per_s"},
}
"""Title of a chart -> label of a curve -> its key in the results."""


def run_page(path: Path) -> WebPage:
    """The page of the run in a folder.

    Raises:
        RunFolderError, ConfigError: its settings are missing or damaged.
    """
    folder = RunFolder(path)
    settings, meta = plain_settings(folder.config), folder.read_meta()
    results = _Results(read_rows(folder.metrics))
    name = f"{settings['algorithm']} on {settings['env']['use']}"
    page = WebPage(f"{name}, seed {settings.get('seed')}")
    page.text(str(path), soft=True)
    page.table(Table(("", " "), list(_facts(meta, results, folder))))
    if charts := list(_charts(results)):
        page.heading("Curves")
        page.charts(charts)
    if results.seconds:
        page.heading("Time")
        page.table(_timers(results.seconds))
    page.heading("Faults")
    _add_faults(page, results.last, folder.log)
    page.heading("Sessions")
    page.table(_sessions(meta))
    page.heading("Settings")
    _add_settings(page, settings, _overridden(meta))
    return page


def _facts(
    meta: Mapping[str, Any], results: "_Results", folder: RunFolder
) -> Iterator[tuple[str, str]]:
    session = last_session(meta)
    reason = session.get("reason")
    yield "outcome", f"{meta.get('outcome', 'unknown')}{f': {reason}' if reason else ''}"
    if last := results.last:
        for key in ("env_steps", "training_iteration", "episodes", *_CURVES[RETURN].values()):
            value = number_at(last, key)
            yield key, "-" if value is None else number(value)
        yield f"highest {RETURN}", "-" if results.highest is None else number(results.highest)
        yield "time", clock_time(number_at(last, "time_s") or 0.0)
    git = session.get("git") or {}
    if git:
        yield "git commit", f"{git.get('commit')}{', changed' if git.get('changed') else ''}"
    for name in sorted(video.name for video in folder.videos.glob("*.mp4")):
        yield "video", f"videos/{name}"


class _Results:
    """What the page shows of a run's results, in one pass over them.

    Attributes:
        highest: the highest return.
        seconds: name of a timer -> its sum.
        series: title of a chart -> label of a curve -> its points.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.last: Row = {}
        self.highest: float | None = None
        self.seconds: dict[str, float] = {}
        self.series: dict[str, dict[str, GrowingCurve]] = {title: {} for title in _CURVES}
        for self.last in rows:
            self._take(self.last)

    def _take(self, row: Row) -> None:
        for name, seconds in flat_numbers(_part(row, "timers")).items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        found = number_at(row, RETURN)
        if found is not None and (self.highest is None or found > self.highest):
            self.highest = found
        steps = number_at(row, "env_steps")
        if steps is None:
            return
        for title, curves in _CURVES.items():
            for label, key in curves.items():
                if (value := number_at(row, key)) is not None:
                    self._add(title, label, steps, value)
        learners = _part(row, "learners")
        for policy in learners:
            statistics = _part(_part(learners, policy), "learner_stats")
            for name, value in flat_numbers(statistics).items():
                self._add(name, policy, steps, value)

    def _add(self, title: str, label: str, x: float, y: float) -> None:
        curves = self.series.setdefault(title, {})
        curves.setdefault(label, GrowingCurve(MOST_POINTS)).add(x, y)


def _part(row: Row, key: str) -> Row:
    part = row.get(key)
    return part if isinstance(part, dict) else {}


def _charts(results: _Results) -> Iterator[Chart]:
    """Charts of the results, and of the statistics of the learners that change."""
    for title, series in results.series.items():
        named = len(series) > 1 or title == RETURN
        curves = [
            each.curve(label if named else "")
            for label, each in series.items()
            if each.changes or title in _CURVES
        ]
        if curves:
            yield Chart(title, "env steps", curves)


def _timers(seconds: Mapping[str, float]) -> Table:
    total = sum(seconds.values()) or 1.0
    cells = []
    for name, value in sorted(seconds.items(), key=lambda item: -item[1]):
        share = value / total if math.isfinite(total) else 0.0  # if the file is damaged
        bar = "█" * round(30 * share)
        cells.append((name.removesuffix("_s"), f"{value:,.1f}", f"{share:.0%}", bar))
    heads = ("phase", "seconds", "share", "")
    return Table(heads, cells, heads[1:3])


def _add_faults(page: WebPage, last: Row, log: Path) -> None:
    """Restarts by cause, and warnings and errors of the log."""
    found = [
        (f"env_runners/{key}", number(value))
        for key, value in flat_numbers(_part(last, "env_runners")).items()
        if value and key.split("/")[0] in _FAULTS
    ]
    count, warnings = 0, deque[tuple[str]](maxlen=_MOST_WARNINGS)
    with suppress(FileNotFoundError), log.open(encoding="utf-8", errors="replace") as lines:
        for line in filter(_LEVEL.match, lines):
            warnings.append((line.rstrip("\n"),))
            count += 1
    if found:
        page.table(Table(("result", "number"), found, {"number"}))
    if warnings:
        page.table(Table(("log",), warnings), folded=f"{count} warnings and errors")
    if not found and not warnings:
        page.text("None: no restart, no warning.")


def _sessions(meta: Mapping[str, Any]) -> Table:
    heads = ("started", "ended", "outcome", "from iteration", "host", "CPUs", "Python", "torch")
    cells = []
    for session in sessions_of(meta):
        keys = ("started", "ended", "outcome", "resumed_from_iteration", "host", "cpus", "python")
        values = [session.get(key) for key in keys]
        values.append((session.get("versions") or {}).get("torch"))
        cells.append(tuple("-" if value is None else str(value) for value in values))
    return Table(heads, cells, {"from iteration", "CPUs"})


def _overridden(meta: Mapping[str, Any]) -> set[str]:
    """Addresses of the settings on the command lines of all sessions."""
    words = [
        word
        for session in sessions_of(meta)
        for word in (*(session.get("argv") or []), *(session.get("overrides") or []))
    ]
    options = {word.removeprefix("--") for word in words} & {"seed", "algorithm", "env"}
    return options | {
        word.partition("=")[0] for word in words if "=" in word and not word.startswith("-")
    }


def _add_settings(page: WebPage, settings: Mapping[str, Any], overridden: set[str]) -> None:
    """Add the settings that were set, with their origin, and the defaults, folded."""
    defaults = _defaults(settings["algorithm"])
    chosen, untouched = [], []
    for address, value in flat(settings, ".").items():
        if any(address == word or address.startswith(f"{word}.") for word in overridden):
            chosen.append((address, flow(value), "command line"))
        elif address in defaults and defaults[address] == value:
            untouched.append((address, flow(value)))
        else:
            chosen.append((address, flow(value), "file"))
    page.table(Table(("setting", "value", "origin"), chosen))
    page.table(Table(("setting", "value"), untouched), folded=f"{len(untouched)} defaults")


def _defaults(algorithm: str) -> dict[str, Any]:
    """Address -> default; an algorithm's own settings only if it is one of rlrun's."""
    fields = ExperimentConfig.model_fields
    plain = {
        name: to_plain(field.get_default(call_default_factory=True))
        for name, field in fields.items()
        if not field.is_required()
    }
    if algorithm in ALGORITHMS:
        plain["training"] = to_plain(algorithm_class(algorithm).Training())
    return flat(plain, ".")
