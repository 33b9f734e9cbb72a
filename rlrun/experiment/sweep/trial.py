"""One trial's run, step by step: the steps of run.py, taken one at a time by whoever drives.

Owns opening, advancing and closing a run whose end somebody else may decide, and taking over
another run's checkpoint. It must not know who drives (sweep_trainable.py).
"""

import shutil
import time
from contextlib import ExitStack, closing
from pathlib import Path

from rlrun.checkpoint.checkpoint import Checkpoint
from rlrun.checkpoint.checkpoint_folder import directory_name, newest_checkpoint
from rlrun.checkpoint.files import replace_text
from rlrun.config.dump import dump_yaml
from rlrun.config.schema import ExperimentConfig
from rlrun.data.results import Row
from rlrun.experiment.report.console import print_error
from rlrun.experiment.run import RunSession
from rlrun.experiment.run_folder import RunFolder, RunFolderError
from rlrun.experiment.run_log import RunLog
from rlrun.experiment.stopping import COUNTERS

_CHECKPOINT_EVERY_S = 60.0  # where the file does not say how often: what a kill may cost
_LOCK_TIMEOUT_S = 60.0  # for a process that is just closing the folder


class TrialRun:
    """A run in its folder, new or gone on with.

    Args:
        path: the run folder; missing, or one of an earlier session.
        experiment: with its seed.
        take_over: another trial's checkpoint to go on from, in place of the folder's own newest;
            the row it was taken at becomes this run's last.
    """

    def __init__(
        self, path: Path, experiment: ExperimentConfig, *, take_over: Checkpoint | None = None
    ) -> None:
        self._stack = ExitStack()
        try:
            self._open(path, experiment, take_over)
        except BaseException:
            self._stack.close()
            raise

    def _open(self, path: Path, experiment: ExperimentConfig, donor: Checkpoint | None) -> None:
        folder = self._stack.enter_context(closing(_opened(path)))
        run_log = self._stack.enter_context(RunLog(folder.log, print_error))
        if not folder.config.exists():
            replace_text(folder.config, dump_yaml(experiment))
        checkpoint = donor or newest_checkpoint(folder.checkpoints)
        self._session = RunSession(experiment, folder, checkpoint, None, "quiet")
        self._session.begin(self._stack, run_log, ())
        self._saved_at = time.monotonic()
        if self.done:
            return
        try:
            self.algorithm = self._session.build(self._stack)
            if donor is not None:
                self._session.checkpoints.forget_from(donor.iteration)
                self._session.save(self.algorithm, donor.row, must=True)
        except BaseException as error:
            self._session.note_failure(error)
            raise

    @property
    def row(self) -> Row | None:
        """The last result; None before the first."""
        return self._session.last_row

    @property
    def done(self) -> bool:
        """Whether the run has what it was asked for."""
        return self.row is not None and bool(self._session.stop.reached(self.row))

    @property
    def stop_reason(self) -> str:
        """The criteria that were reached."""
        return self._session.stop_reason()

    @property
    def share(self) -> float:
        """How much of its budget the run has used, 0 to 1; goals are not foreseen."""
        if self.row is None:
            return 0.0
        shares = [
            self.row[criterion.address] / criterion.bound
            for criterion in self._session.stop.criteria
            if criterion.address in COUNTERS and criterion.bound > 0
        ]
        return 1.0 if self.done else min(1.0, max(shares, default=0.0))

    def advance(self) -> Row:
        """One iteration; it is reported, and saved where that is due, before this returns."""
        try:
            result = self.algorithm.train()
            self._session.take(self.algorithm, result)
            overdue = time.monotonic() - self._saved_at > _CHECKPOINT_EVERY_S
            if self._session.experiment.checkpoint.every is None and overdue:
                self.save()
        except BaseException as error:
            self._session.note_failure(error)
            raise
        assert self._session.last_row is not None
        return self._session.last_row

    def save(self) -> Path | None:
        """Write a checkpoint of where the run stands; None if it never got anywhere."""
        session = self._session
        if session.last_row is not None and not self.done:
            session.save(self.algorithm, session.last_row, must=True)
            self._saved_at = time.monotonic()
        newest = session.checkpoints.newest
        return None if newest is None else session.folder.checkpoints / directory_name(newest)

    def close(self, outcome: str, reason: str) -> None:
        """End the session with a checkpoint of where it stands, and free everything."""
        with self._stack:
            session = self._session
            wanted = session.experiment.checkpoint.at_end or outcome == "interrupted"
            if hasattr(self, "algorithm") and session.last_row is not None and wanted:
                session.save(self.algorithm, session.last_row, must=True)
            session.note_end(outcome, reason)

    def abandon(self) -> None:
        """Free everything and write nothing more: the run has failed."""
        self._stack.close()


def _opened(path: Path) -> RunFolder:
    """The folder, locked; a session of an earlier process may just be closing it."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            if (path / RunFolder.CONFIG).is_file():
                return RunFolder.open(path)
            shutil.rmtree(path, ignore_errors=True)  # killed before its first file was there
            return RunFolder.create_at(path)
        except RunFolderError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
