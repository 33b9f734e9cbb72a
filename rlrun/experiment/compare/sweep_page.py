"""The page of a sweep: its trials, the curves of its points, and the effect of each setting.

Owns what is shown, and in which order. It must not know HTML.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rlrun.config.problems import InputError
from rlrun.data.results import lookup
from rlrun.experiment.compare.comparison import compare
from rlrun.experiment.compare.show import add_comparison
from rlrun.experiment.report.numbers import rounded, short
from rlrun.experiment.report.tables import Table
from rlrun.experiment.report.web_page import Axis, Chart, Curve, WebPage
from rlrun.experiment.run_folder import RunFolderError, plain_settings
from rlrun.experiment.sweep.points import short_names, value_text
from rlrun.experiment.sweep.trials import SweepFolder, Trial, TrialTable

_MOST_CONFIGURATIONS = 8  # as many as there are colours


def sweep_page(path: Path) -> WebPage:
    """The page of the sweep in a folder.

    Raises:
        RunFolderError, ConfigError: its files are missing or damaged.
    """
    folder = SweepFolder(path)
    plain = plain_settings(folder.config)
    try:
        metric, mode = lookup(plain, "sweep/metric"), lookup(plain, "sweep/mode")
        table = TrialTable.read(folder.trials, metric=metric, mode=mode)
        table.ranked(), table.num_points  # raise here if the file is damaged
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise RunFolderError(f"{folder.trials}: cannot be read: {error}") from error
    name = f"{plain['algorithm']} on {plain['env']['use']}"
    page = WebPage(f"Sweep of {name}, {len(table.trials)} trials")
    page.text(str(path), soft=True)
    page.text(", ".join(f"{count} {status}" for status, count in table.counts().items()))
    if metric is not None:
        _add_settings(page, table, metric)
        _add_curves(page, path, table, metric, mode)
    page.heading("Trials")
    page.table(_trial_table(table))
    return page


def _trial_table(table: TrialTable) -> Table:
    """All trials, best first."""
    settings = table.trials[0].settings if table.trials else {}
    names = short_names(settings)
    heads = ("trial", *names.values(), "seed", table.metric or "score", "env steps", "", "reason")
    rows = [
        (
            str(trial.trial),
            *(value_text(trial.settings.get(address)) for address in names),
            str(trial.seed),
            rounded(trial.score, "-"),
            f"{trial.env_steps or 0:,}",
            trial.status,
            trial.reason or "",
        )
        for trial in table.ranked()
    ]
    return Table(heads, rows, heads[:-2])


def _add_curves(page: WebPage, path: Path, table: TrialTable, metric: str, mode: Any) -> None:
    """Add the comparison of the configurations if there are few enough for the colours."""
    if table.num_points > _MOST_CONFIGURATIONS:
        return
    try:
        found = compare([path], metric=metric, mode=mode)
    except InputError as error:
        page.text(f"No curves: {error}.", soft=True)
        return
    page.heading(found.title)
    add_comparison(page, found)


def _add_settings(page: WebPage, table: TrialTable, metric: str) -> None:
    """Add the effect of each setting on the score, by itself."""
    scored = [trial for trial in table.trials if isinstance(trial.score, int | float)]
    settings = scored[0].settings if scored else {}
    varied = [key for key in settings if len({repr(t.settings.get(key)) for t in scored}) > 1]
    if not varied:
        return
    page.heading("Settings")
    rows = sorted(((key, importance(scored, key)) for key in varied), key=lambda row: -row[1])
    cells = [(key, f"{share:.2f}") for key, share in rows]
    page.table(Table(("setting", "importance"), cells, {"importance"}))
    page.text(
        "Importance: the share of the variance of the scores' ranks that the setting explains by "
        "itself, 0 to 1. With few trials much of it is chance.",
        soft=True,
    )
    scores = [float(trial.score or 0.0) for trial in scored]
    values = [_Values.of(key, scored) for key, _ in rows]
    page.charts(each.chart(scores, metric) for each in values)
    axes = [each.axis() for each in (*values, _Values(metric, tuple(scores)))]
    page.parallel("All settings of each trial, coloured by the score", axes)


def importance(trials: Sequence[Trial], address: str) -> float:
    """Share of the variance of the scores' ranks that one setting explains, 0 to 1.

    For numbers with many values it is the squared rank correlation, else the variance between the
    groups of equal values.
    """
    ranks = ranked([trial.score or 0.0 for trial in trials])
    values: list[Any] = [trial.settings.get(address) for trial in trials]
    names = [repr(value) for value in values]
    if _is_number(values) and len(set(names)) > len(names) / 2:
        return float(np.corrcoef(ranks, ranked(values))[0, 1] ** 2) if np.ptp(ranks) else 0.0
    groups = [ranks[[name == each for each in names]] for name in dict.fromkeys(names)]
    between = sum(len(group) * (group.mean() - ranks.mean()) ** 2 for group in groups)
    total = float(((ranks - ranks.mean()) ** 2).sum())
    return float(between) / total if total else 0.0


def ranked(values: ArrayLike) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The ranks of values, [N] -> [N]; equal values share their mean rank."""
    numbers = np.asarray(values, np.float64)
    below = (numbers[:, None] > numbers).sum(axis=-1)
    equal = (numbers[:, None] == numbers).sum(axis=-1)
    ranks: np.ndarray[Any, np.dtype[np.float64]] = below + (equal - 1) / 2
    return ranks


def _is_number(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


@dataclass(frozen=True)
class _Values:
    """The values of a setting as numbers; others are numbered in order of appearance."""

    address: str
    numbers: tuple[float, ...]
    names: tuple[str, ...] = ()
    """Names of values that are not numbers."""

    @classmethod
    def of(cls, address: str, trials: Sequence[Trial]) -> "_Values":
        values: list[Any] = [trial.settings.get(address) for trial in trials]
        if _is_number(values):
            return cls(address, tuple(map(float, values)))
        names = tuple(dict.fromkeys(map(value_text, values)))
        return cls(address, tuple(float(names.index(value_text(v))) for v in values), names)

    @property
    def over_decades(self) -> bool:
        return min(self.numbers) > 0 and max(self.numbers) / min(self.numbers) >= 10

    def chart(self, scores: Sequence[float], metric: str) -> Chart:
        names = ", ".join(f"{i} {name}" for i, name in enumerate(self.names))
        label = f"{self.address}: {names}" if names else self.address
        curve = Curve("", self.numbers, scores, dots=True)
        title = f"{metric} over {self.address}"
        return Chart(title, label, [curve], log_x=self.over_decades and not names)

    def axis(self) -> Axis:
        log = self.over_decades and not self.names
        numbers = np.log10(self.numbers) if log else np.array(self.numbers)
        low, high = min(self.numbers), max(self.numbers)
        ends = (self.names[0], self.names[-1]) if self.names else (short(low), short(high))
        width = np.ptp(numbers)
        shares = (numbers - numbers.min()) / width if width else np.full(len(numbers), 0.5)
        return Axis(self.address, *ends, [float(share) for share in shares])
