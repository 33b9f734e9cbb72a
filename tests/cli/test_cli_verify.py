"""``rlrun verify``: arguments, exit codes and messages."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rlrun.experiment.verify.cases import CASES
from rlrun.experiment.verify.verify import CaseResult, SeedResult, Verification


def result(number):
    numbers = {"training": number, "goal": number, "evaluation": number}
    curve = ((50, 0.0), (100, number))
    facts = {"folder": Path("f"), "env_steps": 100, "trained": True, "error": None, "session": {}}
    seeds = (SeedResult(seed=seed, curve=curve, **numbers, **facts) for seed in (1, 2, 3))
    return CaseResult(CASES[0], tuple(seeds), 3)


@pytest.fixture
def verify(rlrun):
    """Call ``rlrun verify WORDS``; returns the exit code, stdout and stderr."""
    return partial(rlrun, "verify")


@pytest.fixture
def done(monkeypatch):
    """The results of a stand-in for the work, and the arguments of its calls."""
    given = {"results": (result(500.0),), "interrupted": False, "calls": []}

    def stand_in(names, *, notice, **options):
        notice("a notice")
        given["calls"].append((names, options))
        return Verification(given["results"], given["interrupted"])

    monkeypatch.setattr("rlrun.experiment.verify.verify.verify", stand_in)
    return given


def test_arguments_and_the_table(verify, done):
    code, out, err = verify("ppo-cartpole", "--seeds", "5", "--results", "d", "--jobs", "2")
    assert (code, err) == (0, "")
    options = {"seeds": range(1, 6), "results": Path("d"), "jobs": 2, "train": True}
    assert done["calls"] == [(["ppo-cartpole"], options)]
    notice, heads, row = out.splitlines()
    assert notice == "a notice"
    assert heads.split()[0] == "case"
    cells = "ppo-cartpole evaluation 100,000 100 500 500 500 to 500 reached"
    assert row.split() == cells.split()


def test_defaults(verify, done):
    verify("--no-train")
    place = {"results": Path("runs/verify"), "jobs": None}
    options = {"seeds": range(1, 4), "train": False, **place}
    assert done["calls"] == [([], options)]


def test_a_range_of_seeds(verify, done):
    verify("--seeds", "11-13")
    assert list(done["calls"][0][1]["seeds"]) == [11, 12, 13]


@pytest.mark.parametrize("text", ["0", "3-2", "a", "1-", "-1", "1-2-3"])
def test_a_wrong_range_of_seeds_is_refused(verify, done, text):
    code, _, err = verify("--seeds", text)
    assert code == 2
    assert f"'{text}' is neither a number of seeds, such as 3, nor a range, such as 11-13" in err
    assert not done["calls"]


@pytest.mark.parametrize(("number", "interrupted", "code"), [(499, False, 1), (500, True, 130)])
def test_exit_codes(verify, done, number, interrupted, code):
    done |= {"results": (result(500.0), result(number)), "interrupted": interrupted}
    assert verify()[0] == code


def test_stdout_holds_only_the_json_object(verify, done):
    code, out, err = verify("--json")
    assert (code, err) == (0, "a notice\n")
    (case,) = json.loads(out)["cases"]
    (bar,) = case["bars"]
    assert (bar["expected"], bar["reached"], bar["verdict"]) == (500, 500, case["verdict"])
    assert (bar["spread"], case["verdict"]) == ([500, 500], "reached")
    assert [seed["seed"] for seed in case["seeds"]] == [1, 2, 3]


def test_markdown(verify, done):
    assert verify("--markdown", "docs/page.txt")[0] == 0
    assert "| ppo-cartpole | evaluation |" in Path("docs/page.txt").read_text()
    assert Path("docs/page.png").exists()
    assert "ppo-cartpole" in json.loads(Path("docs/page.json").read_text())


def test_a_failed_run_is_reported_while_the_page_keeps_its_record(verify, done):
    verify("--markdown", "docs/page.txt")
    recorded = Path("docs/page.json").read_text()
    (seed, *_), nothing = result(500.0).seeds, {"training": None, "goal": None, "evaluation": None}
    failed = replace(seed, error="the run failed", trained=False, **nothing)
    done["results"] = (CaseResult(CASES[0], (failed,), 3),)
    code, out, _ = verify("--markdown", "docs/page.txt")
    assert (code, out.split()[-1]) == (1, "failed")
    assert Path("docs/page.json").read_text() == recorded
    done["results"] = (CaseResult(CASES[0], (), 3),)
    code, out, _ = verify("--no-train", "--markdown", "docs/page.txt")
    assert (code, out.split()[-1]) == (0, "reached")


def test_list(verify):
    code, out, _ = verify("--list")
    assert code == 0
    names = [case.name for case in CASES for _ in case.references]
    assert [line.split()[0] for line in out.splitlines()[1:]] == names
    assert len(verify("--list", "appo-frozenlake")[1].splitlines()) == 2


@pytest.mark.parametrize("words", [["ppo-cartpol"], ["--list", "ppo-cartpol"]])
def test_an_unknown_case_is_exit_2(verify, words):
    code, _, err = verify(*words)
    assert code == 2
    assert "there is no case 'ppo-cartpol' - did you mean ppo-cartpole?" in err
