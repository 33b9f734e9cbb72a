"""``rlrun ls``, ``show``, ``diff``, ``rerun``, ``rm``, ``du`` and ``tail``, and completed words."""

import io
import json
import os
import sys
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest

from rlrun.experiment.report.sinks import follow_rows, read_rows
from rlrun.experiment.run_folder import RunFolder, plain_settings

SETTINGS = """\
name: exp
algorithm: PPO
env: {{use: CartPole-v1}}
seed: {seed}
stop: {{env_steps: 1000}}
training: {{lr: {lr}}}
checkpoint: {{metric: episode_return_mean, mode: max}}
callbacks: [{{use: "raises_at_import:Callback"}}]
report: {{smoothing_episodes: 2}}
"""


def _row(steps, mean, episodes=5):
    counters = {"training_iteration": steps // 100, "env_steps": steps, "time_s": 60}
    return {**counters, "episode_return_mean": mean, "episodes_in_mean": episodes}


@pytest.fixture
def make_run(rlrun):
    """Write the folder of a run with a row for each 100 env steps; a lucky mean comes first."""

    def make(path, *, outcome="finished", seed=1, lr=0.001, last=1000, best=90, hour=10):
        folder = Path(path)
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(SETTINGS.format(seed=seed, lr=lr))
        rows = [_row(100, 500, episodes=1), _row(200, best), _row(last, 50)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        session = {"reason": "its reason", "argv": ["/bin/rlrun", "train", "a.yaml"]}
        meta = {"created": f"2026-01-01T{hour}:00:00+00:00", "outcome": outcome}
        (folder / "meta.json").write_text(json.dumps(meta | {"sessions": [session]}))
        return folder

    return make


@pytest.fixture
def make_sweep(make_run):
    def make(path):
        home = Path(path)
        make_run(home / "trials/0001", best=10)
        make_run(home / "trials/0002", best=70, outcome="running", last=500)
        (home / "sweep.yaml").write_text(SETTINGS.format(seed=1, lr=0.1))
        (home / "trials.jsonl").write_text("{}\n{}\n{}\n")
        (home / "meta.json").write_text(json.dumps({"outcome": "interrupted"}))
        return home

    return make


def listed(rlrun, *words):
    code, out, err = rlrun("ls", *words, "--json")
    assert (code, err) == (0, "")
    return {os.path.relpath(row["path"]): row for row in json.loads(out)}


def test_a_run_is_listed_with_its_state_progress_and_best_value(rlrun, make_run):
    make_run("runs/exp/a", outcome="interrupted", last=400)
    code, out, _ = rlrun("ls")
    assert code == 0
    heads, row = (line.split() for line in out.splitlines())
    assert heads == ["run", "state", "done", "best", "size", "age"]
    assert row[:5] == ["exp/a", "interrupted", "40%", "90", row[4]]
    found = listed(rlrun)["runs/exp/a"]
    assert found["size_bytes"] == sum(path.stat().st_size for path in Path("runs/exp/a").iterdir())
    assert (found["best"], found["progress"], found["reason"]) == (90, 0.4, "its reason")


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("config.yaml", None, "config.yaml: cannot be read"),
        ("config.yaml", b"a: [", "not valid YAML"),
        ("config.yaml", b"\xff\xfe", "config.yaml: cannot be read"),
        ("config.yaml", b"[1, 2]", "the file is damaged"),
        ("meta.json", None, "meta.json: missing or damaged"),
        ("meta.json", b'{"outcome"', "meta.json: missing or damaged"),
        ("meta.json", b'[["x"]]', "meta.json: missing or damaged"),
        ("meta.json", b"[" * 99_999, "meta.json: missing or damaged"),
    ],
)
def test_a_damaged_run_is_a_row_that_can_be_shown_and_removed(rlrun, make_run, file, content, says):
    path = make_run("runs/exp/a") / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    make_run("runs/exp/b")
    found = listed(rlrun)
    assert found["runs/exp/a"]["state"] == "damaged"
    assert says in found["runs/exp/a"]["reason"]
    assert found["runs/exp/b"]["state"] == "finished"
    assert "damaged" in rlrun("show", "runs/exp/a")[1]
    assert rlrun("rm", "--yes", "runs/exp/a")[0] == 0
    assert list(listed(rlrun)) == ["runs/exp/b"]


@pytest.mark.parametrize(
    "settings", ["stop: 3", "checkpoint: x", "report: {smoothing_episodes: a}"]
)
def test_settings_of_other_forms_and_damaged_rows_are_no_tracebacks(rlrun, make_run, settings):
    folder = make_run("runs/exp/a", outcome="failed")
    (folder / "config.yaml").write_text(f"algorithm: PPO\nenv: CartPole-v1\n{settings}\n")
    (folder / "metrics.jsonl").write_bytes(b'\x00{"a"\n{"training_iteration": 1}\n{"train')
    found = listed(rlrun)["runs/exp/a"]
    assert (found["state"], found["best"], found["progress"]) == ("failed", None, None)
    assert rlrun("show", "runs/exp/a")[0] == 0


def test_a_run_whose_process_is_gone_was_killed(rlrun, make_run):
    folder = RunFolder(make_run("runs/exp/a", outcome="running"))
    assert listed(rlrun)["runs/exp/a"]["state"] == "killed"
    folder.lock()
    with closing(folder):
        assert listed(rlrun)["runs/exp/a"]["state"] == "running"


def test_runs_are_filtered_and_sorted(rlrun, make_run):
    make_run("runs/x/a", hour=10, best=80, lr=0.001)
    make_run("runs/x/b", hour=12, best=60, lr=0.01, outcome="failed")
    make_run("runs/y/c", hour=11, best=99, lr=0.001)
    assert [Path(path).name for path in listed(rlrun)] == ["b", "c", "a"]
    assert [Path(path).name for path in listed(rlrun, "--sort", "best")] == ["c", "a", "b"]
    assert [Path(path).name for path in listed(rlrun, "--where", "training.lr=1e-3")] == ["c", "a"]
    filters = ("--where", "state=f*", "--where", "env=Cart*", "--where", "env.use=CartPole-v1")
    assert [Path(path).name for path in listed(rlrun, *filters, "--sort", "name")] == list("abc")
    assert list(listed(rlrun, "runs/y")) == ["runs/y/c"]
    assert not listed(rlrun, "--where", "training.nothing=1")


def test_runs_within_sweeps_are_filtered_where_they_are_shown(rlrun, make_run, make_sweep):
    make_sweep("runs/x/sweep")
    filters = ("--where", "training.lr=0.001", "--where", "state=finished")
    code, out, err = rlrun("ls", *filters)
    assert (code, out) == (0, "")
    assert err == "no such runs in runs; use --members to search groups and sweeps\n"
    shown = rlrun("ls", *filters, "--members")[1]
    assert ["trials/0001" in shown, "trials/0002" in shown] == [True, False]
    assert not listed(rlrun, "--members", "--where", "training.lr=7")


def test_the_first_and_the_last_command_of_a_run_are_shown(rlrun, make_run):
    path = make_run("runs/exp/a") / "meta.json"
    found = json.loads(path.read_text())
    found["sessions"].append({"argv": ["rlrun", "train", "--resume", "exp"]})
    path.write_text(json.dumps(found))
    shown = rlrun("show", "exp/a")[1]
    assert "command     rlrun train a.yaml\n" in shown
    assert "resumed     rlrun train --resume exp\n" in shown


def test_a_sweep_is_one_row_with_its_runs_on_request(rlrun, make_sweep):
    make_sweep("runs/exp/s")
    found = listed(rlrun)["runs/exp/s"]
    assert (found["kind"], found["state"], found["best"]) == ("sweep", "interrupted", 70)
    assert found["progress"] == pytest.approx((1.0 + 0.5) / 3)  # one has not begun
    assert "0001" not in rlrun("ls")[1]
    assert "  trials/0001" in rlrun("ls", "--members")[1]
    assert list(listed(rlrun, "exp/s", "--sort", "best")) == [
        "runs/exp/s/trials/0002",
        "runs/exp/s/trials/0001",
    ]


@pytest.mark.parametrize(("mode", "best"), [("min", 200), ("max", 500)])
def test_the_best_of_a_sweep_is_its_best_trials_score(rlrun, make_sweep, mode, best):
    home = make_sweep("runs/exp/s")
    with (home / "sweep.yaml").open("a") as file:
        file.write(f"sweep: {{metric: env_steps, mode: {mode}}}\n")
    trials = [
        {"trial": i, "point": i, "seed": 1, "settings": {}, "status": status, "score": score}
        for i, (status, score) in enumerate(
            [("finished", 200), ("finished", 500), ("stopped", 100), ("waiting", None)], 1
        )
    ]
    (home / "trials.jsonl").write_text("".join(json.dumps(trial) + "\n" for trial in trials))
    assert listed(rlrun)["runs/exp/s"]["best"] == best
    assert f"{best} (env_steps)" in rlrun("show", home)[1]


def test_two_runs_differ_in_settings_and_results(rlrun, make_run):
    make_run("runs/exp/a", last=26_624)
    make_run("runs/exp/b", lr=0.01, best=95)
    found = json.loads(rlrun("diff", "exp/a", "runs/exp/b", "--json")[1])
    assert found["settings"] == {"training.lr": [0.001, 0.01]}
    assert found["results"]["best episode_return_mean"] == [90, 95]
    shown = rlrun("diff", "exp/a", "exp/b")[1]
    assert "training.lr  0.001  0.01" in shown
    assert ["env_steps", "26,624", "1,000"] in [line.split() for line in shown.splitlines()]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_foreign_folder_steers_no_terminal(rlrun, make_run, monkeypatch, is_terminal):
    """Neither by escape codes nor by rich's markup, in names and in what its files say."""
    folder = make_run("runs/exp/a[red]\x1b]0;title\x07")
    meta = (folder / "meta.json").read_text().replace("its reason", r"\u001b[2Jreason\u202e")
    (folder / "meta.json").write_text(meta)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setenv("TERM", "dumb")
    for words in (["ls"], ["du"], ["show", folder], ["diff", folder, folder]):
        out = rlrun(*words)[1]
        assert "a[red]\\x1b]0;title\\x07" in out
        assert all(each.isprintable() for line in out.splitlines() for each in line)
    assert r"\x1b[2Jreason\u202e" in rlrun("show", folder)[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("config.yaml", ["check"]),
        ("config.yaml", ["train", "--resume"]),
        ("meta.json", ["rollout"]),
    ],
)
def test_what_is_wrong_with_a_foreign_folder_steers_no_terminal(rlrun, make_run, name, words):
    folder = make_run("runs/exp/a\x1b]0;title\x07")
    with (folder / name).open("a") as file:
        file.write('"\\e[2J": 1\n')
    code, _, err = rlrun(*words, folder)
    assert code == 2
    assert all(each.isprintable() for line in err.splitlines() for each in line)


def test_disk_use_adds_up(rlrun, make_sweep, make_run):
    make_sweep("runs/exp/s")
    (make_run("runs/exp/a") / "checkpoints/000001").mkdir(parents=True)
    Path("runs/exp/a/checkpoints/000001/weights").write_bytes(bytes(30_000))
    Path("runs/exp/a/checkpoints/best").symlink_to("000001")
    out = rlrun("du")[1].splitlines()
    assert out[1].split()[:3] == ["exp/a", "30", "kB"]
    files = [path for path in Path("runs").rglob("*") if path.is_file() and not path.is_symlink()]
    sizes = json.loads(rlrun("du", "--json")[1])
    whole = sum(path.stat().st_size for path in files if "best" not in path.parts)
    assert sum(sum(each.values()) for each in sizes.values()) == whole


def test_removing_asks_and_leads_latest_to_the_newest_that_is_left(rlrun, make_run, monkeypatch):
    for name, hour in (("a", 10), ("b", 11), ("c", 12)):
        make_run(f"runs/exp/{name}", hour=hour)
    latest = Path("runs/exp/latest")
    latest.symlink_to("c")
    for answer in ("n\n", ""):  # with no answer, stdin is /dev/null
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        code, _, err = rlrun("rm", "exp/latest")
        assert (code, "--yes removes without asking" in err) == (1, True)
    assert len(listed(rlrun)) == 3
    assert rlrun("rm", "--yes", "exp/latest")[0] == 0
    assert latest.resolve().name == "b"
    assert rlrun("rm", "--yes", "runs/exp/*")[0] == 0
    assert not Path("runs/exp").exists()


def test_a_run_that_never_began_leaves_latest_at_the_newest_before_it(make_run):
    for name, hour in (("a", 12), ("b", 11)):
        make_run(f"runs/exp/{name}", hour=hour)
    Path("runs/exp/latest").symlink_to("a")
    refused = RunFolder.create("exp", 1)
    assert Path("runs/exp/latest").resolve() == refused.home
    with closing(refused):
        refused.discard()
    assert Path("runs/exp/latest").readlink() == Path("a")


def test_a_folder_of_the_users_named_latest_stays_and_nothing_is_left_beside_it(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("runs/exp/latest").mkdir(parents=True)
    with closing(RunFolder.create("exp", 1)) as made:
        assert {path.name for path in Path("runs/exp").iterdir()} == {"latest", made.home.name}


def test_where_latest_leads_nowhere_the_newest_run_is_named(refused, make_run):
    make_run("runs/exp/a", hour=10)
    make_run("runs/exp/b", hour=11)
    (make_run("runs/exp/damaged", hour=9) / "meta.json").write_text("{")
    Path("runs/exp/latest").symlink_to("c")
    refused(("show", "exp"), "the newest run in it is runs/exp/b")
    meta = make_run("runs/exp/west", hour=10) / "meta.json"
    meta.write_text(json.dumps({"created": "2026-01-01T09:00:00-08:00", "sessions": None}))
    meta = make_run("runs/exp/east", hour=10) / "meta.json"
    meta.write_text(json.dumps({"created": "2026-01-01T23:00:00+09:00", "sessions": None}))
    refused(("show", "exp"), "the newest run in it is runs/exp/west")


def test_checkpoints_are_no_runs(rlrun, refused, make_run):
    run = make_run("runs/exp/a")
    newest = run / "checkpoints/000010"
    newest.mkdir(parents=True)
    (newest / "config.yaml").write_text((run / "config.yaml").read_text())
    (newest / "manifest.json").write_text("{}")
    (run / "checkpoints/latest").symlink_to("000010")
    says = "checkpoints are not runs; name the folder that contains them"
    for path in (run / "checkpoints", newest):
        assert listed(rlrun, path) == {}
        for words in (("show",), ("rm", "--yes")):
            refused((*words, path), says)
    refused(("train", "--resume", run / "checkpoints"), says)
    refused(("rm", "--yes", run / "checkpoints/latest"), "name the folder that contains them")
    refused(("rollout", run / "checkpoints"), "name the folder that contains them")
    assert newest.is_dir()


def test_a_run_that_is_named_twice_is_removed_once(rlrun, make_run):
    make_run("runs/exp/a")
    Path("runs/exp/latest").symlink_to("a")
    code, out, err = rlrun("rm", "--yes", "exp/a", "runs/exp/*", "exp/latest")
    assert (code, err) == (0, "")
    assert out == "removed runs/exp/a\n"


def test_what_must_stay_is_not_removed(rlrun, refused, make_run, make_sweep):
    make_sweep("runs/exp/s")
    running = RunFolder(make_run("runs/exp/a"))
    Path("runs/exp/latest").symlink_to("a")
    running.lock()
    with closing(running):
        refused(("rm", "--yes", "exp/a"), "a process is running in this folder")
    refused(("rm", "--yes", "exp"), "a folder of runs; name one, or 'runs/exp/*'")
    refused(("rm", "--yes", "exp/s/trials/0001"), "only runs/exp/s as a whole")
    refused(("rm", "--yes", "exp/s/trials"), "not a run folder")
    refused(("rm", "--yes", "none/*"), "no run or sweep matches")
    assert len(listed(rlrun)) == 2


def test_tail_follows_until_the_run_ends_and_through_a_resumption(make_run):
    path = make_run("runs/exp/a") / "metrics.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    later = json.dumps(_row(1100, 1)) + "\n"

    def begins_a_line():
        with path.open("a") as file:
            file.write(later[:9])
        return True

    def ends_it():
        with path.open("a") as file:
            file.write(later[9:])
        return True

    def is_resumed_from_the_first_row():
        path.write_text(first)
        return True

    def ends():
        with path.open("a") as file:
            file.write(others[0])
        return False

    states = iter([lambda: True, begins_a_line, ends_it, is_resumed_from_the_first_row, ends])

    def is_live():
        return next(states)()

    rows = list(follow_rows(path, is_live, last=2, pause_s=0.0))
    assert [row["env_steps"] for row in rows] == [200, 1000, 1100, 200]


def test_what_cannot_be_read_does_not_hide_other_runs(rlrun, make_run, monkeypatch, caplog):
    def forbidding(call):
        def checked(path, **options):
            if "closed" in str(path):
                raise PermissionError(13, "Permission denied", str(path))
            return call(path, **options)

        return checked

    make_run("runs/exp/a")
    make_run("runs/exp/closed")
    make_run("runs/closed/b")
    monkeypatch.setattr("os.scandir", forbidding(os.scandir))
    monkeypatch.setattr("rlrun.experiment.run_index.read_rows", forbidding(read_rows))
    code, out, _ = rlrun("ls", "--sort", "name")
    assert code == 0
    rows = [line.split() for line in out.splitlines()[1:]]
    assert [row[:5] for row in rows] == [
        ["exp/a", "finished", "100%", "90", rows[0][4]],
        ["exp/closed", "finished", "100%", "-", "0"],
    ]
    assert "runs/closed: Permission denied" in caplog.text
    assert "runs/exp/closed/metrics.jsonl: Permission denied" in caplog.text
    assert rlrun("du")[0] == 0


def test_results_are_read_only_where_they_are_shown(rlrun, make_run, monkeypatch):
    def read(path, **options):
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr("rlrun.experiment.run_index.read_rows", read)
    make_run("runs/exp/a")
    for words in (("du",), ("ls", "--where", "state=failed"), ("rm", "exp/a", "--yes")):
        assert rlrun(*words)[0] == 0


def test_settings_are_read_only_of_runs_whose_state_fits(rlrun, make_run, monkeypatch):
    def read(config):
        found.append(config.parent.name)
        return plain_settings(config)

    monkeypatch.setattr("rlrun.experiment.run_index.plain_settings", read)
    for outcome in ("finished", "failed", "running"):
        make_run(f"runs/exp/{outcome}", outcome=outcome)
    make_run("runs/exp/damaged", outcome="failed").joinpath("config.yaml").write_text("a: [")
    for state, read_of, shown in (
        ("failed", ["damaged", "failed"], ["failed"]),
        ("killed", ["running"], ["running"]),
        ("damaged", ["damaged", "failed", "finished", "running"], ["damaged"]),
    ):
        found = []
        lr = () if state == "damaged" else ("--where", "training.lr=0.001")
        runs = listed(rlrun, *lr, "--where", f"state={state}")
        assert [Path(run).name for run in runs] == shown
        assert sorted(found) == read_of


def test_results_are_not_all_in_memory_at_once(rlrun, make_run):
    folder = make_run("runs/exp/a")
    row = json.dumps({**_row(1000, 50), "more": ["x" * 10] * 1000}) + "\n"
    (folder / "metrics.jsonl").write_text(row * 50)
    named = (("compare", "runs/exp/a"), ("tail", "exp/a", "-n", "1"), ("report", "exp/a"))
    for words in (("ls",), *named):
        rlrun(*words)  # what it imports does not count
        tracemalloc.start()
        assert rlrun(*words)[0] == 0
        assert tracemalloc.get_traced_memory()[1] < len(row) * 40
        tracemalloc.stop()


def test_tail_shows_the_last_rows(rlrun, make_run):
    make_run("runs/exp/a")
    lines = rlrun("tail", "exp", "-n", "1", "--key", "episodes_in_mean")
    assert lines[0] == 2  # exp has no latest
    _, out, _ = rlrun("tail", "exp/a", "-n", "1", "--key", "episodes_in_mean")
    heads, row = out.splitlines()
    assert heads.split()[-1] == "episodes_in_mean"
    assert row.split() == ["10", "1,000", "50", "-", "-", "0:01:00", "5"]
    assert json.loads(rlrun("tail", "exp/a", "-n", "1", "--json")[1]) == _row(1000, 50)


def test_columns_of_tail_with_equal_last_parts_have_their_whole_names(rlrun, make_run):
    make_run("runs/exp/a")
    keys = ("x/entropy", "y/entropy", "z/time")
    _, out, _ = rlrun("tail", "exp/a", *(word for key in keys for word in ("--key", key)))
    assert out.splitlines()[0].split()[-4:] == ["time", *keys]


def test_tail_of_a_run_without_a_row_yet_shows_all_that_come(tmp_path):
    path = tmp_path / "metrics.jsonl"
    states = iter([True, False])

    def is_live():
        if not (goes_on := next(states)):
            path.write_text("".join(json.dumps(_row(100 * n, 1)) + "\n" for n in range(1, 4)))
        return goes_on

    rows = list(follow_rows(path, is_live, last=1, pause_s=0.0))
    assert [row["env_steps"] for row in rows] == [100, 200, 300]


def test_a_run_is_trained_again_with_its_settings(rlrun):
    small = ("env_runners.num_env_runners=0", "training.train_batch_size=64")
    words = ("--algorithm", "PG", "--env", "CartPole-v1", "stop.training_iteration=1", *small)
    assert rlrun("train", *words, "name=exp", "--run-dir", "runs/exp/a", "--quiet")[0] == 0
    assert rlrun("rerun", "exp/a", "training.lr=0.5", "--run-dir", "again", "--quiet")[0] == 0
    found = json.loads(rlrun("diff", "exp/a", "again", "--json")[1])
    assert list(found["settings"]) == ["training.lr"]
    left, right = (next(read_rows(Path(run) / "metrics.jsonl")) for run in ("runs/exp/a", "again"))
    assert left["episode_return_mean"] == right["episode_return_mean"]


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        ("rlrun sh", ["show"]),
        ("rlrun show e", ["exp", "exp/a"]),
        ("rlrun rollout exp/", ["exp/a"]),
        ("rlrun train --resume exp/", ["exp/a"]),
        ("rlrun train ppo/cartp", ["ppo/cartpole"]),
        ("rlrun train own", ["own.yaml"]),
        ("rlrun check ow", ["own.yaml"]),
        ("rlrun ls --sort s", ["state", "size"]),
        ("rlrun nonsense x", []),
    ],
)
def test_a_shell_completes_commands_runs_and_configs(rlrun, make_run, monkeypatch, words, offers):
    make_run("runs/exp/a")
    Path("own.yaml").touch()
    monkeypatch.setenv("_RLRUN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    _, out, err = rlrun()
    assert (out.split(), err) == (offers, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(rlrun, monkeypatch, shell):
    monkeypatch.setenv("_RLRUN_COMPLETE", f"source_{shell}")
    _, out, err = rlrun()
    assert f"complete_{shell}" in out
    assert not err


def test_a_sweep_has_no_panel(refused, make_sweep):
    home = make_sweep("runs/exp/s")
    (home / "meta.json").write_text(
        '{"outcome": "finished", "sessions": [{"reason": "2 finished"}]}'
    )
    refused(["show", home, "--svg", "x.svg"], "a sweep; name one of its runs")


def test_a_panel_and_json_exclude_each_other(refused, make_run):
    make_run("runs/exp/a")
    refused(["show", "runs/exp/a", "--json", "--svg", "x.svg"], "--json and --svg exclude")
    assert not Path("x.svg").exists()


def test_the_panel_of_a_run_is_a_picture(rlrun, make_run):
    make_run("runs/exp/a")
    assert rlrun("show", "runs/exp/a", "--svg", "new/panel.svg")[0] == 0
    picture = Path("new/panel.svg").read_text()
    assert picture.startswith("<svg")
    assert all(text in picture for text in ("CartPole-v1", "env_steps", "1,000"))
    assert "url(" not in picture.replace("url(#", "")


@pytest.mark.parametrize(
    ("words", "is_folder"),
    [
        (["show", "run", "--svg"], False),
        (["report", "run", "--html"], False),
        (["compare", "run", "--plot"], False),
        (["compare", "run", "--html"], False),
        (["rollout", "run", "--save"], False),
        (["rollout", "run", "--video"], True),
        (["export", "run", "--onnx"], False),
        (["export", "run", "--torchscript"], False),
        (["verify", "--markdown"], False),
    ],
)
def test_what_cannot_be_written_is_told_before_any_work(rlrun, words, is_folder, monkeypatch):
    """There is no run, which would be told otherwise."""
    Path("file.png").touch()
    code, _, error = rlrun(*words, "file.png/below.png")
    assert code == 2
    assert "file.png/below.png cannot be written" in " ".join(error.split())
    place = "file.png" if is_folder else "."
    code, _, error = rlrun(*words, place)
    assert code == 2
    assert f"{place} is {'not ' if is_folder else ''}a folder" in " ".join(error.split())
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != Path.cwd())
    code, _, error = rlrun(*words, "missing/other.png")
    assert code == 2
    assert "missing/other.png cannot be written" in " ".join(error.split())
