"""IMPALA, APPO and A3C, killed and resumed: every step of every episode is learned from once.

A callback writes down what is learned from. What a session did after the checkpoint from which the
next one goes on was never done, so it is struck out.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from rlrun.algorithms.callbacks import Callbacks
from rlrun.checkpoint.checkpoint import read_checkpoint
from rlrun.data import columns as col
from rlrun.experiment.report.jsonl import read_rows

pytestmark = pytest.mark.faults

BATCH, ITERATIONS = 96, 40
FILE = """
algorithm: {algorithm}
env: CartPole-v1
seed: 5
stop: {{training_iteration: {iterations}}}
env_runners:
  num_env_runners: 2
  num_envs_per_env_runner: 2
  num_cpus_per_env_runner: 0.1
  rollout_fragment_length: 12
  max_requests_in_flight_per_env_runner: 2
model: {{hidden: [16]}}
training: {{train_batch_size: {batch}}}
callbacks: [{{use: "{module}:Ledger", path: {path}}}]
checkpoint: {{every: 3, keep: 2}}
"""


class Ledger(Callbacks):
    """Writes down episodes that ended, rows of train batches, and where a session goes on."""

    def __init__(self, path):
        self._path = Path(path)

    def _write(self, **line):
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def on_checkpoint_loaded(self, algorithm):
        self._write(goes_on_after=algorithm.progress.iteration)

    def on_episode_end(self, algorithm, episode):
        line = {"episode": episode.episode_id, "length": episode.length}
        self._write(iteration=algorithm.progress.iteration + 1, **line)

    def on_sample_end(self, algorithm, batch):
        rows = [batch[col.EPS_ID].tolist(), batch[col.T].tolist()]
        self._write(iteration=algorithm.progress.iteration + 1, rows=rows)


def read_ledger(path):
    """What counts, and how many sessions went on from a checkpoint."""
    lines, resumed = [], 0
    for line in map(json.loads, path.read_text().splitlines()):
        if "goes_on_after" in line:
            resumed += 1
            lines = [kept for kept in lines if kept["iteration"] <= line["goes_on_after"]]
        else:
            lines.append(line)
    return lines, resumed


def session(folder, *arguments):
    import_path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "rlrun", "train", *arguments, "--quiet"]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": import_path}, cwd=folder)


def wait_for_iteration(folder, iteration, process):
    deadline = time.monotonic() + 120
    while len(list(read_rows(folder / "metrics.jsonl"))) < iteration:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("algorithm", ["IMPALA", "APPO", "A3C"])
def test_every_step_is_learned_from_once(tmp_path, algorithm):
    folder, ledger = tmp_path / "run", tmp_path / "ledger.jsonl"
    words = {"algorithm": algorithm, "batch": BATCH, "iterations": ITERATIONS}
    text = FILE.format(**words, module=__name__, path=ledger)
    (tmp_path / "file.yaml").write_text(text)
    with session(tmp_path, "file.yaml", "--run-dir", str(folder)) as process:
        wait_for_iteration(folder, 5, process)
        process.kill()
    with session(tmp_path, "--resume", str(folder)) as process:
        wait_for_iteration(folder, 12, process)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    with session(tmp_path, "--resume", str(folder)) as process:
        assert process.wait(120) == 0
    lines, resumed = read_ledger(ledger)
    assert resumed == 2
    lengths = {line["episode"]: line["length"] for line in lines if "episode" in line}
    assert len(lengths) == sum("episode" in line for line in lines)  # each ended once
    running = check_episodes(lengths, folder)
    if algorithm != "A3C":  # its rows stay with the runners
        check_rows(lines, lengths | running)
    check_counters(folder, lengths, algorithm)


def check_episodes(lengths, folder):
    """Each lane's episodes follow on each other, and all steps are in one; those that still run."""
    numbers = defaultdict(list)
    for episode_id in lengths:
        numbers[episode_id >> 32].append(episode_id & (2**32 - 1))
    running = {}
    runners = read_checkpoint(folder / "checkpoints/latest").state["env_runners"]
    for index, state in runners.items():
        episodes = state["episodes"]
        for lane, number in enumerate(episodes["number"].tolist()):
            place = int(index) << 16 | lane
            assert numbers[place] == list(range(number))
            running[place << 32 | number] = int(episodes["length"][lane])
    assert sum(lengths.values()) + sum(running.values()) == BATCH * ITERATIONS
    return running


def check_rows(lines, lengths):
    """The train batches hold every step of these episodes, and each once."""
    batches = [np.array(line["rows"]) for line in lines if "rows" in line]
    rows = np.concatenate(batches, axis=1)
    expected = {(episode, t) for episode, length in lengths.items() for t in range(length)}
    assert rows.shape[1] == len(expected)
    assert set(zip(*rows.tolist(), strict=True)) == expected


def check_counters(folder, lengths, algorithm):
    rows = list(read_rows(folder / "metrics.jsonl"))
    assert [row["training_iteration"] for row in rows] == list(range(1, ITERATIONS + 1))
    assert [row["env_steps"] for row in rows] == [BATCH * (i + 1) for i in range(ITERATIONS)]
    assert rows[-1]["episodes"] == sum(row["episodes_this_iter"] for row in rows) == len(lengths)
    learned = [row["learners"]["default_policy"] for row in rows]
    assert all(of["num_agent_steps_trained"] == BATCH for of in learned)
    updates = BATCH // 24 if algorithm == "A3C" else 1  # a gradient of each fragment
    assert [row["weights_version"] for row in rows] == [updates * (i + 1) for i in range(len(rows))]
