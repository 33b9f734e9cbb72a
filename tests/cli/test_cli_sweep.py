"""``rlrun sweep``: arguments, exit codes and what is said."""

from pathlib import Path

import pytest

from rlrun.cli.main import main
from rlrun.experiment.sweep.outcome import SweepOutcome
from rlrun.experiment.sweep.trials import Trial

FILE = """
algorithm: "counting_algorithm:CountingAlgorithm"
env: CartPole-v1
seed: 3
stop: {training_iteration: 3}
sweep: {space: {training.gain: {grid: [1, 2]}}}
"""


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "experiment"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fake.yaml").write_text(FILE)


@pytest.fixture
def calls(monkeypatch):
    """Stand-ins for the two ways to run a sweep; they note their arguments."""
    noted = []

    def stand_in(name):
        def run(*args, **kwargs):
            noted.append((name, args, kwargs))
            return SweepOutcome(end=noted_end[0], folder=Path("f"), trials=ended, best=None)

        return run

    noted_end, ended = ["finished"], []
    for name in ("run_sweep", "resume_sweep"):
        monkeypatch.setattr(f"rlrun.experiment.sweep.sweep.{name}", stand_in(name))
    noted.clear()
    return noted, noted_end, ended


@pytest.fixture
def sweep(capsys, monkeypatch):
    """Call ``rlrun sweep WORDS``; gives the exit code, stdout and stderr."""

    def call(*words):
        monkeypatch.setattr("sys.argv", ["rlrun", "sweep", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    return call


def trial(status):
    return Trial(trial=1, point=1, seed=1, settings={}, status=status)


def test_a_file_with_overrides(sweep, calls):
    code, _, _ = sweep("fake.yaml", "sweep.seeds=2", "--run-dir", "d", "--address", "a", "--quiet")
    assert code == 0
    name, args, kwargs = calls[0][0]
    assert (name, args) == ("run_sweep", (Path("fake.yaml"), ["sweep.seeds=2"]))
    assert kwargs == {"run_dir": Path("d"), "address": "a", "console": "quiet"}


def test_resume(sweep, calls):
    assert sweep("--resume", "d", "--plain")[0] == 0
    assert calls[0] == [("resume_sweep", (Path("d"),), {"address": None, "console": "lines"})]


@pytest.mark.parametrize(
    ("end", "statuses", "code"),
    [
        ("finished", ["finished", "failed"], 0),
        ("finished", ["failed", "failed"], 1),
        ("interrupted", ["finished", "interrupted"], 130),
    ],
)
def test_exit_codes(sweep, calls, end, statuses, code):
    calls[1][0] = end
    calls[2].extend(trial(status) for status in statuses)
    assert sweep("fake.yaml")[0] == code


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--resume SWEEP"),
        (["sweep.trials=3"], "--resume SWEEP"),
        (["a.yaml", "b.yaml"], "one FILE.yaml"),
        (["fake.yaml", "--resume", "d"], "as its folder says"),
        (["--resume", "d", "sweep.trials=9"], "as its folder says"),
        (["--resume", "nowhere"], "no such run folder"),
        (["missing.yaml"], "missing.yaml"),
        (["fake.yaml", "sweep.space.training={gains: {grid: [1]}}"], "did you mean gain?"),
        (["fake.yaml", "sweep.metric=evaluation/x"], "evaluation.interval: 10 works"),
        (["fake.yaml", "env_runners.num_env_runners=4096"], "this machine has"),
    ],
)
def test_wrong_input_is_exit_2_with_a_message(sweep, words, says):
    code, _, err = sweep(*words)
    assert code == 2
    assert says in err.replace("\n", " ")
    assert "Traceback" not in err


def test_a_used_folder_is_exit_2(sweep):
    Path("used").mkdir()
    (Path("used") / "sweep.yaml").write_text("")
    code, _, err = sweep("fake.yaml", "--run-dir", "used")
    assert code == 2
    assert "rlrun sweep --resume used" in err
