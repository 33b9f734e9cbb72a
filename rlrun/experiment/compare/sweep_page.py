"""The page of a sweep: its trials, the curves of its points, and the effect of each setting.

Owns what is shown, and in which order. It must not know HTML.
"""

from pathlib import Path
from typing import Any

from rlrun.config.problems import InputError
from rlrun.data.results import lookup
from rlrun.experiment.compare.comparison import compare
from rlrun.experiment.compare.show import add_comparison
from rlrun.experiment.report.charts import Axis
from rlrun.experiment.report.numbers import short
from rlrun.experiment.report.tables import Table
from rlrun.experiment.report.web_page import WebPage
from rlrun.experiment.run_folder import RunFolderError, plain_settings
from rlrun.experiment.sweep.effects import effects_of
from rlrun.experiment.sweep.report import trial_table
from rlrun.experiment.sweep.trials import SweepFolder, TrialTable

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
    except KeyError as error:
        raise RunFolderError(f"{folder.config}: the file is damaged: no {error}") from error
    table = TrialTable.read(folder.trials, metric=metric, mode=mode)
    name = f"{plain['algorithm']} on {plain['env']['use']}"
    page = WebPage(f"Sweep of {name}, {len(table.trials)} trials")
    page.text(str(path), soft=True)
    page.text(", ".join(f"{count} {status}" for status, count in table.counts().items()))
    if metric is not None:
        _add_settings(page, table, metric)
        _add_curves(page, path, table, metric, mode)
    page.heading("Trials")
    page.table(trial_table(table, table.ranked()))
    return page


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
    effects = sorted(effects_of(table), key=lambda effect: -effect.importance)
    if not effects:
        return
    page.heading("Settings")
    cells = [(effect.address, f"{effect.importance:.2f}") for effect in effects]
    page.table(Table(("setting", "importance"), cells, {"importance"}))
    page.text(
        "Importance: the share of the variance of the scores' ranks that the setting explains by "
        "itself, 0 to 1. With few trials much of it is chance.",
        soft=True,
    )
    page.charts(effect.chart(metric, table.best()) for effect in effects)
    scores = [trial.score or 0.0 for trial in effects[0].trials]
    last = Axis(metric, short(min(scores)), short(max(scores)), scores)
    axes = [*(effect.axis() for effect in effects), last]
    page.parallel("All settings of each trial, coloured by the score", axes)
