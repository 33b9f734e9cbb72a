"""The index of runs: the folders of runs and sweeps below a path, and the content of each.

Owns how the state, the progress and the best value of a run are read from its folder, and how runs
are removed. No code that a run's settings name is imported, and a damaged folder is an entry with
that state. It must not know how entries are shown.
"""

import glob
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from rlrun.checkpoint.checkpoint_folder import CHECKPOINTS
from rlrun.checkpoint.files import remove_directory
from rlrun.config.problems import ConfigError
from rlrun.config.yaml_tree import parse_scalar
from rlrun.data.results import RETURN, Row, counts_already, lookup, number_at
from rlrun.experiment.report.console_state import RunHeader
from rlrun.experiment.report.sinks import read_rows
from rlrun.experiment.run_folder import (
    SWEEP_CONFIG,
    RunFolder,
    RunFolderError,
    created,
    is_in_use,
    is_of_checkpoints,
    is_sweep_folder,
    plain_settings,
    renew_latest,
    resolve_run,
)
from rlrun.experiment.session import last_session
from rlrun.experiment.stopping import StopCriteria
from rlrun.experiment.sweep.trials import SweepFolder, TrialTable

_log = logging.getLogger(__name__)

TRIALS = "trials"
_MOST_LEVELS = 3  # runs/<name>/<run> and one more
_FILES_OF_RUNS = (RunFolder.CONFIG, SWEEP_CONFIG, "meta.json", "metrics.jsonl", CHECKPOINTS)


class RunEntry:
    """A run, group or sweep as its folder shows it; each file is read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = RunFolder(path)

    @cached_property
    def is_sweep(self) -> bool:
        """Whether it is a group or sweep."""
        return is_sweep_folder(self.path)

    @cached_property
    def members(self) -> tuple["RunEntry", ...]:
        """The runs of a group or sweep."""
        return tuple(map(RunEntry, _trials(self.path))) if self.is_sweep else ()

    @cached_property
    def meta(self) -> Mapping[str, Any]:
        """The content of meta.json; empty if it is damaged."""
        return self._folder.read_meta()

    @cached_property
    def created(self) -> datetime:
        """When it began; if that is damaged, the time of its folder."""
        modified = datetime.fromtimestamp(self.path.stat().st_mtime)
        return created(self.meta) or modified.astimezone()

    @cached_property
    def _settings_and_damage(self) -> tuple[Mapping[str, Any], str | None]:
        config = self.path / SWEEP_CONFIG if self.is_sweep else self._folder.config
        try:
            return plain_settings(config), None
        except (RunFolderError, ConfigError) as error:
            return {}, str(error).partition("\n")[0]

    @property
    def settings(self) -> Mapping[str, Any]:
        """Plain values, nested as in the file; empty if it is damaged."""
        return self._settings_and_damage[0]

    @cached_property
    def _noted_state(self) -> str:
        """The state as far as it is known without the settings."""
        if is_in_use(self.path):
            return "running"
        outcome = str(self.meta.get("outcome")) if self.meta else "damaged"
        return "killed" if outcome == "running" else outcome

    @property
    def state(self) -> str:
        """The outcome in meta.json; ``killed`` if the process ended without one; else ``running``,
        or ``damaged``.
        """
        noted = self._noted_state
        return noted if noted == "running" or self._settings_and_damage[1] is None else "damaged"

    @property
    def reason(self) -> str:
        """Why it ended, or what is damaged."""
        if self.state == "damaged":
            return self._settings_and_damage[1] or f"{self._folder.meta}: missing or damaged"
        if self.state == "killed":
            return "its process is gone"
        return "" if self.state == "running" else str(last_session(self.meta).get("reason") or "")

    @cached_property
    def _goal(self) -> "_Goal":
        sweep = self.settings.get("sweep")
        by_score = self.is_sweep and isinstance(sweep, dict) and sweep.get("metric")
        return _Goal(self.settings, "sweep" if by_score else "checkpoint")

    @property
    def metric(self) -> str:
        """The result key of the best value, `checkpoint.metric`; of a sweep `sweep.metric`."""
        return self._goal.metric

    @cached_property
    def _last_and_best(self) -> tuple[Row, float | None]:
        last: Row = {}
        best = None
        try:
            for last in read_rows(self._folder.metrics, warn=False):
                best = self._goal.best((best, self._goal.value(last)))
        except PermissionError as error:
            _log.warning("%s: %s", error.filename, error.strerror)
        return last, best

    @property
    def last(self) -> Row:
        """The last result; empty without any."""
        return self._last_and_best[0]

    @cached_property
    def best(self) -> float | None:
        """The best value that counts, of any result; of a sweep its best trial's score."""
        if not self.is_sweep:
            return self._last_and_best[1]
        if self._goal.section == "sweep":
            return _best_score(self.path, self._goal)
        return self._goal.best(member.best for member in self.members)

    @cached_property
    def progress(self) -> float | None:
        """Used fraction of the budget in ``stop:``, 0 to 1; None without a budget."""
        if self.state == "finished":
            return 1.0
        if not self.members:
            return self._goal.stop.used_budget(self.last)
        try:
            trials = SweepFolder(self.path).trials.read_text(encoding="utf-8").count("\n")
        except OSError:
            trials = 0
        known = sum(member.progress or 0.0 for member in self.members)
        return known / max(trials, len(self.members))

    def matches(self, filters: Mapping[str, str]) -> bool:
        """Whether settings, and ``state``, equal values or match patterns, by address."""
        wanted, possible = filters.get("state"), (self._noted_state, "damaged")
        # Settings, which may be damaged, are read only if the state depends on them.
        if wanted is not None and not any(_fits(state, wanted) for state in possible):
            return False
        for address, wanted in filters.items():
            try:
                value = self._value_at(address)
            except KeyError:
                return False
            if not _fits(value, wanted):
                return False
        return True

    def members_like(self, filters: Mapping[str, str]) -> list["RunEntry"]:
        """The members that match."""
        return [each for each in self.members if each.matches(filters)]

    def _value_at(self, address: str) -> Any:
        if address == "state":
            return self.state
        if address == "env":
            return self.settings.get("env", {}).get("use")
        return lookup(self.settings, address.replace(".", "/"))

    def sizes(self) -> dict[str, int]:
        """Bytes by entry of the folder, not counting links, nor what cannot be read."""
        return _sizes(self.path)


def _fits(value: Any, wanted: str) -> bool:
    return value == parse_scalar(wanted) or fnmatchcase(str(value), wanted)


def _sizes(folder: str | Path) -> dict[str, int]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name: _size(entry) for entry in entries}
    except (FileNotFoundError, PermissionError):  # removed since, by a run that is going on
        return {}


def _size(entry: os.DirEntry[str]) -> int:
    if entry.is_dir(follow_symlinks=False):
        return sum(_sizes(entry.path).values())
    try:
        return 0 if entry.is_symlink() else entry.stat().st_size
    except FileNotFoundError:
        return 0


def read_index(path: Path) -> list[RunEntry]:
    """The runs and sweeps below ``path``, newest first; of a sweep its members, of a run itself.

    Raises:
        RunFolderError: there is no such folder.
    """
    if not path.is_dir():
        raise RunFolderError(f"{path}: no such folder")
    if is_sweep_folder(path):
        found: Iterable[Path] = _trials(resolve_run(path, SWEEP_CONFIG))
    else:
        found = _folders(path, _MOST_LEVELS)
    return sorted(map(RunEntry, found), key=lambda entry: entry.created, reverse=True)


def _folders(path: Path, levels: int) -> Iterator[Path]:
    """The folders of runs and sweeps, up to ``levels`` deep; links are not followed."""
    if _is_listed(path):
        yield path
    elif levels:
        try:
            entries = list(os.scandir(path))
        except PermissionError as error:
            _log.warning("%s: %s", path, error.strerror)
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _folders(Path(entry.path), levels - 1)


def _is_listed(path: Path) -> bool:
    files = any(os.path.lexists(path / name) for name in _FILES_OF_RUNS)
    return files and not is_of_checkpoints(path)


def _trials(sweep: Path) -> list[Path]:
    home = sweep / TRIALS
    return sorted(path for path in home.iterdir() if path.is_dir()) if home.is_dir() else []


def find_entry(path: Path) -> RunEntry:
    """The entry of a run or sweep, damaged or not, or of the ``latest`` of ``runs/<name>``.

    Raises:
        RunFolderError: it is none.
    """
    if is_sweep_folder(path):
        return RunEntry(resolve_run(path, SWEEP_CONFIG))
    return RunEntry(path if _is_listed(path) else resolve_run(path))


class _Goal:
    """The metric by which results of a run are compared, and its stop criteria."""

    def __init__(self, settings: Mapping[str, Any], section: str) -> None:
        self.section = section
        chosen = settings.get(section)
        chosen = chosen if isinstance(chosen, dict) else {}
        self.metric = str(chosen.get("metric") or RETURN)
        self.best_of = min if chosen.get("mode") == "min" else max
        window = int(number_at(settings, "report/smoothing_episodes") or 1)
        self._smoothing_episodes = window
        self.stop = _stop(settings, window)

    def value(self, row: Row) -> float | None:
        """The value of a result; None if it has none that counts yet."""
        if not counts_already(self.metric, row, self._smoothing_episodes):
            return None
        return number_at(row, self.metric)

    def best(self, values: Iterable[float | None]) -> float | None:
        """The best of these; None without any."""
        return self.best_of((value for value in values if value is not None), default=None)


def _best_score(sweep: Path, goal: _Goal) -> float | None:
    """The score of a sweep's best trial; None without any, or if the table is damaged."""
    mode = "min" if goal.best_of is min else "max"
    try:
        table = TrialTable.read(SweepFolder(sweep).trials, metric=goal.metric, mode=mode)
        best = table.best()
    except RunFolderError:
        return None
    return None if best is None else best.score


def _stop(settings: Mapping[str, Any], smoothing_episodes: int) -> StopCriteria:
    stop = settings.get("stop")
    bounds = {key: number_at(stop, key) for key in stop} if isinstance(stop, dict) else {}
    known = {key: bound for key, bound in bounds.items() if bound is not None}
    return StopCriteria(known, smoothing_episodes=smoothing_episodes)


def header_of(entry: RunEntry) -> RunHeader:
    """The facts about a run that its panel shows above the results.

    Raises:
        RunFolderError: it is a sweep, or its settings are damaged.
    """
    if entry.is_sweep:
        raise RunFolderError(f"{entry.path}: a sweep; name one of its runs")
    if not entry.settings:
        raise RunFolderError(entry.reason)
    return RunHeader(
        algorithm=str(lookup(entry.settings, "algorithm")),
        env=str(lookup(entry.settings, "env/use")),
        seed=int(number_at(entry.settings, "seed") or 0),
        folder=entry.path,
        num_env_runners=int(number_at(entry.settings, "env_runners/num_env_runners") or 0),
        stop=_stop(entry.settings, 1),
    )


def matching(words: Iterable[str | Path], *, links: bool = True) -> Iterator[Path]:
    """The runs and sweeps that paths and patterns name; a path that exists stands for itself.

    Args:
        links: whether patterns also name the runs behind links.

    Raises:
        RunFolderError: nothing matches a pattern.
    """
    for word in map(str, words):
        if os.path.lexists(word) or not glob.has_magic(word):
            yield Path(word)
            continue
        found = [path for path in map(Path, sorted(glob.glob(word))) if _is_listed(path)]
        found = [path for path in found if links or not path.is_symlink()]
        if not found:
            raise RunFolderError(f"{word}: no run or sweep matches")
        yield from found


def removable(path: Path) -> RunEntry:
    """The run or sweep in a folder, if it may be removed.

    Raises:
        RunFolderError: it is running, one of a sweep's trials, or a folder of several runs.
    """
    if path.is_symlink():
        path = path.parent / path.readlink()
    if not _is_listed(path):
        resolve_run(path, SWEEP_CONFIG if is_sweep_folder(path) else RunFolder.CONFIG)
        raise RunFolderError(f"{path}: a folder of runs; name one, or '{path}/*' for all of them")
    if path.parent.name == TRIALS and is_sweep_folder(path.parent.parent):
        raise RunFolderError(f"{path}: one of a sweep's runs; only {path.parent.parent} as a whole")
    entry = RunEntry(path)
    running = [each for each in (entry, *entry.members) if each.state == "running"]
    if running:
        raise RunFolderError(f"{running[0].path}: a process is running in this folder")
    return entry


def remove(path: Path) -> None:
    """Remove the folder of a run or sweep; ``latest`` then points at the newest remaining one.

    Raises:
        RunFolderError: a process is running in the folder. OSError: it cannot be removed.
    """
    folder = RunFolder(path)
    folder.lock()
    with closing(folder):
        remove_directory(path)
    renew_latest(path.parent)
