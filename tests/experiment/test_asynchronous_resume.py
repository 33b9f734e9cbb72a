"""IMPALA, APPO and A3C, killed and resumed: every step of every episode is learned from once.

A callback writes down the learned rows. The lines of a session after the checkpoint from which the
next session continues are dropped.
"""

import json
import signal
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from run_folders import rows, start_rlrun, unsaved_env_steps, wait_for

from rlrun.algorithms.callbacks import Callbacks
from rlrun.checkpoint.checkpoint import read_checkpoint
from rlrun.data import columns as col
from rlrun.experiment.run import resume_experiment

pytestmark = pytest.mark.faults

BATCH, ITERATIONS, INTERRUPTED = 96, 40, 35
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
callbacks: [{{use: "{module}:{ledger}", path: {path}}}]
checkpoint: {{every: 3, keep: 2}}
"""


class Episodes(Callbacks):
    """Writes down ended episodes, and the iteration of a resume; interrupts the run once."""

    def __init__(self, path):
        self._path = Path(path)

    def _write(self, **line):
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def on_checkpoint_loaded(self, algorithm):
        self._write(resumed_at=algorithm.progress.iteration)

    def on_train_result(self, algorithm, result):
        if algorithm.progress.iteration == INTERRUPTED:
            signal.raise_signal(signal.SIGINT)

    def on_episode_end(self, algorithm, episode):
        line = {"episode": episode.episode_id, "length": episode.length}
        self._write(iteration=algorithm.progress.iteration + 1, **line)


class Ledger(Episodes):
    """Writes down the rows of train batches, too."""

    def on_learn_on_batch(self, algorithm, policy_id, batch):
        pairs = [batch[col.EPS_ID].tolist(), batch[col.T].tolist()]
        self._write(iteration=algorithm.progress.iteration + 1, rows=pairs)


def read_ledger(path):
    """The lines that count, and the number of resumed sessions."""
    lines, resumed = [], 0
    for line in map(json.loads, path.read_text().splitlines()):
        if "resumed_at" in line:
            resumed += 1
            lines = [kept for kept in lines if kept["iteration"] <= line["resumed_at"]]
        else:
            lines.append(line)
    return lines, resumed


@pytest.mark.parametrize("algorithm", ["IMPALA", "APPO", "A3C"])
def test_every_step_is_learned_from_once(shared_actors, tmp_path, record_fault, algorithm):
    """A run is killed, goes on in this process, is interrupted, and goes on to its end."""
    folder, ledger = tmp_path / "run", tmp_path / "ledger.jsonl"
    numbers = {"batch": BATCH, "iterations": ITERATIONS}
    kind = "Episodes" if algorithm == "A3C" else "Ledger"  # A3C's rows stay with the runners
    names = {"algorithm": algorithm, "module": __name__, "ledger": kind, "path": ledger}
    (tmp_path / "file.yaml").write_text(FILE.format(**names, **numbers))
    words = ["file.yaml", "--run-dir", folder, "--quiet"]
    with start_rlrun("train", *words, cwd=tmp_path) as process:
        wait_for(lambda: process.poll() is not None or len(rows(folder)) >= 5)
        process.kill()
    assert process.wait() == -signal.SIGKILL
    repeated = [unsaved_env_steps(folder)]
    assert resume_experiment(folder, console="quiet").end == "interrupted"
    repeated.append(unsaved_env_steps(folder))
    assert resume_experiment(folder, console="quiet").end == "finished"
    lines, resumed = read_ledger(ledger)
    assert resumed == 2
    lengths = {line["episode"]: line["length"] for line in lines if "episode" in line}
    assert len(lengths) == sum("episode" in line for line in lines)  # each ended once
    running = check_episodes(lengths, folder)
    if algorithm != "A3C":
        check_rows(lines, lengths | running)
    check_counters(folder, lengths, algorithm)
    record_fault(lost=[0], repeated=repeated)


def check_episodes(lengths, folder):
    """Episodes of each sub-environment are numbered without gaps; returns the unfinished ones."""
    numbers = defaultdict(list)
    for episode_id in lengths:
        numbers[episode_id >> 32].append(episode_id & (2**32 - 1))
    running = {}
    runners = read_checkpoint(folder / "checkpoints/latest").state["env_runners"]
    for index, state in runners.items():
        episodes = state["episodes"]
        for env_index, number in enumerate(episodes["number"].tolist()):
            place = int(index) << 16 | env_index
            assert numbers[place] == list(range(number))
            running[place << 32 | number] = int(episodes["length"][env_index])
    assert sum(lengths.values()) + sum(running.values()) == BATCH * ITERATIONS
    return running


def check_rows(lines, lengths):
    """The train batches hold every step of these episodes, and each once."""
    batches = [np.array(line["rows"]) for line in lines if "rows" in line]
    learned = np.concatenate(batches, axis=1)
    expected = {(episode, t) for episode, length in lengths.items() for t in range(length)}
    assert learned.shape[1] == len(expected)
    assert set(zip(*learned.tolist(), strict=True)) == expected


def check_counters(folder, lengths, algorithm):
    found = rows(folder)
    assert [row["training_iteration"] for row in found] == list(range(1, ITERATIONS + 1))
    assert [row["env_steps"] for row in found] == [BATCH * (i + 1) for i in range(ITERATIONS)]
    assert found[-1]["episodes"] == sum(row["episodes_this_iter"] for row in found) == len(lengths)
    learned = [row["learners"]["default_policy"] for row in found]
    assert all(of["num_agent_steps_trained"] == BATCH for of in learned)
    updates = BATCH // 24 if algorithm == "A3C" else 1  # a gradient of each fragment
    assert [row["weights_version"] for row in found] == [
        updates * (i + 1) for i in range(len(found))
    ]
