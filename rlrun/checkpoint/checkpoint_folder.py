"""A folder of checkpoints: which ones are kept, and which is the best and the latest.

Owns the names ``000120``, ``best`` and ``latest``, and the limit on disk use. It must not know what
a checkpoint holds besides its result row.

The links are relative, so the folder can be moved. They are a convenience: on a file system without
links the newest checkpoint is found by its name.
"""

import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from rlrun.checkpoint.checkpoint import (
    MANIFEST,
    Checkpoint,
    CheckpointError,
    CheckpointVersionError,
    read_checkpoint,
    read_manifest,
    restore_checkpoint,
    write_checkpoint,
)
from rlrun.checkpoint.files import remove_directory, remove_leftovers, replace_link
from rlrun.config.loader import load_experiment
from rlrun.config.registry import algorithm_class
from rlrun.data.results import counts_already, number_at

CHECKPOINTS = "checkpoints"
"""Name of the folder in a run folder."""
BEST = "best"
LATEST = "latest"

Score = tuple[bool, float]
"""(whether the number counts already, the number, higher is better); compared in that order."""

_MOST_OF_TIME = 0.02  # fraction that checkpoints may take with `every: auto`

_log = logging.getLogger(__name__)


class CheckpointFolder:
    """Writes checkpoints and keeps the best and the newest ``keep`` of them; None keeps all."""

    def __init__(
        self, path: Path, *, keep: int | None, score: Callable[[dict[str, Any]], Score]
    ) -> None:
        self.path, self._keep, self._score = path, keep, score
        self._scores: dict[int, Score] = {}
        remove_leftovers(path)
        for iteration in iterations_in(path):
            try:
                row = read_manifest(path / directory_name(iteration))["row"]
                self._scores[iteration] = score(row)
            except CheckpointError as error:
                _log.info("%s", error)

    @property
    def best(self) -> int | None:
        """Iteration of the best checkpoint, the newest of equals; None without any."""
        if not self._scores:
            return None
        return max(self._scores, key=lambda iteration: (self._scores[iteration], iteration))

    @property
    def newest(self) -> int | None:
        """Iteration of the newest complete checkpoint; None without any."""
        return max(self._scores, default=None)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, update the links, and remove checkpoints that are not to be kept."""
        directory = self.path / directory_name(checkpoint.iteration)
        write_checkpoint(directory, checkpoint)
        self._scores[checkpoint.iteration] = self._score(checkpoint.row)
        replace_link(self.path / LATEST, directory.name)
        if self.best is not None:
            replace_link(self.path / BEST, directory_name(self.best))
        self._remove_surplus()
        return directory

    def set_aside_after(self, iteration: int) -> None:
        """Rename later checkpoints, which are damaged if a run resumes from this iteration."""
        for later in iterations_in(self.path):
            if later > iteration:
                directory = self.path / directory_name(later)
                set_aside = directory.with_name(f"{directory.name}.damaged")
                shutil.rmtree(set_aside, ignore_errors=True)
                directory.rename(set_aside)
                self._scores.pop(later, None)
                _log.info("%s is damaged and was renamed to %s", directory, set_aside.name)

    def forget_from(self, iteration: int) -> None:
        """Remove the checkpoints of this iteration and of later ones, newest first."""
        for later in sorted((i for i in self._scores if i >= iteration), reverse=True):
            self._remove(later)

    def _remove_surplus(self) -> None:
        if self._keep is None:
            return
        newest = sorted(self._scores)[-self._keep :]
        for iteration in sorted(self._scores):
            if iteration not in newest and iteration != self.best:
                self._remove(iteration)

    def _remove(self, iteration: int) -> None:
        remove_directory(self.path / directory_name(iteration))
        del self._scores[iteration]


def directory_name(iteration: int) -> str:
    """Name of an iteration's checkpoint; at least six digits, so that names sort as numbers."""
    return f"{iteration:06d}"


def iterations_in(path: Path) -> list[int]:
    """Iterations of the checkpoints in a folder, complete or not, in ascending order."""
    if not path.is_dir():
        return []
    return sorted(int(entry.name) for entry in path.iterdir() if entry.name.isdecimal())


def newest_checkpoint(path: Path, *, replay: bool = True) -> Checkpoint | None:
    """Read the newest complete checkpoint; None if the folder has no checkpoint at all.

    Damaged ones are skipped, with a warning.

    Args:
        replay: see `read_checkpoint`.

    Raises:
        CheckpointError: all are damaged, or the newest is of another format version.
    """
    return _first_whole(path, reversed(iterations_in(path)), replay=replay)


def _first_whole(
    path: Path, iterations: Iterable[int], *, replay: bool = True
) -> Checkpoint | None:
    """The first of these that can be read; warns of the damaged ones before it."""
    errors: list[CheckpointError] = []
    for iteration in iterations:
        try:
            checkpoint = read_checkpoint(path / directory_name(iteration), replay=replay)
        except CheckpointVersionError:
            raise
        except CheckpointError as error:
            errors.append(error)
        else:
            for damage in errors:
                _log.warning("%s; %s is used instead", damage, checkpoint.path.name)
            return checkpoint
    if errors:
        raise errors[0]
    return None


def algorithm_at(
    path: Path, expected: type, overrides: Sequence[str], *, address: str | None, trust: bool
) -> Any:
    """`Algorithm.from_checkpoint` for the class ``expected``."""
    checkpoint = checkpoint_at(path)
    experiment = load_experiment(checkpoint.path / "config.yaml", overrides, trust=trust)
    kind = algorithm_class(experiment.algorithm)
    if not issubclass(kind, expected):
        raise CheckpointError(
            f"{path}: a checkpoint of {kind.__name__}, not of {expected.__name__}"
        )
    algorithm = kind(experiment.begun, address=address)
    restore_checkpoint(algorithm, checkpoint)
    return algorithm


def checkpoint_at(path: Path, *, replay: bool = True) -> Checkpoint:
    """Read the checkpoint at ``path``, or the best one of the run folder at ``path``.

    Args:
        replay: see `read_checkpoint`.

    Raises:
        CheckpointError: there is none.
    """
    if os.path.isfile(path / MANIFEST):
        directory = path.parent / path.readlink() if path.is_symlink() else path
        return read_checkpoint(directory, replay=replay)
    checkpoint = best_checkpoint(path / CHECKPOINTS, replay=replay)
    if checkpoint is None:
        raise CheckpointError(f"{path}: neither a checkpoint nor a run folder with one")
    return checkpoint


def best_checkpoint(path: Path, *, replay: bool = True) -> Checkpoint | None:
    """Read the best checkpoint; the newest if none is linked as best, or the best is damaged.

    Args:
        replay: see `read_checkpoint`.
    """
    link = path / BEST
    iterations = iterations_in(path)[::-1]
    if link.is_symlink() and link.readlink().name.isdecimal():
        best = int(link.readlink().name)
        iterations.sort(key=lambda iteration: iteration != best)
    return _first_whole(path, iterations, replay=replay)


def score_by(
    metric: str, mode: str, *, smoothing_episodes: int
) -> Callable[[dict[str, Any]], Score]:
    """A function that scores a row by its ``metric`` (``a/b`` for nesting); lowest if missing."""
    sign = 1.0 if mode == "max" else -1.0

    def score(row: dict[str, Any]) -> Score:
        value = number_at(row, metric)
        if value is None:
            return (False, -math.inf)
        return (counts_already(metric, row, smoothing_episodes), sign * value)

    return score


class Pace:
    """Limits how often a state is saved: every ``every_s`` seconds, in at most 2 % of the time."""

    def __init__(self, every_s: float) -> None:
        self._every_s = self._pause_s = every_s
        self._last = perf_counter()

    def is_due(self) -> bool:
        """Whether a state may be saved now."""
        return perf_counter() - self._last >= self._pause_s

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Context in which the state is saved."""
        started = perf_counter()
        yield
        self._last = perf_counter()
        self._pause_s = max(self._every_s, (self._last - started) / _MOST_OF_TIME)
