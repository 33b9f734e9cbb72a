"""Ray Tune's face of a trial: a Trainable that drives a TrialRun.

Owns the translation between Tune's calls and the run's. It must not know how a run goes
(sweep_trial.py) nor which trials there are.

A process serves one trial after another. A run is opened when its first step is asked for, and
closed as soon as its trial ends or is put aside, so that its folder is whole and unlocked.
"""

import json
import shutil
import traceback
from pathlib import Path
from typing import Any

from ray import tune

from rlrun.checkpoint.checkpoint import Checkpoint, read_checkpoint
from rlrun.config import registry
from rlrun.data.results import Row, addresses, lookup, number_at
from rlrun.experiment.run_folder import RunFolder
from rlrun.experiment.sweep.folder import SweepFolder, trial_name
from rlrun.experiment.sweep.points import PointBuilder, plain_settings
from rlrun.experiment.sweep.trial import TrialRun

IDENTITY = "_trial"
"""Key of the config that says which trial this is; every other key is a setting's address."""

REACHED = "_reached"
"""Key of a result: why the run is done. A trial that Tune stops never has it."""

SHARE = "_share"
"""Key of a result: how much of its budget the run has used."""

_CHECKPOINT = "checkpoint"
_OWNER = "owner.json"


class MetricError(Exception):
    """The sweep's metric is no key of the results that this algorithm or its callbacks make."""


class SweepTrial(tune.Trainable):
    """One trial of a sweep.

    Its config holds settings by address and, under IDENTITY:

    ===========  ==========================================================
    sweep        the sweep's folder
    trial, seed  numbers
    metric       result key that Tune waits for, or None
    bundles      Ray resources: of this process, then of each env runner
    envs         environments of `register_env` that the experiment uses
    ===========  ==========================================================
    """

    _run: TrialRun | None = None
    _take_over: Checkpoint | None = None

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        """The trial's bundles as a placement group, which is had whole or not at all."""
        return tune.PlacementGroupFactory(config[IDENTITY]["bundles"])

    def setup(self, config: dict[str, Any]) -> None:
        """Note who this is; the run is opened by the first step."""
        self._identity = config[IDENTITY]
        self._settings = {key: value for key, value in config.items() if key != IDENTITY}
        self._take_over = None

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial, or the same one with other settings."""
        self.finish("interrupted", "put aside by the sweep")
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Iterate until there is a number to compare by; Tune's schedulers cannot bear null."""
        try:
            run = self._opened()
            while not run.done:
                row = run.advance()
                metric = self._identity["metric"]
                if metric is None or _number(row, metric) is not None:
                    break
            told = self._told(run)
            if run.done:
                self.finish("finished", run.stop_reason)
            return told
        except BaseException as error:
            self._fail(error)
            raise

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Copy the run's newest checkpoint to where Tune and other trials find it."""
        source = self._opened().save()
        if source is not None:
            shutil.copytree(source, Path(checkpoint_dir) / _CHECKPOINT)
        (Path(checkpoint_dir) / _OWNER).write_text(json.dumps(self._identity["trial"]))

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on from a checkpoint; a trial's own needs nothing, its folder ends with it."""
        owner = json.loads((Path(checkpoint) / _OWNER).read_text())
        if owner != self._identity["trial"]:
            self.finish("interrupted", f"takes over from trial {owner}")
            self._take_over = read_checkpoint(Path(checkpoint) / _CHECKPOINT)

    def finish(self, outcome: str, reason: str) -> None:
        """Close the run, if one is open, with a checkpoint and the outcome in its meta.json."""
        run, self._run = self._run, None
        if run is not None:
            run.close(outcome, reason)

    def cleanup(self) -> None:
        """The process ends: with a trial still open that is an interruption."""
        self.finish("interrupted", "with the sweep")

    def _opened(self) -> TrialRun:
        if self._run is None:
            registry.ENVS.update(self._identity["envs"])
            folder = SweepFolder(Path(self._identity["sweep"]))
            text = folder.config.read_text(encoding="utf-8")
            builder = PointBuilder(text, str(folder.config))
            experiment = builder.build(plain_settings(self._settings), self._identity["seed"])
            self._run = TrialRun(self._path(), experiment, take_over=self._take_over)
            self._take_over = None
        return self._run

    def _path(self) -> Path:
        return Path(self._identity["sweep"]) / trial_name(self._identity["trial"])

    def _told(self, run: TrialRun) -> dict[str, Any]:
        """The numbers of the last result by address, and what Tune and the driver need besides."""
        row: Row = run.row or {}
        told = {key: number_at(row, key) for key in addresses(row)}
        whole = {key: lookup(row, key) for key in ("training_iteration", "env_steps")}
        numbers = {key: value for key, value in told.items() if value is not None}
        reached = {REACHED: run.stop_reason} if run.done else {}
        return {**numbers, **whole, **reached, SHARE: run.share, "done": run.done}

    def _fail(self, error: BaseException) -> None:
        """Leave the traceback in the trial's log, where the run itself has not done so already."""
        if self._run is not None:
            self._run.abandon()
            self._run = None
            return
        log = RunFolder(self._path()).log
        if not log.exists():
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")


def _number(row: Row, metric: str) -> float | None:
    """The metric's number, None where there is none yet."""
    try:
        lookup(row, metric)
    except KeyError:
        hint = registry.suggestion(metric, addresses(row))
        raise MetricError(f"sweep.metric: no result has the key {metric}{hint}") from None
    return number_at(row, metric)
