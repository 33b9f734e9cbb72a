"""The folder of a sweep and the trials in it.

Owns the names of its files, ``trials.jsonl``, from which a sweep is resumed, and the ranking of
trials. It must not know how trials are run or shown.

==============  ==============================================================
sweep.yaml      the resolved experiment with its sweep, a valid experiment file
trials.jsonl    one trial per line: settings, status, score, folder
trials/0007/    a run folder like any other
best.yaml       the best settings, a file for `rlrun train`
plot.png        each setting against the score, if matplotlib is installed
meta.json       versions, git commit, argv, host, sessions and outcome
log.txt         log lines and Python warnings
.tune/          files of Ray Tune, only while the sweep runs
==============  ==============================================================
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

from rlrun.checkpoint.files import replace_text
from rlrun.data.results import number_at
from rlrun.experiment.run_folder import SWEEP_CONFIG, RunFolder, RunFolderError

_log = logging.getLogger(__name__)

Status = Literal["waiting", "running", "interrupted", "finished", "stopped", "failed"]
"""``stopped``: by the scheduler. ``interrupted``: together with the sweep, to be resumed."""

Settings = dict[str, Any]
"""Address -> value, as on the command line."""


class SweepFolder(RunFolder):
    """The paths of one sweep; created, opened and locked like a run folder."""

    CONFIG: ClassVar[str] = SWEEP_CONFIG
    RESUME: ClassVar[str] = "rlrun sweep --resume"
    KILLED: ClassVar[str] = "its process was killed"
    SUFFIX: ClassVar[str] = "sweep-s"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.trials = self.home / "trials.jsonl"
        self.best = self.home / "best.yaml"
        self.plot = self.home / "plot.png"
        self.tune = self.home / ".tune"


def trial_name(number: int) -> str:
    """A trial's folder below the sweep's, with zeros so that names sort as numbers."""
    return f"trials/{number:04d}"


@dataclass
class Trial:
    """One run of a sweep."""

    trial: int
    """Its number, counted from 1."""
    point: int
    """Number of its settings, counted from 1; the trials of a point differ in their seed."""
    seed: int
    settings: Settings
    status: Status = "waiting"
    reason: str | None = None
    """Reason of its end."""
    score: float | None = None
    """The sweep's metric in the last result."""
    metric: str | None = None
    """The metric that the score is of."""
    training_iteration: int | None = None
    env_steps: int | None = None
    time_s: float | None = None
    share: float = 0.0
    """Used share of its budget, 0 to 1."""
    log: str | None = None
    """File with the traceback of a failure, below the sweep's folder."""
    folder: str = field(default="")
    """Its run folder, below the sweep's."""

    def __post_init__(self) -> None:
        self.folder = self.folder or trial_name(self.trial)

    @property
    def ended(self) -> bool:
        """Whether it finished or was stopped; a resumed sweep runs all other trials again."""
        return self.status in ("finished", "stopped")

    @property
    def over(self) -> bool:
        """Whether it has ended or failed."""
        return self.ended or self.status == "failed"

    def take(self, result: Mapping[str, Any], metric: str | None) -> None:
        """Update from a result."""
        score = None if metric is None else number_at(result, metric)
        if score is not None:
            self.score, self.metric = score, metric
        for key in ("training_iteration", "env_steps"):
            value = number_at(result, key)
            if value is not None:
                setattr(self, key, int(value))
        self.time_s = number_at(result, "time_s") or self.time_s


class TrialTable:
    """All trials of a sweep, and their file."""

    def __init__(
        self, path: Path, trials: Iterable[Trial], *, metric: str | None, mode: str
    ) -> None:
        self.trials, self.metric, self._path = list(trials), metric, path
        self._is_behind = False
        self._sign = 1.0 if mode == "max" else -1.0

    @classmethod
    def read(cls, path: Path, *, metric: str | None, mode: str) -> "TrialTable":
        """Read the trials of a sweep that is resumed.

        Raises:
            RunFolderError: the file cannot be read, or a line is missing or damaged.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RunFolderError(f"{path}: cannot be read: {error}") from error
        trials = [cls._trial(line, number, path) for number, line in enumerate(lines, 1)]
        return cls(path, trials, metric=metric, mode=mode)

    @staticmethod
    def _trial(line: str, number: int, path: Path) -> Trial:
        known = {item.name for item in fields(Trial)}
        with suppress(AttributeError, TypeError, ValueError):  # of a damaged line
            trial = Trial(**{k: v for k, v in json.loads(line).items() if k in known})
            has_form = isinstance(trial.settings, dict) and isinstance(trial.folder, str)
            is_next = trial.trial == number and trial.point >= 1
            if has_form and is_next and isfinite(trial.score or 0.0):
                return trial
        what = f"line {number} is not that of trial {number}"
        raise RunFolderError(f"{path}: cannot be read: {what}; restore it, or start a new sweep")

    def save(self) -> None:
        """Write all trials to the file."""
        lines = (json.dumps(asdict(trial), allow_nan=False) + "\n" for trial in self.trials)
        replace_text(self._path, "".join(lines))

    def save_if_possible(self) -> None:
        """Write all trials to the file; if the disk is full, a later call does."""
        try:
            self.save()
        except OSError as error:
            if not self._is_behind:
                text = f"{error.filename}: {error.strerror}"
                _log.warning("%s; the sweep continues, and tries again", text)
            self._is_behind = True
        else:
            self._is_behind = False

    def __getitem__(self, number: int) -> Trial:
        return self.trials[number - 1]

    def add(self, point: int, settings: Mapping[str, Any], seeds: Sequence[int]) -> list[Trial]:
        """Add the trials of one point, one for each seed."""
        first = len(self.trials) + 1
        added = [
            Trial(trial=first + i, point=point, seed=seed, settings=dict(settings))
            for i, seed in enumerate(seeds)
        ]
        self.trials += added
        return added

    def renew(self, trials: Iterable[Trial]) -> None:
        """Let trials start anew, as those whose folders were removed."""
        for old in trials:
            new = Trial(trial=old.trial, point=old.point, seed=old.seed, settings=old.settings)
            self.trials[old.trial - 1] = new

    @property
    def num_points(self) -> int:
        """Number of points so far."""
        return max((trial.point for trial in self.trials), default=0)

    @property
    def is_group(self) -> bool:
        """Whether the trials differ only in their seed; False without trials."""
        return bool(self.trials) and not any(trial.settings for trial in self.trials)

    def of_point(self, point: int) -> list[Trial]:
        """The trials of one point."""
        return [trial for trial in self.trials if trial.point == point]

    def counts(self) -> dict[Status, int]:
        """Number of trials by status, without zeros."""
        return Counter(trial.status for trial in self.trials)

    def score_of_point(self, point: int) -> float | None:
        """Mean score over a point's seeds; None until each trial has a score or has failed."""
        scores = [trial.score for trial in self.of_point(point) if trial.status != "failed"]
        known = [score for score in scores if score is not None]
        return fmean(known) if known and len(known) == len(scores) else None

    def ranked(self) -> list[Trial]:
        """All trials, best first.

        Trials that the scheduler stopped come last but for failed ones: they have the score of an
        unfinished run, which by a metric such as env_steps could even be the best.
        """
        return sorted(self.trials, key=self._rank)

    def best(self) -> Trial | None:
        """The best trial of the best point; None without scores or a metric."""
        if self.metric is None:
            return None
        points = {
            point: self._sign * score
            for point in sorted({trial.point for trial in self.trials})
            if (score := self.score_of_point(point)) is not None
        }
        if not points:
            return None
        finished = {trial.point for trial in self.trials if trial.status == "finished"}
        best = max(
            [point for point in points if point in finished] or points, key=points.__getitem__
        )
        scored = [trial for trial in self.of_point(best) if trial.score is not None]
        return min(scored, key=self._rank)

    def _rank(self, trial: Trial) -> tuple[bool, bool, float, int]:
        score = float("-inf") if trial.score is None else self._sign * trial.score
        return (trial.status == "failed", trial.status == "stopped", -score, trial.trial)
