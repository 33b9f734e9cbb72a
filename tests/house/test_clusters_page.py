"""docs/clusters.md: its scripts take a run through time limits, preemption and kills to its end."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pages import blocks, page
from source_tree import ROOT

SLURM, MACHINE = blocks(page("clusters.md"), "bash")

FILE = """
algorithm: "counting_algorithm:CountingAlgorithm"
env: CartPole-v1
seed: 3
stop: {training_iteration: 40}
training: {train_batch_size: 100, pause_s: 0.05}
checkpoint: {every: 1}
"""


@pytest.fixture
def start(tmp_path):
    """Start a script where `rlrun` and a scheduler's commands are found; they note their calls."""
    (tmp_path / "my.yaml").write_text(FILE)
    commands = {
        "rlrun": f'exec {sys.executable} -m rlrun "$@"',
        "srun": 'exec "$@"',
        "scontrol": 'echo "$@" >> called',
        "shutdown": 'echo "$@" >> called',
    }
    for name, text in commands.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "17",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    }

    def start(script):
        (tmp_path / "script").write_text(script)
        return subprocess.Popen(["bash", "script"], cwd=tmp_path, env=environment, process_group=0)

    return start


@pytest.mark.faults
@pytest.mark.parametrize(
    ("script", "number", "calls"),
    [
        (SLURM, signal.SIGUSR1, ["requeue 17"] * 2),
        (MACHINE, signal.SIGTERM, ["-h now"]),
        (MACHINE, signal.SIGKILL, ["-h now"]),
    ],
    ids=["time limit", "preempted", "killed"],
)
def test_a_run_that_is_ended_twice_is_finished_by_the_third_start(
    start, tmp_path, script, number, calls
):
    """The signal goes to the step's processes, as a scheduler sends it, not to the script."""

    def rows():
        found = [
            *tmp_path.glob("runs/17/metrics.jsonl"),
            *tmp_path.glob("runs/my/2*/metrics.jsonl"),
        ]
        assert len(found) < 2
        return found[0].read_text().splitlines() if found else []

    for ended in (True, True, False):
        enough, job = len(rows()) + 5, start(script)
        if ended:
            while len(rows()) < enough:
                assert job.poll() is None
                time.sleep(0.01)
            if number == signal.SIGKILL:
                os.killpg(job.pid, number)
            else:
                (step,) = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
                os.kill(int(step), number)
        code = job.wait(60)
    assert code == 0
    assert [json.loads(row)["training_iteration"] for row in rows()] == [*range(1, 41)]
    assert (tmp_path / "called").read_text().splitlines() == calls
