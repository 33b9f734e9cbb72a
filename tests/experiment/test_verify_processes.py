"""`rlrun verify` with real runs: they are ordinary ones, and survive a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlrun.experiment.report.jsonl import read_rows
from rlrun.experiment.rollout import RolloutRequest, rollout
from rlrun.experiment.verify import runs as verify_runs
from rlrun.experiment.verify.cases import Case, Reference
from rlrun.experiment.verify.verify import verify

TINY = (
    "env_runners.num_env_runners=0",
    "env_runners.num_envs_per_env_runner=4",
    "training.train_batch_size=128",
    "training.minibatch_size=64",
    "training.num_epochs=1",
    "training.lr=0",
)


def case(env_steps):
    reference = Reference(1.0, env_steps, "evaluation", "CleanRL", "1")
    return Case("tiny", "PPO", "CartPole-v1", "ppo_cartpole.yaml", reference, TINY)


def test_a_run_is_an_ordinary_one(tmp_path, monkeypatch):
    monkeypatch.setattr(verify_runs, "EVALUATION_EPISODES", 3)
    done = verify(cases=[case(256)], seeds=[1], results=tmp_path, notice=lambda text: None)
    (seed,) = done.results[0].seeds
    assert seed.error is None
    assert done.all_reached
    assert [row["env_steps"] for row in read_rows(seed.folder / "metrics.jsonl")] == [128, 256]
    played = rollout(seed.folder, RolloutRequest(episodes=3)).statistics
    assert seed.evaluation == played["episode_return_mean"]
    assert seed.session["versions"]["torch"]


SCRIPT = """
from test_verify_processes import case
from rlrun.experiment.verify.verify import verify
verify(cases=[case(60_000)], seeds=[1], results="results")
"""


@pytest.mark.faults
@pytest.mark.parametrize("with_children", [False, True])
def test_a_killed_verification_goes_on(tmp_path, monkeypatch, with_children):
    monkeypatch.setattr(verify_runs, "EVALUATION_EPISODES", 3)
    monkeypatch.chdir(tmp_path)
    folders = [str(Path(__file__).parent), str(Path(verify_runs.__file__).parents[2])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    process = subprocess.Popen([sys.executable, "-c", SCRIPT])
    folder = Path("results/tiny/seed-1")
    deadline = time.monotonic() + 60
    while len(list(read_rows(folder / "metrics.jsonl"))) < 20:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    if with_children:
        meta = json.loads((folder / "meta.json").read_text())
        os.kill(meta["sessions"][-1]["pid"], signal.SIGKILL)
    said = []
    done = verify(cases=[case(60_000)], seeds=[1], results="results", notice=said.append)
    assert done.all_reached, said
    if not with_children:
        assert any("another process is working on it" in line for line in said)
    rows = list(read_rows(folder / "metrics.jsonl"))
    assert [row["env_steps"] for row in rows] == list(range(128, 60_000 + 128, 128))
    assert len(json.loads((folder / "meta.json").read_text())["sessions"]) == 1 + with_children
