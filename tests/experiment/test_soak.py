"""Faults at random moments, many of them in a run, which ends as if there had been none.

The seed of the moments is printed by a test that fails; FAULT_SEED repeats it, though which
iterations they hit depends on the machine, too. Two kills of some cases run with the other tests of
faults, the rest with `make soak`.
"""

import itertools
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest
from run_folders import assert_equal_runs, meta, rows, start_rlrun, unsaved_env_steps, wait_for

from rlrun import Callbacks, PPOConfig, resume_experiment, run_experiment

RUNNERS = "num_cpus_per_env_runner: 0.1, num_envs_per_env_runner: 2"
FILE = """
seed: 5
stop: {{training_iteration: {stop}}}
algorithm: {algorithm}
env: {env}
env_runners: {{num_env_runners: {runners}, {more}}}
model: {{{model}}}
training: {{{training}}}
checkpoint: {{every: 3, keep: 2}}
{sections}
"""
ON_POLICY = "train_batch_size: 128"
PPO = f"{ON_POLICY}, minibatch_size: 32, num_epochs: 2"
REPLAY = "train_batch_size: 32, minibatch_size: 32, num_steps_sampled_before_learning_starts: 64"
STORED = "replay: {capacity: 2000, store_in_checkpoints: true}"
LSTM = "hidden: [8], use_lstm: true, lstm_cell_size: 8, max_seq_len: 7"
CASES = {
    "PPO": {"training": PPO},
    "PPO, LSTM": {"training": PPO, "model": LSTM},
    "PPO, several agents": {
        "training": PPO,
        "env": "{use: MultiAgentCartPole, num_agents: 2}",
        "sections": "multi_agent: {policies: [agent_0, agent_1]}",
    },
    "PPO, evaluated": {
        "training": PPO,
        "sections": "evaluation: {interval: 1, episodes: 2, num_env_runners: 1}",
    },
    "PPO, two learners": {
        "training": PPO,
        "sections": "learners: {num_learners: 2, num_cpus_per_learner: 0.1}",
    },
    "A2C": {"algorithm": "A2C", "training": ON_POLICY},
    "PG": {"algorithm": "PG", "training": ON_POLICY},
    "DQN": {"algorithm": "DQN", "training": REPLAY, "sections": STORED},
    "Rainbow": {
        "algorithm": "DQN",
        "training": f"{REPLAY}, n_step: 3, num_atoms: 7, noisy: true",
        "sections": "exploration: {epsilon: 0}\n" + STORED.replace("{", "{prioritized: true, "),
    },
    "DQN, GRU": {
        "algorithm": "DQN",
        "training": REPLAY,
        "model": "hidden: [8], use_gru: true, lstm_cell_size: 8, max_seq_len: 5",
        "sections": STORED,
    },
    "SAC": {
        "algorithm": "SAC",
        "env": "Pendulum-v1",
        "training": REPLAY,
        "sections": STORED,
    },
}
MODES = {
    "async": {"training": PPO, "more": f"{RUNNERS}, gym_env_vectorize_mode: async"},
    "vector": {"training": PPO, "more": f"{RUNNERS}, gym_env_vectorize_mode: vector_entry_point"},
    "async, several agents": {
        **CASES["PPO, several agents"],
        "more": f"{RUNNERS}, gym_env_vectorize_mode: async",
    },
    "sampling ahead": {"training": PPO, "more": f"{RUNNERS}, sample_async: true"},
}
ALL = [
    *((CASES[name], runners, f"{name}, {runners}") for name in CASES for runners in (0, 1, 2)),
    *(
        (MODES[name], runners, f"{name}, {runners}")
        for name in MODES
        for runners in (0, 2)
        if (name, runners) != ("sampling ahead", 0)
    ),
]
LEARNERS, POLICY = "learners", "default_policy"
FEW = ("PPO, LSTM, 0", "DQN, 0", "async, several agents, 0")


@pytest.fixture
def moments():
    """What draws when processes are killed, and which."""
    seed = int(os.environ.get("FAULT_SEED", random.SystemRandom().randrange(10**6)))
    print(f"FAULT_SEED={seed}")  # noqa: T201 - shown where the test fails
    return random.Random(seed)


def write(path, case, *, runners=0, stop=1_000_000):
    defaults = {"algorithm": "PPO", "env": "CartPole-v1", "model": "hidden: [8]", "sections": ""}
    path.write_text(
        FILE.format(**{"more": RUNNERS, **defaults, **case}, runners=runners, stop=stop)
    )
    return path


def kill_at_random(folder, file, moments, *, as_it_starts=True):
    """A session of the run, killed: half of them as it starts, the others as it iterates.

    Returns:
        Env steps that it had made since its last checkpoint, and seconds from its start to a row.
    """
    before, started, recovery_s = len(rows(folder)), time.monotonic(), None
    words = (
        ["--resume", folder] if (folder / "config.yaml").is_file() else ["--run-dir", folder, file]
    )
    with start_rlrun("train", *words, "--quiet") as process:
        if as_it_starts and moments.random() < 0.5:
            time.sleep(moments.uniform(0.0, 4.0))
        else:
            known = (rows(folder) or [{}])[-1].get("training_iteration"), before
            wait_for(lambda: process.poll() is not None or _has_new_row(folder, known))
            assert process.poll() is None
            recovery_s = time.monotonic() - started
            time.sleep(moments.uniform(0.0, 0.5))
        process.kill()
    return unsaved_env_steps(folder), recovery_s


def _has_new_row(folder, known):
    found = rows(folder)
    return bool(found) and (found[-1]["training_iteration"], len(found)) != known


def cases():
    for case, runners, name in ALL:
        if name in FEW:
            yield pytest.param(case, runners, 2, id=f"{name} runners", marks=pytest.mark.faults)
        yield pytest.param(case, runners, 20, id=f"{name} runners, 20", marks=pytest.mark.soak)


@pytest.mark.parametrize(("case", "runners", "kills"), list(cases()))
def test_a_run_killed_at_random_moments_ends_as_if_undisturbed(
    tmp_path, record_fault, moments, case, runners, kills
):
    folder, file = tmp_path / "killed", write(tmp_path / "file.yaml", case, runners=runners)
    found = [kill_at_random(folder, file, moments) for _ in range(kills)]
    if not (folder / "config.yaml").is_file():  # each was killed before it had begun
        kill_at_random(folder, file, moments, as_it_starts=False)
    stop = (rows(folder) or [{"training_iteration": 0}])[-1]["training_iteration"] + 4
    end = [f"stop.training_iteration={stop}"]
    resume_experiment(folder, end, console="quiet")
    run_experiment(file, end, run_dir=tmp_path / "whole", console="quiet")
    assert_equal_runs(folder, tmp_path / "whole")
    record_fault(
        lost=[0],
        repeated=[steps for steps, _ in found],
        recovery_s=[seconds for _, seconds in found if seconds is not None],
    )


@pytest.mark.parametrize(
    "kills",
    [pytest.param(3, marks=pytest.mark.faults), pytest.param(50, marks=pytest.mark.soak)],
)
def test_runners_killed_at_random_moments_change_no_number(built, record_fault, moments, kills):
    """One of two at a time, while it samples, or learns, or is started."""
    whole, hit = (built(_two_runners()) for _ in range(2))
    rows_of, seconds = {}, []
    while sum(_restarts(rows_of)) < kills:
        pids = hit.env_runner_group.foreach_env_runner(lambda runner: os.getpid())
        threading.Timer(moments.uniform(0.0, 0.05), _kill, [moments.choice(pids)]).start()
        for _ in range(3):
            started = time.monotonic()
            row = hit.train()
            rows_of[row["training_iteration"]] = row
            if _restarts(rows_of)[-1]:
                seconds.append(time.monotonic() - started)
    for row in rows_of.values():
        same = whole.train()
        for key in ("env_steps", "episodes", "episode_return_mean"):
            assert row[key] == same[key]
    for key, value in whole.get_weights().items():
        assert value.tobytes() == hit.get_weights()[key].tobytes()
    record_fault(lost=[row["env_runners"]["dropped_env_steps"]], repeated=[0], recovery_s=seconds)


def _two_runners():
    runners = {"num_env_runners": 2, "num_cpus_per_env_runner": 0.1}
    config = PPOConfig().environment("CartPole-v1").env_runners(**runners)
    config = config.training(train_batch_size=256, minibatch_size=64, num_epochs=2)
    return config.fault_tolerance(max_num_env_runner_restarts=1000).debugging(seed=3)


def _restarts(rows_of):
    """Runners that were restarted in each iteration."""
    counts = [0, *(row["env_runners"]["restarts"] for row in rows_of.values())]
    return [later - earlier for earlier, later in itertools.pairwise(counts)]


def _kill(process_id):
    with suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)


def own_processes(root):
    """Descendants of a process, with the names of Ray's actors."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid = int(entry.name)
            parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            names[pid] = (entry / "cmdline").read_text().replace("\0", " ")
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: names[pid] for pid in found - {root}}


def learners_of(process):
    """Process ids of a run's learners."""
    return [pid for pid, name in own_processes(process.pid).items() if "LearnerHost" in name]


@pytest.mark.parametrize(
    "kills",
    [pytest.param(2, marks=pytest.mark.faults), pytest.param(20, marks=pytest.mark.soak)],
)
def test_learners_killed_at_random_moments_change_no_number(tmp_path, record_fault, moments, kills):
    """One of two at a time, while it learns, or waits for a train batch."""
    seconds = []
    file, folder = write(tmp_path / "file.yaml", CASES["PPO, two learners"]), tmp_path / "hit"
    with start_rlrun("train", file, "--run-dir", folder, "--quiet", stderr=PIPE) as process:
        for _ in range(kills):
            before = len(rows(folder))
            wait_for(lambda before=before: len(rows(folder)) > before)
            time.sleep(moments.uniform(0.0, 0.1))
            started, restarts = time.monotonic(), rows(folder)[-1][LEARNERS][POLICY]["restarts"]
            os.kill(moments.choice(learners_of(process)), signal.SIGKILL)
            wait_for(lambda n=restarts: rows(folder)[-1][LEARNERS][POLICY]["restarts"] > n)
            seconds.append(time.monotonic() - started)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.count(b"died") == rows(folder)[-1][LEARNERS][POLICY]["restarts"] == kills
    stop = f"stop.training_iteration={rows(folder)[-1]['training_iteration']}"
    run_experiment(file, [stop], run_dir=tmp_path / "whole", console="quiet")
    assert_equal_runs(folder, tmp_path / "whole", but=f"{LEARNERS}/{POLICY}/restarts")
    record_fault(lost=[0], repeated=[0], recovery_s=seconds)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB in memory; skipped where it cannot be mounted."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.call(mount):
        pytest.skip("file systems cannot be mounted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize(
    "room_returns",
    [pytest.param(True, marks=pytest.mark.soak), pytest.param(False, marks=pytest.mark.faults)],
)
def test_a_run_on_a_full_disk_waits_for_room_or_saves_elsewhere(
    tmp_path, small_disk, record_fault, room_returns
):
    file, folder = write(tmp_path / "file.yaml", CASES["PPO"]), small_disk / "run"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    options = {"stderr": PIPE, "env": environment}
    with start_rlrun("train", file, "--run-dir", folder, "--quiet", **options) as process:
        wait_for(lambda: len(rows(folder)) > 5)
        with suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        time.sleep(2.0)
        assert process.poll() is None
        if room_returns:
            (small_disk / "filler").unlink()
            time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert b"Traceback" not in errors
    assert b"No space left on device" in errors
    assert process.returncode == (130 if room_returns else 1)
    assert meta(folder)["outcome"] == ("interrupted" if room_returns else "failed")
    (saved,) = [folder] if room_returns else tmp_path.glob("run-saved-*")
    last = rows(saved)[-1]["training_iteration"]
    assert [row["training_iteration"] for row in rows(saved)] == list(range(1, last + 1))
    stop = f"stop.training_iteration={last}"
    run_experiment(file, [stop], run_dir=tmp_path / "whole", console="quiet")
    assert_equal_runs(saved, tmp_path / "whole")
    record_fault(lost=[0], repeated=[0])


@pytest.fixture
def breaking_disk(tmp_path):
    """A mounted disk, and a function that makes it read-only, as the system does after an error."""
    path, image = tmp_path / "breaking", tmp_path / "image"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * 2**20)
    mount = ["mount", "-o", "loop,errors=remount-ro", str(image), str(path)]
    if shutil.which("mkfs.ext4") is None or subprocess.call(["mkfs.ext4", "-q", str(image)]):
        pytest.skip("file systems cannot be made here")
    if subprocess.call(mount):
        pytest.skip("file systems cannot be mounted here")
    device = os.stat(path).st_dev
    name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
    trigger = Path("/sys/fs/ext4") / name / "trigger_fs_error"
    assert name.startswith("loop")
    yield path, lambda: trigger.write_text("1")
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.soak
def test_a_run_on_a_disk_that_becomes_read_only_saves_elsewhere(
    tmp_path, breaking_disk, record_fault
):
    disk, break_it = breaking_disk
    file, folder = write(tmp_path / "file.yaml", CASES["PPO"], stop=10_000), disk / "run"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    options = {"stderr": PIPE, "env": environment}
    with start_rlrun("train", file, "--run-dir", folder, "--quiet", **options) as process:
        wait_for(lambda: len(rows(folder)) > 5)
        break_it()
        _, errors = process.communicate(timeout=100)
    assert process.returncode == 1
    assert b"Read-only file system" in errors
    assert b"Traceback" not in errors
    (saved,) = tmp_path.glob("run-saved-*")
    assert f"rlrun train --resume {saved}".encode() in errors
    last = rows(saved)[-1]["training_iteration"]
    stop = f"stop.training_iteration={last}"
    run_experiment(file, [stop], run_dir=tmp_path / "whole", console="quiet")
    assert_equal_runs(saved, tmp_path / "whole")
    with start_rlrun("train", "--resume", folder, stderr=PIPE) as process:
        _, errors = process.communicate(timeout=100)
    assert (process.returncode, errors.decode()) == (
        2,
        f"{folder}: cannot be written: Read-only file system\n",
    )
    record_fault(lost=[0], repeated=[0])


@pytest.mark.soak
@pytest.mark.parametrize("files", [48, 128, 256])
def test_few_open_files_are_enough_or_named(tmp_path, files):
    file = write(tmp_path / "file.yaml", CASES["PPO"], runners=2, stop=4)

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    words = "train", file, "--run-dir", tmp_path / "run", "--quiet"
    with start_rlrun(*words, preexec_fn=limit, stderr=PIPE) as process:
        _, errors = process.communicate(timeout=300)
    assert b"Traceback" not in errors
    assert process.returncode == 0 or f"a limit of {files} open files".encode() in errors


class LearnsSlowly(Callbacks):
    """Half a second for each train batch, which runners sample in a hundredth of it."""

    def on_learn_on_batch(self, algorithm, policy_id, batch):
        time.sleep(0.5)


@pytest.mark.soak
def test_runners_wait_for_a_slow_learner_with_a_bounded_store(tmp_path):
    """Fragments of 5 MB, in all four times what the object store holds."""
    case = {
        "algorithm": "IMPALA",
        "training": "train_batch_size: 20000",
        "sections": f"callbacks: ['{__name__}:LearnsSlowly']",
        "more": f"{RUNNERS}, rollout_fragment_length: 10000",
    }
    file = write(tmp_path / "file.yaml", case, runners=2, stop=40)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        ),
    }
    words = "train", file, "--run-dir", tmp_path / "run", "--quiet"
    with start_rlrun(*words, env=environment, stderr=PIPE) as process:
        _, errors = process.communicate(timeout=500)
    assert (process.returncode, errors.count(b"Traceback")) == (0, 0)


@pytest.mark.soak
def test_ten_million_steps_take_no_more_memory_than_two(tmp_path, record_fault):
    case = {"training": "train_batch_size: 8192, minibatch_size: 2048, num_epochs: 1",
            "more": "num_envs_per_env_runner: 32"}  # fmt: skip
    file = write(tmp_path / "file.yaml", case)
    folder = tmp_path / "run"
    with start_rlrun("train", file, "--run-dir", folder, "stop={env_steps: 10000000}") as process:
        used = {}
        for steps in (2_000_000, 9_500_000):
            wait_for(lambda steps=steps: _env_steps(folder) >= steps, 3600)
            used[steps] = resident_bytes(process.pid)
        assert process.wait(600) == 0
    assert np.ptp(list(used.values())) < 0.05 * used[2_000_000]
    record_fault(memory_mb=[size / 1e6 for size in used.values()])


@pytest.mark.faults
def test_after_200_iterations_no_process_takes_more_memory_than_after_50(tmp_path):
    file, folder = write(tmp_path / "file.yaml", CASES["PPO"], runners=2), tmp_path / "run"
    with start_rlrun("train", file, "--run-dir", folder, "--quiet") as process:
        used = []
        for iterations in (50, 200):
            wait_for(lambda n=iterations: len(rows(folder)) >= n, 300)
            names = own_processes(process.pid)
            runners = [pid for pid in sorted(names) if "RunnerHost" in names[pid]]
            used.append([resident_bytes(pid) for pid in (process.pid, *runners)])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    earlier, later = np.array(used)
    assert len(later) == 3  # with two runners
    assert (later < 1.05 * earlier).all()


def resident_bytes(process_id):
    pages = (Path("/proc") / str(process_id) / "statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def _env_steps(folder):
    time.sleep(1.0)
    return (rows(folder) or [{"env_steps": 0}])[-1]["env_steps"]
