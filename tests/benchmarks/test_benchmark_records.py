"""The arithmetic of the benchmarks: a wrong ratio would be a wrong claim on the front page."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import (
    equal_work,
    kinds_of_work,
    learning,
    memory,
    parts,
    plot,
    replay_work,
    report,
    scaling,
    slow_env,
    start_up,
    summary,
    sweep,
    time_to_solve,
)
from benchmarks.environments import STEP_S, slow_cartpole
from benchmarks.harness import (
    RLRUN,
    SB3,
    MeasurementError,
    environment,
    run_rounds,
    wait_until_quiet,
)
from benchmarks.peers.driver import Iteration, measure_throughput, throughput
from benchmarks.peers.replay_driver import EnvStepClock
from benchmarks.record import RESULTS, Record, RecordError


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "record.json", "equal_work", {"steps": 10}, machine={"cores": 2})


def test_contenders_choose_the_kernels_for_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("OTHER", "stays")
    passed_on = environment()
    assert "OPENBLAS_CORETYPE" not in passed_on
    assert (passed_on["OTHER"], passed_on["OPENBLAS_NUM_THREADS"]) == ("stays", "1")


def test_ratio_is_taken_round_by_round() -> None:
    # The machine ran at half speed in round 2: the ratio is 2 in both, of medians it would not be.
    ratio = summary.paired_ratio({1: 20.0, 2: 10.0, 3: 99.0}, {1: 10.0, 2: 5.0})
    assert ratio == summary.Range(2.0, 2.0, 2.0)


def test_range_of_an_even_number_of_values() -> None:
    assert summary.Range.of([4.0, 1.0, 2.0, 10.0]) == summary.Range(3.0, 1.0, 10.0)
    assert summary.Range.of([]) is None
    assert summary.cell({1: 1234.5}, 1) == "1,234.5 (1,234.5\N{EN DASH}1,234.5)"


def test_rounds_interleave_and_failures_do_not_stop_them(record: Record) -> None:
    seen = []

    def measure(contender: object, round_: int) -> dict[str, object]:
        seen.append((contender, round_))
        if contender is SB3 and round_ == 1:
            raise MeasurementError("ends with\nthe reason")
        return {"env_steps_per_s": 10.0 * round_}

    run_rounds(record, [RLRUN, SB3], 2, measure)
    assert seen == [(RLRUN, 1), (SB3, 1), (RLRUN, 2), (SB3, 2)]
    assert record.values(SB3.name, "env_steps_per_s") == {2: 20.0}
    assert record.errors() == {SB3.name: "ends with\nthe reason"}


def test_speeds_are_not_recorded_while_the_machine_is_busy() -> None:
    loads, pauses = iter([3.0, 1.5, 0.4]), list[float]()
    wait_until_quiet(lambda: (next(loads),), pauses.append)
    assert len(pauses) == 2
    with pytest.raises(SystemExit, match="speeds measured beside other work are not recorded"):
        wait_until_quiet(lambda: (3.0,), pauses.append)


def test_time_of_environments_is_taken_from_both_frameworks(record: Record) -> None:
    for round_, slowness in ((1, 1.0), (2, 2.0)):
        for name, total_ms in zip(kinds_of_work.FRAMEWORKS, (30.0, 70.0, 10.0), strict=True):
            result = {"total_ms": slowness * total_ms, "env_steps_per_s": 1.0}
            record.add(f"{name}, pendulum", round_, result=result)
        bare = {"total_ms": slowness * 15.0}
        record.add(f"{kinds_of_work.BARE}, pendulum", round_, result=bare)
    record.machine = Record(record.path, "", {}).machine
    row = kinds_of_work.table(record).splitlines()[2]
    assert row.startswith("| Pendulum-v1")
    assert row.split(" | ")[3] == "2.33 (2.33\N{EN DASH}2.33)"
    assert row.endswith("| 3.00 (3.00\N{EN DASH}3.00) | 0.50 (0.50\N{EN DASH}0.50) |")
    for name, total_ms in zip(kinds_of_work.FRAMEWORKS, (12.0, 24.0, 10.0), strict=True):
        record.add(f"{name}, lstm", 1, result={"total_ms": total_ms})
    assert kinds_of_work.table(record).splitlines()[3].endswith("| \N{EN DASH} | \N{EN DASH} |")


def test_a_resumed_record_repeats_only_failures(record: Record) -> None:
    record.machine = Record(record.path, "", {}).machine
    record.add(RLRUN.name, 1, result={"env_steps_per_s": 1.0})
    record.add(SB3.name, 1, error="no")
    resumed = Record.open("equal_work", {"steps": 10}, path=record.path, resume=True)
    assert resumed.has(RLRUN.name, 1)
    assert not resumed.has(SB3.name, 1)
    assert resumed.sessions == 2
    with pytest.raises(RecordError, match="other settings \\(steps\\)"):
        Record.open("equal_work", {"steps": 20}, path=record.path, resume=True)
    assert not Record.open("equal_work", {}, path=record.path, resume=False).measurements


def test_what_is_learned_is_a_row_a_case_with_intervals_from_five_seeds_on(tmp_path: Path) -> None:
    few, many = learning.CASES[:2]
    for case, seeds in ((few, 3), (many, 6)):
        path = learning.record_path(case, tmp_path)
        record = Record(path, "learning", {}, machine={})
        for seed in range(1, seeds + 1):
            record.add(learning.RLRUN.name, seed, result={"evaluation": 100.0 + seed})
            theirs = {"evaluation": 100.0 - seed, "versions": {"zoo": "1"}}
            record.add(learning.ZOO.name, seed, result=theirs)
        if case is many:
            for seed, evaluation in enumerate((80.0, 90.0, 70.0), start=1):
                record.add(learning.IMPORTED.name, seed, result={"evaluation": evaluation})
    first, second = learning.table(tmp_path).splitlines()[2:4]
    assert first.endswith(
        "| 3 | 102.0 (101.0\N{EN DASH}103.0) | 98.0 (97.0\N{EN DASH}99.0) | 1.00 | \N{EN DASH} |"
    )
    assert second.split(" | ")[2:4] == ["6", "103.5 (101.8\N{EN DASH}105.2)"]
    assert second.endswith("| 1.00 (1.00\N{EN DASH}1.00) | 80.0 (70.0\N{EN DASH}90.0) |")
    assert learning.table(tmp_path / "nothing") == ""


def test_what_rlrun_learned_with_other_settings_is_dropped(tmp_path: Path) -> None:
    settings = {"steps": 10, "overrides": [], "config": {"seed": 1}}
    record = Record(tmp_path / "record.json", "learning", dict(settings))
    for contender in (learning.RLRUN, learning.ZOO):
        record.add(contender.name, 1, result={"evaluation": 1.0})
    for config in ({"seed": 1}, {"seed": 2}):
        learning.drop_if_changed(record.path, {"overrides": [], "config": config})
        stored = Record.load(record.path)
        assert stored.has(learning.RLRUN.name, 1) == (config == settings["config"])
        assert stored.has(learning.ZOO.name, 1)
        assert stored.settings == {**settings, "config": config}


@pytest.mark.parametrize("case", learning.CASES, ids=lambda case: case.name)
def test_what_is_learned_is_of_the_shipped_configuration(case: learning.Case) -> None:
    path = learning.record_path(case)
    if path.exists():
        assert Record.load(path).settings.items() >= learning.settings_of_rlrun(case).items()


def test_saved_record_loads_equal(record: Record) -> None:
    record.add(RLRUN.name, 1, result={"pss_mb": {"total": 3.0}}, load=0.5)
    assert Record.load(record.path) == record
    assert record.values(RLRUN.name, "pss_mb/total") == {1: 3.0}
    assert record.values(RLRUN.name, "pss_mb/none/deeper") == {}
    assert json.loads(record.path.read_text())["settings"] == {"steps": 10}


def test_throughput_leaves_the_warm_up_out() -> None:
    calls = []

    def train() -> Iteration:
        calls.append(None)
        return Iteration(100, sampling_s=0.2, learning_s=None)

    measured = measure_throughput(train, warmup_steps=250, steps=350)
    assert len(calls) == 3 + 4
    assert measured["env_steps"] == 400
    assert measured["learning_ms"] is None
    exact = throughput([Iteration(512, 0.3, 0.1), Iteration(512, 0.1, 0.1)], seconds=0.8)
    assert exact["env_steps_per_s"] == pytest.approx(1280.0)
    assert exact["sampling_ms"] == pytest.approx(400.0)
    assert exact["learning_ms"] == pytest.approx(200.0)
    assert exact["total_ms"] == pytest.approx(800.0)


def test_the_clock_of_env_steps_measures_between_two_of_them() -> None:
    clock = EnvStepClock(warmup_steps=3, steps=2)
    ended = [clock.count() for _ in range(5)]
    assert ended == [False] * 4 + [True]
    measured = clock.result()
    assert measured["env_steps"] == 2
    assert measured["env_steps_per_s"] == pytest.approx(2 / measured["seconds"])


def test_memory_of_a_tree_counts_the_children() -> None:
    code = "x = bytearray(50_000_000); print('ready', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    family = memory.descendants(os.getpid())
    tree = memory.tree_pss_mb(process.pid)
    process.communicate(b"\n")
    assert process.pid in family
    assert tree["processes"] == 1
    assert 50 < tree["total"] == tree["driver"] < 150


def test_the_slow_env_takes_its_step_time() -> None:
    env = slow_cartpole()
    env.reset(seed=0)
    start = time.perf_counter()
    for _ in range(5):
        env.step(0)
    assert time.perf_counter() - start >= 5 * STEP_S


@pytest.mark.parametrize(
    "benchmark", [equal_work, replay_work, slow_env, scaling, sweep, start_up, time_to_solve, parts]
)
def test_tables_survive_a_record_of_failures_only(benchmark: object, tmp_path: Path) -> None:
    record = Record(tmp_path / "record.json", "any", {})
    record.add(RLRUN.name, 1, error="first line\nImportError: nothing there")
    table = benchmark.table(record)  # type: ignore[attr-defined]
    assert "**Failed**: rlrun, 0 runners: ImportError: nothing there" in table


def test_the_report_replaces_only_the_text_between_its_markers(tmp_path: Path) -> None:
    page = f"# Title\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n"
    once = report.insert(page, "new")
    assert "old" not in once
    assert once.startswith("# Title\n")
    assert once.endswith("\n\nafter\n")
    assert report.insert(once, "new") == once
    assert report.results(tmp_path) == report.NOTHING
    with pytest.raises(ValueError, match="the page has no"):
        report.insert("no markers", "new")


def test_bars_of_the_picture_are_ratios_of_rounds_whatever_is_measured(tmp_path: Path) -> None:
    record = Record(tmp_path / "solving.json", "solving", {}, machine={"cores": 2})
    for round_, (ours, theirs) in enumerate([(2.0, 6.0), (4.0, 8.0), (3.0, 12.0)], 1):
        for name, seconds in (("rlrun", ours), ("peer", theirs)):
            found = {"solved_s": seconds, "env_steps_per_s": 1.0 / seconds}
            record.add(name, round_, result=found)
    peers = {"SB3": "peer", "CleanRL": "not measured"}
    wanted = [("SB3", summary.Range(3.0, 2.0, 4.0))]
    seconds = plot.Row("", "solving", "rlrun", peers, "solved_s", lower=True)
    assert [*seconds.ratios(tmp_path)] == wanted
    (rate,) = plot.Row("", "solving", "rlrun", peers).ratios(tmp_path)
    assert rate[1].median == pytest.approx(3.0)
    assert not [*plot.Row("", "never recorded", "rlrun", peers).ratios(tmp_path)]


def test_all_recorded_benchmarks_are_drawn_in_one_picture(tmp_path: Path) -> None:
    titles = {row.title for row in plot.rows() if [*row.ratios(RESULTS)]}
    assert len(titles) == len(plot.rows())
    plot.draw(RESULTS, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_page_has_the_markers() -> None:
    assert report.insert(report.PAGE.read_text(), "x")


def test_the_scaling_page_has_the_figures_of_the_record() -> None:
    page = report.PAGE.with_name("scaling.md").read_text(encoding="utf-8")
    table = scaling.table(Record.load(RESULTS / "scaling.json"))
    measured = {cells[0].split()[1]: cells for cells in map(_cells, table.splitlines()[2:9])}
    rows = [cells for cells in map(_cells, page.splitlines()) if cells[0].isdigit()]
    assert [cells[0] for cells in rows] == ["1", "8", "32", "64"]
    for cells in rows:
        assert cells[1:] == [measured[cells[0]][column].split()[0] for column in (1, 2, 3, 5, 10)]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
