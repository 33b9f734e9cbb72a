"""The sweep's folder: what all trials have in common; each trial is a run folder below it.

Owns names. It must not know how a sweep goes, nor what stands in the files.

==============  ==============================================================
sweep.yaml      the resolved experiment with its sweep, itself a valid file
trials.jsonl    one trial a line: settings, status, score, folder
trials/0007/    an ordinary run folder
best.yaml       the best setting, a file that `rlrun train` takes
plot.png        each setting against the score, where matplotlib is installed
meta.json       versions, git commit, argv, host, sessions and outcome
log.txt         what was logged
.tune/          what Ray Tune keeps for itself while the sweep runs
==============  ==============================================================
"""

from pathlib import Path
from typing import ClassVar

from rlrun.experiment.run_folder import SWEEP_CONFIG, RunFolder


class SweepFolder(RunFolder):
    """Paths of one sweep; created, opened and locked like a run folder."""

    CONFIG: ClassVar[str] = SWEEP_CONFIG
    RESUME: ClassVar[str] = "rlrun sweep --resume"
    SUFFIX: ClassVar[str] = "sweep-s"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.trials = path / "trials.jsonl"
        self.best = path / "best.yaml"
        self.plot = path / "plot.png"
        self.tune = path / ".tune"


def trial_name(number: int) -> str:
    """A trial's folder below the sweep's; digits so that names sort as numbers do."""
    return f"trials/{number:04d}"
