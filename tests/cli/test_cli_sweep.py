"""``rlrun sweep``: arguments, exit codes and messages."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.experiment.sweep.report import SweepOutcome
from rlrun.experiment.sweep.trials import Trial


@pytest.fixture
def sweep(rlrun, counting):
    """Call ``rlrun sweep WORDS``; returns the exit code, stdout and stderr."""
    text = counting.read_text() + "sweep: {space: {training.gain: {grid: [1, 2]}}}\n"
    counting.write_text(text)
    return partial(rlrun, "sweep")


@pytest.fixture
def stand_in(monkeypatch):
    """In place of a sweep: ``calls`` notes the arguments, ``outcome`` is how it ends."""
    stand_in = SimpleNamespace(calls=[], outcome=SweepOutcome("finished", Path("f"), (), None))
    for name in ("run_sweep", "resume_sweep"):

        def run(*args, name=name, **kwargs):
            stand_in.calls.append((name, args, kwargs))
            return stand_in.outcome

        monkeypatch.setattr(f"rlrun.experiment.sweep.sweep.{name}", run)
    return stand_in


def trial(status):
    return Trial(trial=1, point=1, seed=1, settings={}, status=status)


def test_a_file_with_overrides(sweep, stand_in):
    code, _, _ = sweep("fake.yaml", "sweep.seeds=2", "--run-dir", "d", "--address", "a", "--quiet")
    assert code == 0
    ((name, (loaded,), kwargs),) = stand_in.calls
    assert (name, loaded.experiment.sweep.seeds) == ("run_sweep", 2)
    options = {"run_dir": Path("d"), "address": "a", "console": "quiet"}
    assert kwargs == {**options, "resume": False}


def test_resume_auto_resumes_an_unfinished_sweep_of_the_file_or_starts_one(sweep, stand_in):
    Path("runs/auto").mkdir(parents=True)  # a sweep of this name is not what `auto` means
    assert sweep("fake.yaml", "--resume", "auto", "--run-dir", "d")[0] == 0
    ((name, _, options),) = stand_in.calls
    assert (name, options["resume"], options["run_dir"]) == ("run_sweep", True, Path("d"))
    assert sweep("--resume", "auto")[0] == 2


def test_the_sweep_of_another_user_is_run_and_rerun_with_trust(rlrun, sweep, stand_in, refused):
    Path("theirs").mkdir()
    Path("fake.yaml").rename("theirs/sweep.yaml")  # it names code and has no signature
    Path("theirs/meta.json").touch()
    refused(["sweep", "theirs/sweep.yaml"], "`rlrun sweep`")
    refused(["rerun", "theirs"], "`rlrun rerun`")
    assert sweep("theirs/sweep.yaml", "--trust")[0] == 0
    assert rlrun("rerun", "theirs", "--trust", "--plain")[0] == 0
    assert [name for name, _, _ in stand_in.calls] == ["run_sweep"] * 2
    assert [kwargs["console"] for _, _, kwargs in stand_in.calls] == [None, "lines"]


def test_resume(sweep, stand_in):
    assert sweep("--resume", "d", "--plain", "stop.env_steps=9")[0] == 0
    options = {"address": None, "console": "lines", "trust": False}
    arguments = ((Path("d"), ["stop.env_steps=9"]), options)
    assert stand_in.calls == [("resume_sweep", *arguments)]


@pytest.mark.parametrize(
    ("end", "statuses", "code"),
    [
        ("finished", ["finished", "failed"], 0),
        ("finished", ["failed", "failed"], 1),
        ("interrupted", ["finished", "interrupted"], 130),
    ],
)
def test_exit_codes(sweep, stand_in, end, statuses, code):
    stand_in.outcome = SweepOutcome(end, Path("f"), tuple(map(trial, statuses)), None)
    assert sweep("fake.yaml")[0] == code


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--resume SWEEP"),
        (["sweep.trials=3"], "--resume SWEEP"),
        (["a.yaml", "b.yaml"], "one FILE.yaml"),
        (["fake.yaml", "--resume", "d"], "uses the settings in the folder of the sweep"),
        (["--resume", "nowhere"], "no such run folder"),
        (["missing.yaml"], "missing.yaml"),
        (["fake.yaml", "sweep.space.training={gains: {grid: [1]}}"], "did you mean gain?"),
        (["fake.yaml", "sweep.metric=evaluation/x"], "evaluation.interval: 10 works"),
        (["fake.yaml", "env_runners.num_env_runners=4096"], "need 4096 CPUs"),
    ],
)
def test_wrong_input_is_exit_2_with_a_message(sweep, refused, words, says):
    refused(["sweep", *words], says)


def test_a_used_folder_is_exit_2(sweep, refused):
    Path("used").mkdir()
    Path("used/sweep.yaml").touch()
    refused(["sweep", "fake.yaml", "--run-dir", "used"], "rlrun sweep --resume used")
