"""``rlrun report``: the page of a run and of a sweep, and what it refuses."""

import errno
import json
import re
from pathlib import Path

import pytest

from rlrun.experiment.report.charts import Chart, Curve, ticks
from rlrun.experiment.report.numbers import short
from rlrun.experiment.report.web_page import WebPage
from rlrun.experiment.sweep.effects import Effect
from rlrun.experiment.sweep.trials import Trial

SETTINGS = """\
name: exp
algorithm: "raises_at_import:Algorithm"
env: "raises_at_import:make"
seed: 1
sweep: {metric: episode_return_mean, mode: max}
"""


def cells(page):
    """The rows of all tables."""
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]


def test_the_page_of_a_run(rlrun, counting):
    words = ["fake.yaml", "training.gain=2", "--seed", "9", "--run-dir", "run", "--quiet"]
    assert rlrun("train", *words)[0] == 0
    with Path("run/log.txt").open("a") as log:
        log.write("2026-01-01 00:00:00,000 WARNING rlrun.x: <b>slow</b>\n")
    assert rlrun("report", "run", "--html", "r.html") == (0, "r.html\n", "")
    page = Path("r.html").read_text()
    rows = cells(page)
    assert ["env_steps", "600"] in rows
    assert ["training.gain", "2.0", "command line"] in rows
    assert ["seed", "9", "command line"] in rows
    assert ["training.train_batch_size", "100", "file"] in rows
    assert ["env_runners.num_env_runners", "0"] in rows
    assert "<figcaption>episode_return_mean</figcaption><svg" in page
    assert "&lt;b&gt;slow" in page
    assert not [text for text in ("<script", "http", "src=", "<link", "<b>") if text in page]


def folder(path, name, text):
    Path(path).mkdir(parents=True, exist_ok=True)
    (Path(path) / name).write_text(text)


@pytest.mark.parametrize(
    "meta", ["[1]", '{"sessions": [1]}', '{"sessions": 1}', '{"sessions": [{"argv": 3}]}']
)
def test_code_that_the_settings_name_is_not_imported_and_a_damaged_rest_is_left_out(rlrun, meta):
    folder("run", "config.yaml", SETTINGS)
    folder("run", "metrics.jsonl", '{"half a')
    folder("run", "meta.json", meta)
    code, out, _ = rlrun("report", "run")
    assert (code, out) == (0, "run/report.html\n")
    assert "raises_at_import:Algorithm on raises_at_import:make" in Path(out.strip()).read_text()


def test_a_page_that_cannot_be_written_into_the_run_may_be_written_elsewhere(rlrun):
    folder("a run", "config.yaml", SETTINGS)
    folder("a run", "metrics.jsonl", "")
    Path("a run/report.html").mkdir()
    code, _, err = rlrun("report", "a run")
    assert code == 1
    refusal, hint = err.splitlines()
    assert refusal.endswith("report.html: Is a directory")
    assert hint == "write it elsewhere: rlrun report 'a run' --html FILE"


def test_a_path_that_the_file_system_protects_is_told_without_a_traceback(rlrun, monkeypatch):
    def protected(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted", "run/report.html")

    folder("run", "config.yaml", SETTINGS)
    folder("run", "metrics.jsonl", "")
    monkeypatch.setattr("rlrun.checkpoint.files.replace_text", protected)
    code, _, err = rlrun("report", "run")
    assert (code, err.splitlines()[0]) == (1, "run/report.html: Operation not permitted")


def test_the_curves_of_a_long_run_are_thinned_out(rlrun, monkeypatch):
    def rows(path):
        for i in range(1, 3001):
            every_7th = {"episode_return_mean": None if i % 7 else 2 * i}
            row = {"env_steps": i, "episode_return_mean": i, "evaluation": every_7th}
            statistics = {"entropy": 0.5, "loss": i}
            row["learners"] = {"default_policy": {"learner_stats": statistics}}
            row["timers"] = {"learn_s": 2.0}
            yield row

    folder("run", "config.yaml", SETTINGS)
    monkeypatch.setattr("rlrun.experiment.report.run_page.read_rows", rows)
    assert rlrun("report", "run", "--html", "r.html")[0] == 0
    page = Path("r.html").read_text()
    assert next(row for row in cells(page) if "learn" in row)[:3] == ["learn", "6,000.0", "100%"]
    titles = re.findall("<figcaption>(.*?)</figcaption>", page)
    assert titles == ["episode_return_mean", "loss"]
    lines = [line.split() for line in re.findall('<polyline points="(.*?)"', page)]
    assert len(lines) == 3
    assert all(200 <= len(line) <= 400 for line in lines)
    ends = [line[-1].split(",")[0] for line in lines]
    assert ends == ["374.0", "373.6", "374.0"]  # the last evaluation is of step 2,996


def test_the_page_of_a_sweep(rlrun):
    folder("sweep", "sweep.yaml", SETTINGS)
    trials = [
        {"trial": i, "point": i, "seed": 1, "status": "finished", "score": 10.0 * i}
        | {"settings": {"training.lr": 10.0**-i, "model.use": "ab"[i % 2]}}
        for i in range(1, 5)
    ]
    folder("sweep", "trials.jsonl", "".join(json.dumps(trial) + "\n" for trial in trials))
    assert rlrun("report", "sweep", "--html", "s.html")[0] == 0
    page = Path("s.html").read_text()
    rows = cells(page)
    assert [row for row in rows if row[:1] in (["training.lr"], ["model.use"])] == [
        ["training.lr", "1.00"], ["model.use", "0.20"],
    ]  # fmt: skip
    assert [row[0] for row in rows if "finished" in row] == ["4", "3", "2", "1"]
    assert "episode_return_mean over training.lr" in page
    assert page.count("<polyline") == len(trials)  # of the parallel coordinates


@pytest.mark.parametrize(
    ("values", "scores", "share"),
    [
        ([1, 2, 3, 4], [9, 4, 2, 1], 1.0),
        ([1, 1, 2, 2], [1, 2, 3, 4], 0.8),
        (["a", "b", "a", "b"], [1, 1, 1, 1], 0.0),
        ([1, 2, 3], [5, 5, 5], 0.0),
    ],
)
def test_importance_by_hand(values, scores, share):
    trials = [
        Trial(i, i, 1, {"key": value}, score=score)
        for i, (value, score) in enumerate(zip(values, scores, strict=True))
    ]
    assert Effect.of("key", trials).importance == pytest.approx(share)


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (3, 3, [3]),
        (-0.3, 0.3, [-0.2, 0, 0.2]),
        (17, 40_960, [10_000, 20_000, 30_000, 40_000]),
    ],
)
def test_ticks_are_round(low, high, found):
    assert ticks(low, high) == pytest.approx(found)


def test_numbers_on_an_axis_are_short():
    assert [short(n) for n in (0.25, 9_000, 40_960, 1.5e6, -2e9)] == [
        "0.25",
        "9000",
        "40.96k",
        "1.5M",
        "-2G",
    ]


def test_a_chart_of_one_point_or_equal_values_is_drawn():
    page = WebPage("t")
    page.charts(
        [
            Chart("one", "x", [Curve("", [1], [2])]),
            Chart("flat", "x", [Curve("", [1, 10], [2, 2])], log_x=True),
        ]
    )
    assert "nan" not in page.html()
    assert page.html().count("<svg") == 2


def test_long_names_on_an_axis_are_cut():
    chart = Chart(
        "t", "x", [Curve("", [0, 1], [1, 2])], x_names=["my.nets:Transformer", "[64, 64]"]
    )
    wide = Chart("t", "x", chart.curves, x_names=["my.nets:Transformer"] * 4)
    assert chart.x_ticks == [(0, "my.nets:Transformer"), (1, "[64, 64]")]
    assert wide.x_ticks[3] == (3, "my.nets:Tr…")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere", "nowhere: no such run folder"),
        ("empty", "not a run folder"),
        ("damaged", "config.yaml: the file is damaged: it names no algorithm or no env"),
        ("sweep", "trials.jsonl: cannot be read"),
        ("points", "trials.jsonl: cannot be read"),
    ],
)
def test_wrong_input_is_exit_2_with_a_message(refused, path, says):
    Path("empty").mkdir()
    folder("damaged", "config.yaml", "seed: 1\n")
    folder("sweep", "sweep.yaml", SETTINGS)
    folder("sweep", "trials.jsonl", "{}\n")
    folder("points", "sweep.yaml", SETTINGS)
    trials = [{"trial": 1, "point": point, "seed": 1, "settings": {}} for point in ({}, 1)]
    folder("points", "trials.jsonl", "".join(json.dumps(trial) + "\n" for trial in trials))
    refused(["report", path], says)
