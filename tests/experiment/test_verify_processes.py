"""`rlrun verify` with real runs: they are like any other, and survive a kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from run_folders import meta, rows, wait_for

from rlrun.experiment.rollout import rollout
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


@pytest.fixture(autouse=True)
def _short_rollouts(tmp_path, monkeypatch):
    monkeypatch.setattr(verify_runs, "EVALUATION_EPISODES", 3)
    monkeypatch.chdir(tmp_path)


def case(env_steps):
    reference = Reference(1.0, env_steps, "evaluation", "CleanRL", "1")
    return Case("tiny", "PPO", "CartPole-v1", "ppo_cartpole.yaml", (reference,), TINY)


def run_verify(env_steps, notices):
    return verify(cases=[case(env_steps)], seeds=[1], results="results", notice=notices.append)


@pytest.mark.faults
def test_a_run_is_like_any_other():
    done = run_verify(256, [])
    (seed,) = done.results[0].seeds
    assert seed.error is None
    assert done.all_reached
    assert [row["env_steps"] for row in rows(seed.folder)] == [128, 256]
    statistics = rollout(seed.folder, episodes=3).statistics
    assert seed.evaluation == statistics["episode_return_mean"]
    assert seed.session["versions"]["torch"]


@pytest.mark.faults
@pytest.mark.parametrize("with_children", [False, True])
def test_a_killed_verification_is_resumed(monkeypatch, with_children):
    monkeypatch.setenv("PYTHONPATH", str(Path(verify_runs.__file__).parents[3]))
    script = (
        "from rlrun.experiment.verify.cases import Case, Reference\n"
        "from rlrun.experiment.verify.verify import verify\n"
        f"verify(cases=[{case(60_000)!r}], seeds=[1], results='results')"
    )
    folder = Path("results/tiny/seed-1")
    process = subprocess.Popen([sys.executable, "-c", script])
    wait_for(lambda: process.poll() is not None or len(rows(folder)) >= 20)
    assert process.poll() is None
    process.kill()
    process.wait()
    if with_children:
        os.kill(meta(folder)["sessions"][-1]["pid"], signal.SIGKILL)
    notices = []
    assert run_verify(60_000, notices).all_reached, notices
    if not with_children:
        assert any("waiting for another process" in line for line in notices)
    expected = list(range(128, 60_000 + 128, 128))
    assert [row["env_steps"] for row in rows(folder)] == expected
    assert len(meta(folder)["sessions"]) == 1 + with_children
