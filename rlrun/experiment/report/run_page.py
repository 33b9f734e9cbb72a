"""The page of a run: outcome, curves, time by phase, faults, sessions and settings.

Owns what is shown, and in which order. Everything is read from the run folder, and no code that its
settings name is imported. It must not know HTML.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.config.dump import flow, to_plain
from rlrun.config.registry import ALGORITHMS, algorithm_class
from rlrun.config.schema import ExperimentConfig
from rlrun.data.results import RETURN, Row, flat, flat_numbers, lookup, number_at
from rlrun.experiment.report.charts import Chart, Curve
from rlrun.experiment.report.numbers import clock_time, number
from rlrun.experiment.report.sinks import read_rows
from rlrun.experiment.report.tables import Table
from rlrun.experiment.report.web_page import WebPage
from rlrun.experiment.run_folder import RunFolder, plain_settings

MOST_POINTS = 400
_MOST_WARNINGS = 50
_LEVEL = re.compile(r"[\d :,-]{23} (WARNING|ERROR) ")
_FAULTS = ("restarts", "restarts_by_cause", "dropped_env_steps", "faulty_episodes")
_CURVES = {
    RETURN: (RETURN, f"evaluation/{RETURN}"),
    "episode_len_mean": ("episode_len_mean",),
    "env_steps_per_s": ("env_steps_per_s",),
}
"""Title of a chart -> the keys of its curves."""


def run_page(path: Path) -> WebPage:
    """The page of the run in a folder.

    Raises:
        RunFolderError, ConfigError: its settings are missing or damaged.
    """
    folder = RunFolder(path)
    settings, meta = plain_settings(folder.config), folder.read_meta()
    rows = list(read_rows(folder.metrics))
    name = f"{settings['algorithm']} on {settings['env']['use']}"
    page = WebPage(f"{name}, seed {settings.get('seed')}")
    page.text(str(path), soft=True)
    page.table(Table(("", " "), list(_facts(meta, rows, folder))))
    charts = [*_result_charts(rows), *_learner_charts(rows)]
    if charts:
        page.heading("Curves")
        page.charts(charts)
    if rows:
        page.heading("Time")
        page.table(_timers(rows))
    page.heading("Faults")
    _add_faults(page, rows, folder.log)
    page.heading("Sessions")
    page.table(_sessions(meta))
    page.heading("Settings")
    _add_settings(page, settings, _overridden(meta))
    return page


def _facts(
    meta: Mapping[str, Any], rows: Sequence[Row], folder: RunFolder
) -> Iterator[tuple[str, str]]:
    session = (meta.get("sessions") or [{}])[-1]
    reason = session.get("reason")
    yield "outcome", f"{meta.get('outcome', 'unknown')}{f': {reason}' if reason else ''}"
    if rows:
        last = rows[-1]
        for key in ("env_steps", "training_iteration", "episodes", *_CURVES[RETURN]):
            value = number_at(last, key)
            yield key, "-" if value is None else number(value)
        returns = [value for row in rows if (value := number_at(row, RETURN)) is not None]
        yield f"highest {RETURN}", number(max(returns)) if returns else "-"
        yield "time", clock_time(number_at(last, "time_s") or 0.0)
    git = session.get("git") or {}
    if git:
        yield "git commit", f"{git.get('commit')}{', changed' if git.get('changed') else ''}"
    for name in sorted(video.name for video in folder.videos.glob("*.mp4")):
        yield "video", f"videos/{name}"


def _curve(rows: Sequence[Row], key: str, label: str) -> Curve | None:
    """A key of the results over env steps, with at most MOST_POINTS; None without numbers."""
    points = [
        (steps, value)
        for row in rows
        if (value := number_at(row, key)) is not None
        and (steps := number_at(row, "env_steps")) is not None
    ]
    every = -(-len(points) // MOST_POINTS)
    # From the end, so that the last point is one of them.
    kept = points[::-1][::every][::-1] if points else []
    return Curve(label, [x for x, _ in kept], [y for _, y in kept]) if kept else None


def _result_charts(rows: Sequence[Row]) -> Iterator[Chart]:
    for title, keys in _CURVES.items():
        labels = ["training", "evaluation"] if len(keys) > 1 else [""]
        curves = [_curve(rows, key, label) for key, label in zip(keys, labels, strict=True)]
        if any(curves):
            yield Chart(title, "env steps", [curve for curve in curves if curve])


def _learner_charts(rows: Sequence[Row]) -> Iterator[Chart]:
    """A chart for each statistic of the learners that changes, with a curve per policy."""
    statistics: dict[str, list[Curve]] = {}
    found = rows[-1].get("learners") if rows else None
    learners = found if isinstance(found, dict) else {}
    for policy in learners:
        home = f"learners/{policy}/learner_stats"
        for name in number_keys(rows[-1], home):
            curve = _curve(rows, f"{home}/{name}", policy if len(learners) > 1 else "")
            if curve and len(set(curve.y)) > 1:
                statistics.setdefault(name, []).append(curve)
    for name, curves in statistics.items():
        yield Chart(name, "env steps", curves)


def number_keys(row: Row, home: str) -> list[str]:
    """The addresses of numbers below a part of a row."""
    try:
        part = lookup(row, home)
    except KeyError:
        return []
    return list(flat_numbers(part)) if isinstance(part, Mapping) else []


def _timers(rows: Sequence[Row]) -> Table:
    names = number_keys(rows[-1], "timers")
    seconds = {name: sum(number_at(row, f"timers/{name}") or 0.0 for row in rows) for name in names}
    total = sum(seconds.values()) or 1.0
    cells = []
    for name, value in sorted(seconds.items(), key=lambda item: -item[1]):
        share = value / total if math.isfinite(total) else 0.0  # if the file is damaged
        bar = "█" * round(30 * share)
        cells.append((name.removesuffix("_s"), f"{value:,.1f}", f"{share:.0%}", bar))
    heads = ("phase", "seconds", "share", "")
    return Table(heads, cells, heads[1:3])


def _add_faults(page: WebPage, rows: Sequence[Row], log: Path) -> None:
    """Restarts by cause, and warnings and errors of the log."""
    found = []
    for key in number_keys(rows[-1], "env_runners") if rows else ():
        value = number_at(rows[-1], f"env_runners/{key}")
        if value and key.split("/")[0] in _FAULTS:
            found.append((f"env_runners/{key}", number(value)))
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    warnings = [line for line in text.splitlines() if _LEVEL.match(line)]
    if found:
        page.table(Table(("result", "number"), found, {"number"}))
    if warnings:
        rows_of = [(text,) for text in warnings[-_MOST_WARNINGS:]]
        page.table(Table(("log",), rows_of), folded=f"{len(warnings)} warnings and errors")
    if not found and not warnings:
        page.text("None: no restart, no warning.")


def _sessions(meta: Mapping[str, Any]) -> Table:
    heads = ("started", "ended", "outcome", "from iteration", "host", "CPUs", "Python", "torch")
    cells = []
    for session in meta.get("sessions") or []:
        keys = ("started", "ended", "outcome", "resumed_from_iteration", "host", "cpus", "python")
        values = [session.get(key) for key in keys]
        values.append((session.get("versions") or {}).get("torch"))
        cells.append(tuple("-" if value is None else str(value) for value in values))
    return Table(heads, cells, {"from iteration", "CPUs"})


def _overridden(meta: Mapping[str, Any]) -> set[str]:
    """Addresses of the settings on the command lines of all sessions."""
    words = [
        word
        for session in meta.get("sessions") or []
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
