"""The trials of a sweep: what each one tries, where it stands, and which is the best.

Owns ``trials.jsonl``, the one file that a sweep is resumed from, and the ranking. It must not know
who runs the trials (sweep_tune.py) nor how they are shown.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rlrun.checkpoint.files import replace_text
from rlrun.data.results import number_at
from rlrun.experiment.sweep.folder import trial_name

Status = Literal["waiting", "running", "interrupted", "finished", "stopped", "failed"]
"""``stopped`` is by the scheduler; ``interrupted`` is with the sweep, which can go on."""

ENDED: tuple[Status, ...] = ("finished", "stopped")
"""What a resumed sweep does not run again."""


@dataclass
class Trial:
    """One run of a sweep."""

    trial: int
    """Its number, counted from 1."""
    point: int
    """Number of its settings, counted from 1; trials of one point differ in their seed."""
    seed: int
    settings: dict[str, Any]
    """Address -> value, as on the command line."""
    status: Status = "waiting"
    reason: str | None = None
    """Why it ended."""
    score: float | None = None
    """The sweep's metric in the last result."""
    training_iteration: int | None = None
    env_steps: int | None = None
    time_s: float | None = None
    share: float = 0.0
    """How much of its budget is used, 0 to 1."""
    log: str | None = None
    """Where the traceback of one that failed is, below the sweep's folder."""
    folder: str = field(default="")
    """Its run folder, below the sweep's."""

    def __post_init__(self) -> None:
        self.folder = self.folder or trial_name(self.trial)

    @property
    def ended(self) -> bool:
        """Whether it needs no more work, unlike one that failed or was interrupted."""
        return self.status in ENDED

    def take(self, result: Mapping[str, Any], metric: str | None) -> None:
        """Take over the numbers of a result."""
        score = None if metric is None else number_at(result, metric)
        self.score = self.score if score is None else score
        for key in ("training_iteration", "env_steps"):
            value = number_at(result, key)
            if value is not None:
                setattr(self, key, int(value))
        self.time_s = number_at(result, "time_s") or self.time_s


class TrialBook:
    """All trials of a sweep, and the file that holds them."""

    def __init__(
        self, path: Path, trials: Iterable[Trial], *, metric: str | None, mode: str
    ) -> None:
        self.trials = list(trials)
        self.metric = metric
        self._path = path
        self._sign = 1.0 if mode == "max" else -1.0

    @classmethod
    def read(cls, path: Path, *, metric: str | None, mode: str) -> "TrialBook":
        """The book of a sweep that is resumed."""
        known = {item.name for item in fields(Trial)}
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        trials = [Trial(**{k: v for k, v in row.items() if k in known}) for row in rows]
        return cls(path, trials, metric=metric, mode=mode)

    def save(self) -> None:
        """Write all trials; a reader sees the old file or the new one."""
        lines = (json.dumps(asdict(trial), allow_nan=False) + "\n" for trial in self.trials)
        replace_text(self._path, "".join(lines))

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

    @property
    def num_points(self) -> int:
        """Points so far."""
        return max((trial.point for trial in self.trials), default=0)

    def of_point(self, point: int) -> list[Trial]:
        """The trials of one point."""
        return [trial for trial in self.trials if trial.point == point]

    def counts(self) -> dict[Status, int]:
        """How many trials have each status that occurs."""
        found: dict[Status, int] = {}
        for trial in self.trials:
            found[trial.status] = found.get(trial.status, 0) + 1
        return found

    def score_of_point(self, point: int) -> float | None:
        """Mean score over the seeds of a point; None until each has one or has failed."""
        scores = [trial.score for trial in self.of_point(point) if trial.status != "failed"]
        known = [score for score in scores if score is not None]
        return fmean(known) if known and len(known) == len(scores) else None

    def ranked(self) -> list[Trial]:
        """All trials, best first.

        Trials that the scheduler stopped come after those it let go on, whatever their score: it
        is that of an unfinished run, and by a metric such as env_steps it would even be the best.
        """
        return sorted(self.trials, key=self._rank)

    def best(self) -> Trial | None:
        """The best trial of the best point; None where nothing can be compared."""
        if self.metric is None:
            return None
        points = {
            point: score
            for point in {trial.point for trial in self.trials}
            if (score := self.score_of_point(point)) is not None
        }
        if not points:
            return None
        unstopped = {
            point: score
            for point, score in points.items()
            if any(trial.status == "finished" for trial in self.of_point(point))
        }
        points = unstopped or points
        best = max(sorted(points), key=lambda point: self._sign * points[point])
        scored = [trial for trial in self.of_point(best) if trial.score is not None]
        return min(scored, key=self._rank)

    def _rank(self, trial: Trial) -> tuple[bool, bool, float, int]:
        score = float("-inf") if trial.score is None else self._sign * trial.score
        return (trial.status == "failed", trial.status == "stopped", -score, trial.trial)
