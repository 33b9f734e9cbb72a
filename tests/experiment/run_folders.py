"""What tests read from run folders, and how they start the command that writes them."""

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from rlrun.algorithms.callbacks import Callbacks
from rlrun.algorithms.result import is_wall_clock
from rlrun.checkpoint.checkpoint import CheckpointError, read_checkpoint
from rlrun.checkpoint.checkpoint_folder import newest_checkpoint
from rlrun.data.results import addresses, lookup
from rlrun.experiment.report.sinks import read_rows
from rlrun.experiment.run import resume_experiment, run_experiment


def rows(folder):
    return list(read_rows(Path(folder) / "metrics.jsonl"))


def train(*overrides, run_dir="run", console="quiet"):
    """Train the file of `counting`."""
    return run_experiment("fake.yaml", overrides, run_dir=run_dir, console=console)


def resume(*overrides, run_dir="run"):
    return resume_experiment(run_dir, overrides, console="quiet")


def iterations(folder="run"):
    return [row["training_iteration"] for row in rows(folder)]


def timeless(folder):
    """All numbers that do not depend on the machine's speed."""
    return [
        {key: lookup(row, key) for key in addresses(row) if not is_wall_clock(key)}
        for row in rows(folder)
    ]


def meta(folder):
    return json.loads((Path(folder) / "meta.json").read_text())


def unsaved_env_steps(folder):
    """Env steps after the newest checkpoint, which a resumed run makes once more."""
    newest = None
    with suppress(CheckpointError):
        newest = newest_checkpoint(Path(folder) / "checkpoints")
    made = (rows(folder) or [{"env_steps": 0}])[-1]["env_steps"]
    return made - (0 if newest is None else newest.row["env_steps"])


def assert_equal_runs(left, right, *, but=None):
    """Two runs have equal rows, but for one key, and equal weights in the last one's checkpoint."""
    found, others = timeless(left), timeless(right)
    for row in [*found, *others] if but is not None else ():
        del row[but]
    assert found == others
    name = f"checkpoints/{found[-1]['training_iteration']:06d}"
    weights, expected = (read_checkpoint(Path(run) / name).weights for run in (left, right))
    assert weights.keys() == expected.keys()
    for key, array in weights.items():
        assert array.tobytes() == expected[key].tobytes(), key


class Command(subprocess.Popen):
    """A child process, which is killed where its block raises: a run that hangs hangs no test."""

    def __exit__(self, kind, *arguments):
        if kind is not None:
            self.kill()
        super().__exit__(kind, *arguments)


def start_rlrun(*words, **options):
    """A child process of the command that a user types."""
    return Command([sys.executable, "-m", "rlrun", *map(str, words)], **options)


class Pause(Callbacks):
    """Lasts a while after each iteration, so that a run is not over before its test disturbs it."""

    def on_train_result(self, algorithm, result):
        time.sleep(0.02)


def wait_for(condition, seconds=200):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
