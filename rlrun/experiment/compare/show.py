"""A comparison as text, JSON, CSV, a picture and a page.

Owns the words, columns and charts. It must not know how the numbers were computed.
"""

import csv
import io
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlrun.checkpoint.files import replace_text
from rlrun.config.problems import InputError
from rlrun.config.registry import install_hint, is_installed
from rlrun.experiment.compare.comparison import AS_GIVEN, Comparison, Configuration
from rlrun.experiment.report.charts import Chart, Curve
from rlrun.experiment.report.numbers import rounded
from rlrun.experiment.report.plots import save_charts
from rlrun.experiment.report.statistics import Estimate
from rlrun.experiment.report.tables import Table
from rlrun.experiment.report.web_page import WebPage
from rlrun.experiment.sweep.points import settings_text, short_names, value_text

WIDTH = 80
PICTURES = (".png", ".svg")


def text_lines(comparison: Comparison) -> list[str]:
    """The comparison for a terminal, at most WIDTH columns wide."""
    lines = [*_wrapped(comparison.title), ""]
    table = result_table(comparison, with_settings=True).plain_lines()
    if max(map(len, table)) > WIDTH:
        table = result_table(comparison, with_settings=False).plain_lines()
        for each in comparison.configurations:
            table += _wrapped(f"{each.name}  {settings_text(each.settings)}", indent=3)
    for further in further_tables(comparison):
        table += ["", *further.plain_lines()]
    lines += [*table, "", *_wrapped(_legend(comparison))]
    lines += [line for text in improvement_lines(comparison) for line in _wrapped(text)]
    lines += [line for note in comparison.notes for line in _wrapped(f"Note: {note}", indent=2)]
    return lines


def _wrapped(text: str, indent: int = 0) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * indent, break_long_words=False)


def result_table(comparison: Comparison, *, with_settings: bool) -> Table:
    """A table with a row for each configuration."""
    first = comparison.configurations[0]
    names = short_names(first.settings) if with_settings else {}
    reach = f"steps to {rounded(comparison.threshold)}"
    numbers = ("seeds", "final", "95 % interval", "area", reach, "seconds")
    rows = []
    for each in comparison.configurations:
        rows.append(
            (
                each.name,
                *(value_text(each.settings[address]) for address in names),
                str(len(each.runs)),
                rounded(each.final.value),
                bounds_text(each.final),
                rounded(each.area.value),
                *_reached_text(each, comparison.threshold),
            )
        )
    heads = ("", *names.values(), *numbers)
    return Table(heads, rows, heads[1:])


def _reached_text(configuration: Configuration, threshold: float) -> tuple[str, str]:
    """Median env steps and seconds to a threshold, with the number of runs if not all reach it."""
    reached = configuration.median_reached(threshold)
    count = sum(pair is not None for pair in configuration.reached(threshold))
    steps = f"{reached[0]:,.0f}" if reached else "-"
    if count < len(configuration.runs):
        steps += f" ({count} of {len(configuration.runs)})"
    return steps, f"{reached[1]:,.1f}" if reached else "-"


def further_tables(comparison: Comparison) -> Iterator[Table]:
    """The values at several env steps, and the env steps to several thresholds, if there are."""
    if len(comparison.at) > 1:
        heads = ("env steps", "", "mean", "95 % interval")
        rows = [
            (f"{steps:,.0f}", each.name, rounded(found.value), bounds_text(found))
            for steps in comparison.at
            for each in comparison.configurations
            for found in (each.at(steps),)
        ]
        yield Table(heads, rows, (heads[0], *heads[2:]))
    if len(comparison.thresholds) > 1:
        heads = ("threshold", "", "env steps", "seconds")
        rows = [
            (rounded(threshold), each.name, *_reached_text(each, threshold))
            for threshold in comparison.thresholds
            for each in comparison.configurations
        ]
        yield Table(heads, rows, (heads[0], *heads[2:]))


def bounds_text(estimate: Estimate) -> str:
    """The interval, or the range in brackets."""
    if estimate.low is None:
        return "-"
    text = f"{rounded(estimate.low)} to {rounded(estimate.high)}"
    return text if estimate.kind == "interval" else f"({text})"


def _legend(comparison: Comparison) -> str:
    kinds = {each.final.kind for each in comparison.configurations}
    spread = "; with too few seeds the range in brackets" if "range" in kinds else ""
    return (
        f"Interquartile means with bootstrap intervals{spread}. area: mean of the curve. Steps and "
        f"seconds to the threshold ({comparison.threshold_is}): median of the seeds, with the "
        "number that reach it if not all do."
    )


def improvement_lines(comparison: Comparison) -> Iterator[str]:
    """The probability that the best configuration is better, for each other one."""
    best, *others = comparison.configurations
    for other in others:
        found = comparison.improvement(best, other)
        bounds = "" if found.low is None else f" ({found.low:.2f} to {found.high:.2f})"
        yield f"A run of {best.name} is better than one of {other.name} with probability " + (
            f"{found.value:.2f}{bounds}."
        )


def to_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain JSON values."""
    best, *others = comparison.configurations
    return {
        "metric": comparison.metric,
        "mode": comparison.mode,
        "algorithms": list(comparison.algorithms),
        "env": comparison.env,
        "env_steps": int(comparison.grid[-1]),
        "threshold": comparison.threshold,
        "threshold_is": comparison.threshold_is,
        "configurations": [
            _configuration_json(comparison, each) for each in comparison.configurations
        ],
        "improvements": [
            {"better": best.name, "than": other.name} | vars(comparison.improvement(best, other))
            for other in others
        ],
        "profile_thresholds": comparison.profile_thresholds().tolist(),
        "notes": list(comparison.notes),
    }


def _configuration_json(comparison: Comparison, each: Configuration) -> dict[str, Any]:
    middle, low, high = (bound.tolist() for bound in each.band())
    steps, seconds = each.median_reached(comparison.threshold) or (None, None)
    return {
        "name": each.name,
        "settings": dict(each.settings),
        "final": vars(each.final),
        "area": vars(each.area),
        "env_steps_to_threshold": steps,
        "seconds_to_threshold": seconds,
        "at": [{"env_steps": int(steps), **vars(each.at(steps))} for steps in comparison.at],
        "thresholds": [
            {"threshold": threshold, "env_steps": steps, "seconds": seconds}
            for threshold in comparison.thresholds
            for steps, seconds in (each.median_reached(threshold) or (None, None),)
        ],
        "runs": list(run_rows(each, comparison.threshold)),
        "curve": {"env_steps": each.grid.tolist(), "iqm": middle, "low": low, "high": high},
        "profile": comparison.profile(each).tolist(),
    }


def run_rows(configuration: Configuration, threshold: float) -> Iterator[dict[str, Any]]:
    """The numbers of each run."""
    numbers = zip(
        configuration.runs,
        configuration.finals.tolist(),
        configuration.areas.tolist(),
        configuration.reached(threshold),
        strict=True,
    )
    for run, final, area, reached in numbers:
        yield {
            "run": str(run.path),
            "seed": run.seed,
            "final": final,
            "area": area,
            "env_steps_to_threshold": None if reached is None else int(reached[0]),
            "seconds_to_threshold": None if reached is None else float(reached[1]),
        }


def to_csv(comparison: Comparison) -> str:
    """The comparison as CSV, a line for each run."""
    rows = [
        {"configuration": each.name, **{k: value_text(v) for k, v in each.settings.items()}, **row}
        for each in comparison.configurations
        for row in run_rows(each, comparison.threshold)
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def check_picture(path: Path) -> None:
    """Raise InputError if no picture can be written at ``path``."""
    if path.suffix not in PICTURES:
        raise InputError(f"--plot {path}: expected a name that ends with {' or '.join(PICTURES)}")
    if not is_installed("matplotlib"):
        raise InputError(f"--plot: matplotlib is missing: {install_hint('plot')}")


def plot(comparison: Comparison, path: Path) -> None:
    """Draw the curves with their bands, and the performance profiles."""
    save_charts(path, list(charts(comparison)), columns=2, panel_size=(5.2, 3.6), dpi=120)


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the comparison as one self-contained page."""
    page = WebPage(comparison.title)
    add_comparison(page, comparison)
    page.heading("Runs")
    page.table(_run_table(comparison))
    replace_text(path, page.html())


def add_comparison(page: WebPage, comparison: Comparison) -> None:
    """Add the table, the probabilities, the notes and the charts to a page."""
    page.table(result_table(comparison, with_settings=True))
    for table in further_tables(comparison):
        page.table(table)
    page.text(_legend(comparison), soft=True)
    for line in improvement_lines(comparison):
        page.text(line)
    for note in comparison.notes:
        page.text(f"Note: {note}.")
    page.charts(charts(comparison))


def _run_table(comparison: Comparison) -> Table:
    heads = ("", "seed", "final", "area", f"steps to {rounded(comparison.threshold)}", "seconds")
    rows = [
        (each.name, str(row["seed"]), *(rounded(row[key], "-") for key in _RUN_NUMBERS), row["run"])
        for each in comparison.configurations
        for row in run_rows(each, comparison.threshold)
    ]
    return Table((*heads, "run"), rows, heads[1:])


_RUN_NUMBERS = ("final", "area", "env_steps_to_threshold", "seconds_to_threshold")


def charts(comparison: Comparison) -> Iterator[Chart]:
    """The learning curves with their bands, and the performance profiles."""
    curves = []
    for each in comparison.configurations:
        middle, low, high = (bound.tolist() for bound in each.band())
        curves.append(Curve(each.label, each.grid.tolist(), middle, low, high))
    goals = comparison.thresholds if comparison.threshold_is == AS_GIVEN else ()
    yield Chart(comparison.metric, "env steps", curves, goals=goals)
    if all(len(each.runs) == 1 for each in comparison.configurations):
        return
    thresholds = comparison.profile_thresholds().tolist()
    profiles = [
        Curve(each.label, thresholds, comparison.profile(each).tolist())
        for each in comparison.configurations
    ]
    yield Chart("Share of the runs that end above", comparison.metric, profiles)
