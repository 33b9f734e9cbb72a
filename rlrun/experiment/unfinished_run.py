"""Which runs and sweeps are unfinished, for jobs that a scheduler starts again, and to be resumed.

Owns when a run folder counts as one of an experiment (it is unfinished, not in use, and its whole
resolved configuration is the same), and when there is nothing to resume. It must not know how a
run is resumed.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from rlrun.checkpoint.checkpoint import Checkpoint
from rlrun.checkpoint.initial_weights import with_links_followed
from rlrun.config.dump import dump_yaml
from rlrun.config.layers import read_file
from rlrun.config.loader import load
from rlrun.config.problems import ConfigError
from rlrun.config.schema import ExperimentConfig
from rlrun.config.trust import code_of
from rlrun.config.yaml_tree import parse_yaml
from rlrun.experiment.run_folder import (
    RUNS,
    RunFolder,
    RunFolderError,
    RunInUseError,
    in_shell,
    is_in_use,
)

Folder = TypeVar("Folder", bound=RunFolder)


def unfinished_run(
    kind: type[Folder], experiment: ExperimentConfig, run_dir: Path | str | None
) -> Folder | None:
    """The run or sweep to go on with instead of starting a new one, locked: the newest that fits.

    Raises:
        RunFolderError: ``run_dir`` holds a run of another configuration, or is in use.
    """
    if run_dir is not None:
        path = Path(run_dir)
        if not os.path.isfile(kind(path).config):
            return None
        if _is_run_of(kind(path), experiment):
            return kind.open(path)
        raise RunFolderError(
            f"{path}: a run of another configuration; `{kind.RESUME} {in_shell(path)}` "
            "resumes it, with KEY=VALUE for settings that may change"
        )
    home = Path(RUNS) / experiment.name
    for path in sorted(home.iterdir(), reverse=True) if home.is_dir() else ():
        folder = kind(path)
        if path.is_symlink() or not folder.config.is_file() or is_in_use(path):
            continue
        if not folder.is_finished() and _is_run_of(folder, experiment):
            with suppress(RunInUseError):  # another job was faster
                return kind.open(path)
    return None


def require_work(
    folder: RunFolder, experiment: ExperimentConfig, checkpoint: Checkpoint | None, reached: str
) -> None:
    """Check that a resumed run has something left to train, or that no settings were changed.

    Args:
        experiment: the run's experiment, with changes of the command line.
        reached: the criteria of its stop that the newest checkpoint has reached; may be empty.

    Raises:
        RunFolderError: it has finished without a checkpoint, or nothing would be trained in a new
            folder or with the changed settings, or `initial_weights` was changed.
    """
    if checkpoint is None and folder.is_finished():
        raise RunFolderError(
            f"{folder.path}: the run has finished without a checkpoint to continue from; "
            f"`rlrun rerun {in_shell(folder.path)}` trains it again"
        )
    if reached and folder.is_new:
        raise RunFolderError(f"the checkpoint has reached its stop ({reached}); change it, too")
    present = load(folder.config, trust=True).experiment
    if checkpoint is not None and present.initial_weights != experiment.initial_weights:
        raise RunFolderError(f"{folder.path}: the run has begun; initial_weights is for new runs")
    if reached and present.model_copy(update={"stop": experiment.stop}) != experiment:
        raise RunFolderError(
            f"{folder.path}: the run has finished ({reached}) and would not train with the other "
            "settings; change its stop, too"
        )


def _is_run_of(folder: RunFolder, experiment: ExperimentConfig) -> bool:
    """Whether the run or sweep has this configuration.

    Its seed is not compared if the experiment has none, which means any.
    """
    text = dump_yaml(experiment)
    try:
        # Other code than the user's own file names is not imported.
        if code_of(read_file(folder.config).plain()) != code_of(parse_yaml(text, "").plain()):
            return False
        own = load(folder.config, trust=True).experiment
    except ConfigError:  # of another version of rlrun, or of code that is no longer there
        return False
    seed = own.seed if experiment.seed is None else experiment.seed
    began = with_links_followed(experiment).initial_weights
    if own.initial_weights is not None and began != experiment.initial_weights:
        began = own.initial_weights  # a link, such as `latest`, led there when the run began
    wanted = experiment.model_copy(update={"seed": seed, "initial_weights": began})
    return _comparable(own) == _comparable(wanted)


def _comparable(experiment: ExperimentConfig) -> str:
    """The experiment as text: in Python ``true`` would equal 1, and a tuple no list."""
    return json.dumps(parse_yaml(dump_yaml(experiment), "").plain(), sort_keys=True)
