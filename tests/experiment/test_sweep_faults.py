"""Sweeps that are killed or interrupted go on; clusters of several nodes take them.

Everything here runs the command that a user types.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlrun.algorithms.result import is_wall_clock
from rlrun.data.results import addresses, lookup
from rlrun.experiment.report.jsonl import read_rows

pytestmark = pytest.mark.faults

FILE = """
algorithm: PPO
env: CartPole-v1
seed: 5
stop: {training_iteration: 40}
env_runners: {num_envs_per_env_runner: 4}
model: {hidden: [8]}
training: {train_batch_size: 256, minibatch_size: 64, num_epochs: 4}
checkpoint: {every: 2}
sweep: {space: {training.lr: {loguniform: [1e-4, 1e-2]}}, trials: 4}
"""


def command(*words, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "rlrun", "sweep", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def finish(process):
    out, err = process.communicate(timeout=400)
    return process.returncode, out, err


def trials(folder):
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def timeless(folder):
    return [
        {key: lookup(row, key) for key in addresses(row) if not is_wall_clock(key)}
        for row in read_rows(folder / "metrics.jsonl")
    ]


def wait_for(condition):
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rows_of(folder, number):
    return len(list(read_rows(folder / f"trials/{number:04d}/metrics.jsonl")))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep that nobody disturbed; the others stand beside it."""
    root = tmp_path_factory.mktemp("sweeps")
    (root / "exp.yaml").write_text(FILE)
    code, out, err = finish(command(root / "exp.yaml", "--run-dir", root / "whole", "--plain"))
    assert (code, err) == (0, "")
    assert out.count("finished") >= 4
    return root / "whole"


def same(folder, whole):
    assert [(row["settings"], row["seed"]) for row in trials(folder)] == [
        (row["settings"], row["seed"]) for row in trials(whole)
    ]
    for number in range(1, 5):
        name = f"trials/{number:04d}"
        assert timeless(folder / name) == timeless(whole / name)


def test_kill_9_of_the_driver(whole):
    folder = whole.parent / "driver"
    process = command(whole.parent / "exp.yaml", "--run-dir", folder)
    wait_for(lambda: rows_of(folder, 3) > 3)
    process.kill()
    finish(process)
    ended = [row["trial"] for row in trials(folder) if row["status"] == "finished"]
    logs = {n: (folder / f"trials/{n:04d}/log.txt").read_text() for n in ended}
    code, _, err = finish(command("--resume", folder))
    assert (code, err) == (0, "")
    assert ended
    for number, text in logs.items():
        assert (folder / f"trials/{number:04d}/log.txt").read_text() == text
    assert "a session starts from iteration" in (folder / "trials/0003/log.txt").read_text()
    same(folder, whole)


def test_kill_9_of_a_trial(whole):
    folder = whole.parent / "trial"
    process = command(whole.parent / "exp.yaml", "--run-dir", folder)
    wait_for(lambda: rows_of(folder, 1) > 6)
    meta = json.loads((folder / "trials/0001/meta.json").read_text())
    os.kill(meta["sessions"][-1]["pid"], signal.SIGKILL)
    code, out, _ = finish(process)
    assert code == 0
    failed = trials(folder)[0]
    assert (failed["status"], failed["reason"]) == (
        "failed",
        "its process died: killed, or out of memory",
    )
    assert [row["status"] for row in trials(folder)[1:]] == ["finished"] * 3
    assert f"rlrun sweep --resume {folder}" in out
    code, _, err = finish(command("--resume", folder))
    assert (code, err) == (0, "")
    assert "a session starts from iteration" in (folder / "trials/0001/log.txt").read_text()
    same(folder, whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_sweep_that_goes_on(whole, number):
    folder = whole.parent / number.name
    process = command(whole.parent / "exp.yaml", "--run-dir", folder, start_new_session=True)
    wait_for(lambda: rows_of(folder, 2) > 3)
    os.kill(process.pid, number)
    code, out, err = finish(process)
    assert code == 130
    assert f"rlrun sweep --resume {folder}" in out
    assert err.startswith(f"{number.name}: trials finish their iteration and save")
    assert "interrupted" in {row["status"] for row in trials(folder)}
    for row in trials(folder):
        if row["status"] == "interrupted":
            rows = list(read_rows(folder / row["folder"] / "metrics.jsonl"))
            newest = (folder / row["folder"] / "checkpoints/latest").readlink().name
            assert int(newest) == rows[-1]["training_iteration"]
    code, _, err = finish(command("--resume", folder, "--plain"))
    assert (code, err) == (0, "")
    same(folder, whole)


def test_trials_with_env_runners_reserve_them(whole):
    words = ["env_runners.num_env_runners=2", "env_runners.num_cpus_per_env_runner=0.5"]
    words += ["stop.training_iteration=2", "sweep.trials=2"]
    folder = whole.parent / "runners"
    code, _, err = finish(command(whole.parent / "exp.yaml", *words, "--run-dir", folder))
    assert (code, err) == (0, "")
    rows = timeless(folder / "trials/0002")
    assert [row["env_runners/healthy"] for row in rows] == [2, 2]


def test_what_never_fits_is_refused(whole):
    words = ["env_runners.num_env_runners=32", "--run-dir", whole.parent / "refused"]
    code, _, err = finish(command(whole.parent / "exp.yaml", *words))
    assert code == 2
    assert "32 env runners with 1 CPUs each need 32 CPUs, this machine has" in err
    assert not (whole.parent / "refused").exists()


def test_a_cluster_of_several_nodes(whole):
    from ray.cluster_utils import Cluster

    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ.update(environment)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=1)
        folder = whole.parent / "cluster"
        code, _, err = finish(
            command(
                whole.parent / "exp.yaml", "--run-dir", folder, "--address", cluster.address,
                "--quiet", env=environment,
            )
        )  # fmt: skip
        assert (code, err) == (0, "")
        same(folder, whole)
        big = ["env_runners.num_env_runners=1", "env_runners.num_cpus_per_env_runner=2"]
        code, _, err = finish(
            command(
                whole.parent / "exp.yaml", *big, "--run-dir", whole.parent / "big",
                "--address", cluster.address,
            )
        )  # fmt: skip
        assert code == 2
        assert "an env runner needs 2 CPU on one machine" in err
    finally:
        cluster.shutdown()


def test_the_command_says_what_is_wrong(whole):
    text = (whole.parent / "exp.yaml").read_text().replace("training.lr", "training.lrr")
    file = Path(whole.parent / "wrong.yaml")
    file.write_text(text)
    code, _, err = finish(command(file))
    assert code == 2
    assert "wrong.yaml:10:17: sweep.space.training.lrr: unknown key" in err
