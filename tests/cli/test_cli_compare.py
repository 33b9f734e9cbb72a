"""``rlrun compare``: groups, numbers, outputs, and what it refuses."""

import csv
import io
import json
from pathlib import Path

import pytest

SETTINGS = """\
name: exp
algorithm: {algorithm}
env: {{use: {env}}}
seed: {seed}
stop: {{env_steps: 1000}}
training: {{lr: {lr}, gamma: 0.99}}
callbacks: [{{use: "raises_at_import:Callback"}}]
report: {{smoothing_episodes: 1}}
"""


def _row(steps, mean):
    counters = {"training_iteration": steps, "env_steps": steps, "time_s": steps / 10}
    return {**counters, "episode_return_mean": mean, "episodes_in_mean": 5}


@pytest.fixture
def make_run(rlrun):
    """Write a run whose return is ``slope`` times env steps: 100, 200, ... up to ``last``."""

    def make(path, *, seed=1, lr=0.001, slope=1.0, last=1000, env="CartPole-v1", extra=""):
        folder = Path(path)
        folder.mkdir(parents=True)
        text = SETTINGS.format(algorithm="PPO", env=env, seed=seed, lr=lr)
        (folder / "config.yaml").write_text(text + extra)
        rows = [_row(50, None), *(_row(n, slope * n) for n in range(100, last + 1, 100))]
        lines = [json.dumps(row) + "\n" for row in rows]
        (folder / "metrics.jsonl").write_text("".join(lines))
        return folder

    return make


@pytest.fixture
def two(make_run):
    """A sweep of two learning rates with five seeds each: returns 1.0 to 1.4 and 0.5 to 0.9."""
    Path("group").mkdir()
    Path("group/sweep.yaml").touch()
    for i in range(10):
        lr, slope = (0.001, 1.0) if i < 5 else (0.0001, 0.5)
        seed = i % 5
        make_run(f"group/trials/{i:04d}", seed=seed, lr=lr, slope=slope + 0.1 * seed)


def compared(rlrun, *words):
    code, out, err = rlrun("compare", *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_numbers_of_straight_lines(rlrun, two):
    found = compared(rlrun, "group", "--threshold", "600")
    best, other = found["configurations"]
    assert [each["settings"] for each in (best, other)] == [
        {"training.lr": 0.001},
        {"training.lr": 0.0001},
    ]
    assert [run["seed"] for run in best["runs"]] == [0, 1, 2, 3, 4]
    assert (found["env_steps"], found["threshold_is"]) == (1000, "as given")
    assert best["final"]["value"] == pytest.approx(1200)
    assert best["final"]["kind"] == "interval"
    assert 1000 <= best["final"]["low"] < 1200 < best["final"]["high"] <= 1400
    assert best["area"]["value"] == pytest.approx(1.2 * 550)  # from 100 to 1000
    assert [run["env_steps_to_threshold"] for run in best["runs"]] == [600, 600, 500, 500, 500]
    assert (best["env_steps_to_threshold"], best["seconds_to_threshold"]) == (500, 50)
    assert [run["env_steps_to_threshold"] for run in other["runs"]] == [None, 1000, 900, 800, 700]
    assert other["env_steps_to_threshold"] == 900
    (improvement,) = found["improvements"]
    assert (improvement["better"], improvement["than"], improvement["value"]) == ("A", "B", 1.0)
    assert best["curve"]["env_steps"][0] == 100
    thresholds = found["profile_thresholds"]
    assert best["profile"][thresholds.index(1100.0)] == 0.6
    assert best["profile"][thresholds.index(1100.0) - 1] == 0.8
    assert found["notes"] == []


def test_less_may_be_better(rlrun, two):
    found = compared(rlrun, "group", "--mode", "min", "--threshold", "75")
    assert found["configurations"][0]["settings"] == {"training.lr": 0.0001}
    assert found["configurations"][0]["env_steps_to_threshold"] == 100
    assert found["improvements"][0]["value"] == 1.0


def test_the_default_threshold_is_the_goal_of_all_or_where_the_last_one_ends(rlrun, two, make_run):
    assert compared(rlrun, "group")["threshold"] == pytest.approx(700)
    run = make_run("goal")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("env_steps: 1000", "episode_return_mean: 475"))
    assert compared(rlrun, "goal")["threshold"] == 475


def test_few_seeds_get_a_range_and_no_interval(rlrun, make_run):
    for seed in (1, 2, 3):
        make_run(f"runs/{seed}", seed=seed, slope=seed)
    found = compared(rlrun, "runs/*")
    final = found["configurations"][0]["final"]
    assert final == {"value": 2000, "low": 1000, "high": 3000, "kind": "range"}
    assert (
        "an interval needs 5 seeds (rlrun train FILE --seeds 5): A has 3; the range"
        in found["notes"][0]
    )
    out = rlrun("compare", "runs/*")[1]
    assert "(1,000 to 3,000)" in out
    assert "rlrun train FILE --seeds 5" in out


def test_what_is_left_out_is_named(rlrun, make_run):
    make_run("a", seed=1)
    make_run("b", seed=2)
    make_run("again", seed=2, slope=2)
    make_run("short", seed=3, last=300)
    (make_run("empty", seed=4) / "metrics.jsonl").write_text("")
    notes = compared(rlrun, "a", "b", "again", "short", "empty", "--at", "900")["notes"]
    assert notes[:3] == [
        "b is left out: again has the same settings and seed",
        "empty is left out: it has no episode_return_mean yet",
        "short is left out: it ends at 300 env steps",
    ]
    found = compared(rlrun, "a", "short")
    assert found["env_steps"] == 300
    assert "compared up to 300 env steps, where short ends" in found["notes"][0]


@pytest.mark.parametrize("at", [(), ("--at", "250")])
def test_a_run_whose_values_begin_later_is_left_out(rlrun, make_run, refused, at):
    make_run("runs/one", last=300 if at else 100, slope=2)
    late = make_run("runs/late", lr=0.01)
    kept = (late / "metrics.jsonl").read_text().splitlines(keepends=True)[3:]
    (late / "metrics.jsonl").write_text("".join(kept))
    found = compared(rlrun, "runs/*", *at)
    assert [each["final"]["value"] for each in found["configurations"]] == [2 * found["env_steps"]]
    assert "runs/late is left out: its first value is at 300 env steps" in found["notes"][0]
    refused(
        ("compare", "runs/late", "--at", "250"), "no run has a value within the first 250 env steps"
    )


def test_the_table_fits_a_terminal(rlrun, make_run):
    for i in range(3):
        extra = "".join(f"a_long_name_{j}: {i}{j}\n" for j in range(9))
        make_run(f"a/quite/long/path/to/the/runs/{i}", lr=i, extra=extra)
    out = rlrun("compare", "a/quite/long/path/to/the/runs/*")[1]
    assert max(map(len, out.splitlines())) <= 80
    assert "a_long_name_8=28" in out


def test_a_line_a_run_as_csv(rlrun, two):
    rows = list(csv.DictReader(io.StringIO(rlrun("compare", "group", "--csv")[1])))
    assert len(rows) == 10
    assert [rows[0][key] for key in ("configuration", "training.lr", "seed", "run")] == [
        "A", "0.001", "0", "group/trials/0000",
    ]  # fmt: skip


def test_a_page_and_a_picture(rlrun, two, make_run):
    """The page loads nothing, runs nothing and escapes what comes from the files."""
    make_run("evil", lr='"<b>x"')
    words = ["group", "evil", "--html", "c.html", "--plot", "c.svg", "--threshold", "300"]
    assert rlrun("compare", *words)[0] == 0
    page = Path("c.html").read_text()
    assert not [text for text in ("<script", "http", "src=", "<link", "<b>") if text in page]
    assert "&lt;b&gt;x" in page
    assert page.count("<svg") == 2
    assert page.count("stroke-dasharray") == 1  # of the threshold
    assert "prefers-color-scheme: dark" in page
    assert rlrun("compare", "group", "--plot", "c.png")[0] == 0
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in Path("c.svg").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere: no such run folder"),
        (["nowhere/*"], "nowhere/*: no run or sweep matches"),
        (["a", "--metric", "episode_return_men"], "did you mean episode_return_mean?"),
        (["empty"], "none of these runs has a number for episode_return_mean yet"),
        (["offline"], "offline: its results count no env steps, over which runs are compared"),
        (["a", "other"], "expected runs of one environment, got 2: CartPole-v1, Acrobot-v1"),
        (["a", "--at", "5000"], "no run has 5,000 env steps; the longest has 1,000"),
        (["a", "--plot", "c.gif"], "ends with .png or .svg"),
        (["a", "--threshold", "nan"], "threshold: expected a number"),
        (["a", "--json", "--csv"], "exclude each other"),
        (["a", "--plot", "a.svg", "--html", "a.svg"], "--plot and --html need different files"),
        (["damaged"], "damaged/config.yaml"),
        (["damaged", "empty"], "damaged/config.yaml"),
        (["begun"], "no trial of this sweep has started"),
    ],
)
def test_wrong_input_is_exit_2_with_a_message(refused, make_run, words, says):
    make_run("a")
    make_run("other", env="Acrobot-v1")
    (make_run("empty") / "metrics.jsonl").unlink()
    row = '{"training_iteration": 1, "env_steps": 0, "episode_return_mean": null}\n'
    (make_run("offline") / "metrics.jsonl").write_text(row)
    (make_run("damaged") / "config.yaml").write_bytes(b"\xff\x00: [")
    Path("begun").mkdir()
    Path("begun/sweep.yaml").touch()
    refused(["compare", *words], says)


def test_a_damaged_run_is_left_out_with_a_note(rlrun, two):
    damaged = sorted(Path("group/trials").iterdir())[0] / "config.yaml"
    damaged.write_text("a: [")
    code, out, _ = rlrun("compare", "group", "--json")
    assert code == 0
    note = json.loads(out)["notes"][0]
    assert note.startswith(f"{damaged.parent} is left out: ")
    assert f"{damaged}:1:5: not valid YAML" in note


def test_a_pattern_names_damaged_runs_and_for_compare_those_behind_links(rlrun, make_run):
    make_run("runs/a")
    (make_run("runs/b", seed=2) / "config.yaml").unlink()
    Path("runs/c").symlink_to(make_run("elsewhere", seed=3).absolute())
    Path("runs/notes").mkdir()
    found = compared(rlrun, "runs/*")
    assert [run["seed"] for run in found["configurations"][0]["runs"]] == [1, 3]
    assert found["notes"][0].startswith("runs/b is left out: ")
    code, out, _ = rlrun("rm", "--yes", "runs/*")
    assert (code, out.splitlines()[:2]) == (0, ["removed runs/a", "removed runs/b"])
    assert Path("elsewhere").is_dir()


def test_curves_at_several_env_steps_and_the_way_to_several_thresholds(rlrun, two):
    words = ("--at", "1_000,250", "--threshold", "600,300")
    code, out, err = rlrun("compare", "group", *words)
    assert (code, err) == (0, "")
    tables = [block.splitlines() for block in out.split("\n\n")]
    at, to = ([line.split() for line in table[1:]] for table in tables[2:4])
    assert [row[:3] for row in at] == [
        ["250", "A", "300"],
        *(["250", "B", "175"], ["1,000", "A", "1,200"], ["1,000", "B", "700"]),
    ]
    assert at[0][4] == "to"
    assert to[:2] == [["300", "A", "300", "30.0"], ["300", "B", "500", "50.0"]]
    assert to[3] == ["600", "B", "900", "(4", "of", "5)", "90.0"]
    found = compared(rlrun, "group", *words)
    best, other = found["configurations"]
    assert [each["env_steps"] for each in best["at"]] == [250, 1000]
    assert best["at"][0]["value"] == pytest.approx(300)
    assert best["at"][1] == {"env_steps": 1000, **best["final"]}
    assert other["thresholds"] == [
        {"threshold": 300.0, "env_steps": 500.0, "seconds": 50.0},
        {"threshold": 600.0, "env_steps": 900.0, "seconds": 90.0},
    ]
    assert (found["threshold"], found["env_steps"]) == (600, 1000)
    lower = compared(rlrun, "group", "--mode", "min", *words)
    assert lower["threshold"] == 300


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--at", "50,1000", "at 50: the first value of all runs is at 100"),
        ("--at", "0,1000", "expected a whole number of at least 1, or several with commas"),
        ("--at", "100,,200", "got '100,,200'"),
        ("--threshold", "high", "expected a number, or several with commas"),
        ("--threshold", "1,nan", "threshold: expected a number, got nan"),
    ],
)
def test_wrong_env_steps_and_thresholds_are_refused(rlrun, two, option, value, says):
    code, _, err = rlrun("compare", "group", option, value)
    assert code == 2
    assert says in " ".join(err.replace("│", " ").split())
