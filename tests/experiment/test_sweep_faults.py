"""Killed and interrupted sweeps are resumed, and clusters of several nodes can run them.

Faults hit the command that a user types; most sweeps are resumed in the process of the tests.
"""

import json
import os
import secrets
import signal
import sys
from subprocess import PIPE, Popen

import pytest
from run_folders import meta, rows, start_rlrun, timeless, unsaved_env_steps, wait_for

from rlrun.experiment.sweep.sweep import resume_sweep, run_sweep

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("local_ray")]

FILE = """
algorithm: PPO
env: CartPole-v1
seed: 5
stop: {training_iteration: 40}
env_runners: {num_envs_per_env_runner: 4}
model: {hidden: [8]}
training: {train_batch_size: 256, minibatch_size: 64, num_epochs: 4}
checkpoint: {every: 2}
callbacks: [{use: "run_folders:Pause"}]
sweep: {space: {training.lr: {loguniform: [1e-4, 1e-2]}}, trials: 4}
"""
NODES = """
import shutil
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1)
cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
sys.stdin.read()
session = cluster.head_node.get_session_dir_path()
cluster.shutdown()
shutil.rmtree(session, ignore_errors=True)
"""


def command(*words, **options):
    return start_rlrun("sweep", *words, stdout=PIPE, stderr=PIPE, text=True, **options)


def finish(process):
    out, err = process.communicate(timeout=400)
    return process.returncode, out, err


def trials(folder):
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def trial(folder, number):
    return folder / f"trials/{number:04d}"


def start(folder, *, until, **options):
    """A sweep of the file beside ``folder`` that is running trial number, row number ``until``."""
    process = command(folder.parent / "exp.yaml", "--run-dir", folder, **options)
    number, num_rows = until
    wait_for(lambda: len(rows(trial(folder, number))) > num_rows)
    return process


def resume(folder):
    """Resume a sweep in this process, which has imported everything and started a Ray."""
    assert not resume_sweep(folder, console="quiet").any_failed


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep without faults; the others are beside it."""
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
        assert timeless(trial(folder, number)) == timeless(trial(whole, number))


def test_a_sweep_is_resumed_after_its_process_was_killed(whole, record_fault):
    folder = whole.parent / "driver"
    process = start(folder, until=(3, 3))
    process.kill()
    finish(process)
    repeated = [unsaved_env_steps(trial(folder, 3))]
    ended = [row["trial"] for row in trials(folder) if row["status"] == "finished"]
    logs = {number: (trial(folder, number) / "log.txt").read_text() for number in ended}
    code, _, err = finish(command("--resume", folder))
    assert code == 0
    assert err.startswith("warning: the last session ended without an outcome")
    assert err.count("\n") == 1
    assert ended
    for number, text in logs.items():
        assert (trial(folder, number) / "log.txt").read_text() == text
    assert "a session starts from iteration" in (folder / "trials/0003/log.txt").read_text()
    same(folder, whole)
    record_fault(lost=[0], repeated=repeated)


def test_a_killed_trial_does_not_end_the_others_and_is_resumed(whole, record_fault):
    folder = whole.parent / "trial"
    process = start(folder, until=(1, 6))
    os.kill(meta(trial(folder, 1))["sessions"][-1]["pid"], signal.SIGKILL)
    code, out, _ = finish(process)
    assert code == 0
    failed = trials(folder)[0]
    reason = "its process died: killed, out of memory, or ended by its code"
    assert (failed["status"], failed["reason"]) == ("failed", reason)
    assert [row["status"] for row in trials(folder)[1:]] == ["finished"] * 3
    assert f"rlrun sweep --resume {folder}" in out
    repeated = [unsaved_env_steps(trial(folder, 1))]
    resume(folder)
    assert "a session starts from iteration" in (folder / "trials/0001/log.txt").read_text()
    same(folder, whole)
    record_fault(lost=[0], repeated=repeated)


# A scheduler signals all processes of a job, Ray's among them.
@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGINT, os.kill), (signal.SIGTERM, os.killpg)]
)
def test_a_signal_lets_all_trials_save(whole, record_fault, number, send):
    folder = whole.parent / number.name
    process = start(folder, until=(2, 3), start_new_session=True)
    send(process.pid, number)
    code, out, err = finish(process)
    assert code == 130
    assert f"rlrun sweep --resume {folder}" in out
    assert err.startswith(f"{number.name}: finishing the trials' iterations, then saving")
    assert "interrupted" in {row["status"] for row in trials(folder)}
    for row in trials(folder):
        if row["status"] == "interrupted":
            run = folder / row["folder"]
            newest = (run / "checkpoints/latest").readlink().name
            assert int(newest) == rows(run)[-1]["training_iteration"]
    begun = [folder / row["folder"] for row in trials(folder) if row["status"] != "waiting"]
    repeated = [unsaved_env_steps(run) for run in begun]
    resume(folder)
    same(folder, whole)
    record_fault(lost=[0], repeated=repeated)


def test_a_sweep_whose_folder_disappears_ends_with_one_message(tmp_path):
    (tmp_path / "exp.yaml").write_text(FILE)
    process = start(tmp_path / "gone", until=(1, 2))
    (tmp_path / "gone").rename(tmp_path / "elsewhere")
    code, _, err = finish(process)
    assert code == 1
    assert err.startswith(f"{tmp_path / 'gone'}: the folder of the sweep has disappeared\n")
    assert "Traceback" not in err


def test_a_trial_whose_folder_disappears_says_where_its_last_state_is(whole):
    folder = whole.parent / "lost"
    process = start(folder, until=(1, 4))
    trial(folder, 1).rename(whole.parent / "elsewhere")
    code, out, _ = finish(process)
    assert code == 0
    failed = trials(folder)[0]
    (saved,) = (folder / "trials").glob("0001-saved-*")
    reason = f"FolderLostError: {trial(folder, 1)}: the run folder has disappeared; "
    assert failed["reason"] == f"{reason}its last state is in {saved}"
    assert (failed["status"], failed["log"]) == ("failed", None)
    assert f"trial 1: {failed['reason']}\n" in out
    assert [row["status"] for row in trials(folder)[1:]] == ["finished"] * 3
    assert (saved / "checkpoints/latest").exists()
    resume(folder)
    same(folder, whole)


def test_trials_with_env_runners_reserve_them(whole):
    words = ["env_runners.num_env_runners=2", "env_runners.num_cpus_per_env_runner=0.5"]
    words += ["stop.training_iteration=2", "sweep.trials=2"]
    folder = whole.parent / "runners"
    outcome = run_sweep(whole.parent / "exp.yaml", words, run_dir=folder, console="quiet")
    assert not outcome.any_failed
    assert [row["env_runners/healthy"] for row in timeless(trial(folder, 2))] == [2, 2]


def test_a_trial_that_needs_more_than_the_machine_is_refused(whole):
    words = ["env_runners.num_env_runners=32", "--run-dir", whole.parent / "refused"]
    code, _, err = finish(command(whole.parent / "exp.yaml", *words))
    assert code == 2
    assert "32 env runners with 1 CPUs each need 32 CPUs, but this machine has" in err
    assert not (whole.parent / "refused").exists()


@pytest.fixture
def cluster():
    """The address of a Ray of three nodes with a CPU each, and variables for connecting to it.

    It is started in a process of its own: one that has started a Ray before keeps that one's token.
    """
    variables = {"RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {**os.environ, **variables}
    nodes = [sys.executable, "-c", NODES]
    with Popen(nodes, stdin=PIPE, stdout=PIPE, text=True, env=environment) as process:
        try:
            yield process.stdout.readline().strip(), environment
        finally:
            process.stdin.close()


def test_a_cluster_of_several_nodes(whole, cluster):
    file, folder = whole.parent / "exp.yaml", whole.parent / "cluster"
    address, environment = cluster
    words = ["--address", address]
    code, _, err = finish(command(file, *words, "--run-dir", folder, "--quiet", env=environment))
    assert (code, err) == (0, "")
    same(folder, whole)
    words += ["env_runners.num_env_runners=1", "env_runners.num_cpus_per_env_runner=2"]
    code, _, err = finish(command(file, *words, "--run-dir", whole.parent / "big", env=environment))
    assert code == 2
    assert "an env runner needs 2 CPU on one machine" in err


def test_a_wrong_address_is_named_with_its_line(whole):
    text = (whole.parent / "exp.yaml").read_text().replace("training.lr", "training.lrr")
    file = whole.parent / "wrong.yaml"
    file.write_text(text)
    code, _, err = finish(command(file))
    assert code == 2
    assert "wrong.yaml:11:17: sweep.space.training.lrr: unknown key" in err
