"""RunCheckpoints: when a run's state is saved, and where, if its folder does not take it.

Owns the pace of checkpoints, and the last state held in memory, which is written if the run fails.
Must not know how a run iterates or reports.
"""

import copy
import logging
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.checkpoint.checkpoint import Checkpoint, CheckpointWriteError, take_checkpoint
from rlrun.checkpoint.checkpoint_folder import CheckpointFolder, Pace, directory_name, score_by
from rlrun.config.schema import ExperimentConfig
from rlrun.experiment.run_folder import FolderLostError, RunFolder

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm

_log = logging.getLogger(__name__)

_EVERY_S = 60.0  # with `checkpoint.every: auto`


class RunCheckpoints:
    """The checkpoints of a run in its folder.

    Args:
        config_yaml: the resolved experiment, a copy of which each checkpoint has.
        warn: called with a name and a text when a checkpoint cannot be written.

    Attributes:
        folder: the run folder; another one after `rescue`, if that had to make one.
        files: the checkpoints in it.
    """

    def __init__(
        self,
        experiment: ExperimentConfig,
        folder: RunFolder,
        config_yaml: str,
        warn: Callable[[str, str], None],
    ) -> None:
        self._experiment, self._config_yaml, self._warn = experiment, config_yaml, warn
        self.folder, self.files = folder, self._files_in(folder)
        self._every = experiment.checkpoint.every
        self._writing, self._holding = Pace(_EVERY_S), Pace(0.0)
        self._held: Checkpoint | None = None
        """The state after an iteration since the newest checkpoint, for a run that fails."""
        self._refused = False
        """Whether the run folder has refused that state."""
        # With replay buffers in it, the state would take twice the memory.
        self._may_hold = self._every is not None and not experiment.replay.store_in_checkpoints

    def _files_in(self, folder: RunFolder) -> CheckpointFolder:
        settings = self._experiment.checkpoint
        smoothing = self._experiment.report.smoothing_episodes
        score = score_by(settings.metric, settings.mode, smoothing_episodes=smoothing)
        return CheckpointFolder(folder.checkpoints, keep=settings.keep, score=score)

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint."""
        return self._path(self.files.newest)

    @property
    def best(self) -> Path | None:
        """The best checkpoint."""
        return self._path(self.files.best)

    def _path(self, iteration: int | None) -> Path | None:
        return None if iteration is None else self.folder.checkpoints / directory_name(iteration)

    def end_iteration(self, algorithm: "Algorithm", result: dict[str, Any]) -> Path | None:
        """Save the state, or hold it in memory, if that is due; returns what `save` does."""
        if self._is_due(result["training_iteration"]) or not self.folder.is_there():
            with self._writing.timed():
                return self.save(algorithm, result)
        if self._may_hold and self._holding.is_due():
            with self._holding.timed(), suppress(CheckpointWriteError):
                self._held = copy.deepcopy(take_checkpoint(algorithm, result, self._config_yaml))
        return None

    def _is_due(self, iteration: int) -> bool:
        if self._every == "auto":
            return self._writing.is_due()
        return self._every is not None and iteration % self._every == 0

    def save(
        self, algorithm: "Algorithm", result: dict[str, Any], *, must: bool = False
    ) -> Path | None:
        """Write a checkpoint unless it exists; returns the one written, if any.

        Raises:
            CheckpointWriteError: it cannot be written, and ``must`` be, or later tries would fail,
                too. Otherwise, as where the disk is full, there is only a warning.
        """
        is_there = self.folder.is_there()
        if is_there and self.files.newest == result["training_iteration"]:
            return None
        state: Checkpoint | None = None
        try:
            state = take_checkpoint(algorithm, result, self._config_yaml)
            if not is_there:
                raise FolderLostError(f"{self.folder.path}: the run folder has disappeared")
            path = self.files.save(state)
        except CheckpointWriteError as error:
            if must or error.is_lasting:
                if state is not None:
                    self._held, self._refused = state, True
                raise
            self._warn("checkpoints", str(error))
            return None
        _log.info("checkpoint %s after %s env steps", path.name, result["env_steps"])
        return path

    def rescue(self, metrics: Callable[[], bytes]) -> None:
        """Write the state held in memory, after a failure that leaves the algorithm's undefined.

        If the run folder does not take it, a new one does, beside it or with the temporary files.

        Args:
            metrics: returns the content of `metrics.jsonl`.
        """
        held, newest = self._held, self.files.newest
        takes_it = not self._refused and self.folder.is_there()
        if held is None or (takes_it and newest is not None and newest >= held.iteration):
            return
        try:
            if takes_it:
                self.files.save(held)
                return
        except CheckpointWriteError as error:
            _log.warning("%s", error)
        for home in (self.folder.home.parent, Path(tempfile.gettempdir())):
            try:
                self._move(home, held, metrics())
                return
            except (OSError, CheckpointWriteError) as error:
                _log.info("%s: %s", home, error)

    def _move(self, home: Path, state: Checkpoint, metrics: bytes) -> None:
        """Make a folder of this run in ``home`` to resume from, with the state as checkpoint."""
        folder = self.folder.duplicate(home, self._config_yaml, metrics)
        files = self._files_in(folder)
        try:
            files.save(state)
        except CheckpointWriteError:
            folder.discard()
            raise
        self.folder, self.files = folder, files
