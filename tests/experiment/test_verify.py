"""`rlrun verify`: the reference cases, measuring, judging, and the results page."""

import fcntl
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rlrun.config.dump import dump_yaml
from rlrun.config.problems import InputError
from rlrun.config.registry import ALGORITHMS, configs_folder
from rlrun.experiment.verify.cases import CASES, KINDS, SOURCES, Case, Reference, read_cases
from rlrun.experiment.verify.page import (
    POINTS_OF_A_CURVE,
    publish,
    result_table,
    settings_digest,
    with_recorded,
    write_page,
    write_record,
)
from rlrun.experiment.verify.runs import plan_runs
from rlrun.experiment.verify.verify import (
    CaseResult,
    SeedResult,
    Verification,
    choose_cases,
    verify,
)

FAKE = (sys.executable, "-S", str(Path(__file__).with_name("fake_rlrun.py")))


def case(name="ppo-cartpole", number=10.0, kind="evaluation", overrides=()):
    reference = published(number, 10_000, kind)
    return Case(name, "PPO", "CartPole-v1", "ppo_cartpole.yaml", (reference,), overrides)


def published(number, env_steps, kind, **more):
    return Reference(number, env_steps, kind, "CleanRL", f"{number}", **more)


@pytest.mark.parametrize("real", CASES, ids=lambda c: c.name)
def test_a_case_agrees_with_its_config_file(real, tmp_path):
    (run,) = plan_runs([real], [1], tmp_path)
    experiment = run.experiment
    assert real.algorithm in ALGORITHMS
    assert experiment.algorithm == real.algorithm
    assert experiment.env.use.rpartition(":")[2] == real.env.partition(" ")[0]
    assert ("episode_return_mean" in experiment.stop) <= real.ends_at_goal
    assert experiment.report.smoothing_episodes == 100, "as in KINDS"
    assert real.bars
    assert all(experiment.stop["env_steps"] <= bar.env_steps for bar in real.bars)
    for reference in real.references:
        assert reference.kind in KINDS
        assert reference.source in SOURCES
        assert f"{abs(reference.number):g}" in reference.published
        assert reference.pass_mark == reference.published.startswith("≥")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("  a: {algorithm: PPO}\n", "reference"),
        ("  a: {}\n  a: {}\n", "duplicate key"),
        ("  a: {algorithm: PPO, sed: 1}\n", "sed"),
    ],
)
def test_a_malformed_table_of_cases_is_refused(tmp_path, line, says):
    path = tmp_path / "cases.yaml"
    path.write_text(f"kinds: {{}}\nsources: {{}}\ncases:\n{line}")
    with pytest.raises(Exception, match=says):
        read_cases(path)


def test_a_case_can_be_chosen_by_name():
    assert choose_cases([]) == list(CASES)
    second, first = CASES[1], CASES[0]
    assert choose_cases([second.name, first.name, second.name]) == [second, first]
    with pytest.raises(InputError, match=r"'ppo-cartpol' - did you mean ppo-cartpole\?") as error:
        choose_cases(["ppo-cartpol", "xyz"])
    assert "'xyz'; see `rlrun verify --list`" in str(error.value)


def seed_result(seed, **numbers):
    known = {"trained": True, "training": None, "goal": None, "evaluation": None, "error": None}
    place = {"folder": Path("f"), "env_steps": seed * 1000, "curve": (), "session": {}}
    return SeedResult(seed=seed, **(known | place | numbers))


@pytest.mark.parametrize(
    ("kind", "number", "reached"),
    [("evaluation", 6.0, 6.0), ("training", 4.0, 4.0), ("goal", 8.0, 8.0)],
)
def test_numbers_are_compared_with_their_own_kind(kind, number, reached):
    seeds = tuple(
        seed_result(n, training=4.0, goal=8.0, evaluation=value)
        for n, value in enumerate((0, 6, 12))
    )
    result = CaseResult(case(number=number, kind=kind), seeds, 3)
    assert result.judgements[0].iqm == reached
    assert result.verdict == "reached"
    above = CaseResult(case(number=number + 1e-6, kind=kind), seeds, 3)
    assert above.verdict == "falls short"


def test_the_highest_comparable_benchmark_of_each_kind_decides_or_else_a_pass_mark():
    low, high = (published(number, 10_000, "evaluation") for number in (1.0, 2.0))
    mark, quick = published(0.5, 20_000, "goal", pass_mark=True), published(9.0, 9_999, "goal")
    training = published(3.0, 20_000, "training")
    one = replace(case(), references=(low, high, mark, quick, training))
    assert one.bars == (high,)  # it may end before the number of training can be compared
    assert replace(one, references=(training, low), env_steps=10_000).bars == (training, low)
    passing = replace(one, references=(mark, quick))
    assert passing.bars == (mark,)
    assert CaseResult(passing, (seed_result(1, goal=0.5),), 1).verdict == "passes"
    both = replace(one, references=(low, published(1.0, 10_000, "goal")))
    seeds = (seed_result(1, goal=0.0, evaluation=1.0),)
    assert [each.verdict for each in CaseResult(both, seeds, 1).judgements] == [
        "falls short",
        "reached",
    ]
    assert CaseResult(both, seeds, 1).verdict == "falls short"


def test_few_seeds_have_a_range_and_more_an_interval():
    def spread(numbers):
        seeds = tuple(seed_result(i, evaluation=float(n)) for i, n in enumerate(numbers))
        return CaseResult(case(), seeds, len(seeds)).judgements[0].spread

    assert spread([1]) is None
    assert spread([3, 1, 2]) == (1.0, 3.0)
    low, high = spread(range(10))
    assert 0 < low < 4.5 < high < 9


def test_verdicts_of_missing_seeds_and_numbers():
    one, other = seed_result(1, evaluation=99.0), seed_result(2, training=99.0)
    broken = seed_result(3, error="RuntimeError: x")
    assert CaseResult(case(), (), 2).verdict == "not run"
    assert CaseResult(case(), (one,), 2).verdict == "unfinished"
    assert CaseResult(case(), (one, other), 2).verdict == "unfinished"
    halfway = seed_result(2, trained=False, training=99.0)
    assert CaseResult(case(kind="training"), (other, halfway), 2).verdict == "unfinished"
    assert CaseResult(case(kind="training"), (other,), 1).verdict == "reached"
    assert CaseResult(case(), (one, broken), 2).verdict == "failed"


def test_numbers_need_a_full_window_of_episodes(check):
    (result,) = check(case(), seeds=range(1, 2)).results
    (seed,) = result.seeds
    # The first of the three rows averages only 50 episodes: it is drawn, but no goal.
    assert seed.curve == ((100, 90.0), (200, 30.0), (300, 20.0))
    assert (seed.training, seed.goal, seed.evaluation) == (20.0, 30.0, 10.0)
    assert (seed.env_steps, seed.commit) == (300, "abcdef0123")


@pytest.fixture
def check(tmp_path):
    """`verify` with the stand-in for rlrun, in tmp_path; notices are in `check.notices`."""

    def run(*cases, **options):
        for planned in plan_runs(cases, [1], tmp_path / "anew"):
            resolved = tmp_path / planned.case.name / "resolved.yaml"
            resolved.parent.mkdir(exist_ok=True)
            resolved.write_text(dump_yaml(planned.experiment))
        return verify(
            cases=cases, results=tmp_path, notice=run.notices.append, rlrun=FAKE, **options
        )

    run.notices = []
    return run


@pytest.mark.parametrize("metric", ["episode_return_mean", "evaluation/episode_return_mean"])
def test_a_checkpoint_is_not_judged_by_the_episodes_that_it_was_chosen_by(check, tmp_path, metric):
    overrides = [f"checkpoint.metric={metric}", "evaluation.interval=1"]
    check(replace(case("a"), overrides=overrides), seeds=[1])
    words = json.loads((tmp_path / "a" / "seed-1" / "evaluation.json").read_text())["per_episode"]
    assert ("--seed" in words) == metric.startswith("evaluation/")


def plan(folder, seed, what):
    folder.mkdir(exist_ok=True)
    (folder / f"plan-{seed}").write_text(what)


def order(results):
    return (results / "order.txt").read_text().split("\n")[:-1]


def test_finished_runs_are_not_trained_again(check, tmp_path):
    done = check(case("a"), case("b", number=21.0), seeds=range(1, 3), jobs=1)
    assert order(tmp_path) == ["a/seed-1", "a/seed-2", "b/seed-1", "b/seed-2"]
    assert [result.verdict for result in done.results] == ["reached", "falls short"]
    assert not done.all_reached
    assert done.results[0].judgements[0].iqm == 15.0
    (tmp_path / "order.txt").unlink()
    check.notices.clear()
    again = check(case("a"), seeds=range(1, 4), jobs=1)
    assert order(tmp_path) == ["a/seed-3"]
    assert check.notices == [
        "2 of 3 runs are finished already",
        "a seed 3: training 20.00, evaluation 30.00 after 300 env steps  (3 of 3)",
    ]
    assert again.results[0].judgements[0].iqm == 20.0
    assert again.all_reached


def test_a_failed_seed_does_not_end_the_others_and_is_run_again(check, tmp_path):
    plan(tmp_path / "a", 1, "fail")
    done = check(case("a"), seeds=range(1, 3))
    assert done.results[0].verdict == "failed"
    assert done.results[0].seeds[0].error == "RuntimeError: as planned"
    assert any("a seed 1: failed: RuntimeError: as planned; see " in line for line in check.notices)
    assert order(tmp_path) == ["a/seed-2"]
    assert check(case("a"), seeds=range(1, 3)).all_reached
    assert order(tmp_path) == ["a/seed-2", "a/seed-1 resumed"]


def test_an_interrupted_run_is_resumed(check, tmp_path):
    plan(tmp_path / "a", 1, "slow")
    meta = tmp_path / "a" / "seed-1" / "meta.json"

    def interrupt():
        while not meta.exists():
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    done = check(case("a"), seeds=range(1, 3), jobs=1)
    thread.join()
    assert done.interrupted
    assert [result.verdict for result in done.results] == ["not run"]
    assert json.loads(meta.read_text())["outcome"] == "interrupted"
    (tmp_path / "a" / "plan-1").unlink()
    assert check(case("a"), seeds=range(1, 3), jobs=1).all_reached
    assert order(tmp_path) == ["a/seed-1 resumed", "a/seed-2"]


def test_a_run_of_another_process_is_not_disturbed(check, tmp_path):
    """The runs of a killed verification may still be active."""
    folder = tmp_path / "a" / "seed-1"
    folder.mkdir(parents=True)
    lock = (folder / ".lock").open("a")
    fcntl.flock(lock, fcntl.LOCK_EX)
    threading.Timer(0.5, lock.close).start()
    assert check(case("a"), seeds=range(1, 2)).all_reached
    assert check.notices[0] == "a seed 1: waiting for another process that executes this run"
    assert order(tmp_path) == ["a/seed-1"]


@pytest.mark.parametrize(("jobs", "most"), [(3, 3), (1, 2)])
def test_runs_share_the_cores(check, tmp_path, jobs, most):
    """A run that needs more cores than there are is executed alone."""
    cpus = {"two": 2, "one": 1}
    cases = []
    for name, count in cpus.items():
        num_env_runners = count if count > 1 else 0
        cases.append(case(name, overrides=(f"env_runners.num_env_runners={num_env_runners}",)))
        for seed in (1, 2):
            plan(tmp_path / name, seed, "pause")
    assert check(*cases, seeds=range(1, 3), jobs=jobs).all_reached
    used, levels = 0, []
    for line in (tmp_path / "busy.txt").read_text().split():
        used += cpus[line[1:]] * (1 if line[0] == "+" else -1)
        levels.append(used)
    assert max(levels) == most


def test_runs_with_different_settings_are_refused(check):
    check(case("a"), seeds=range(1, 2))
    with pytest.raises(InputError, match=r"training.gamma is 0.98, expected 0.5"):
        check(case("a", overrides=("training.gamma=0.5",)), seeds=range(1, 2))


def test_what_checkpoints_hold_may_differ(check):
    def stored(value):
        words = (f"replay.store_in_checkpoints={value}", "evaluation.interval=null")
        return replace(case("a", overrides=words), algorithm="DQN", config="dqn_cartpole.yaml")

    check(stored("false"), seeds=range(1, 2))
    done = check(stored("true"), seeds=range(1, 2), train=False)
    assert [result.verdict for result in done.results] == ["reached"]


def test_without_training_the_folder_is_reported(check):
    check(case("a"), seeds=range(1, 2))
    done = check(case("a"), case("b"), seeds=range(1, 3), train=False)
    assert [result.verdict for result in done.results] == ["unfinished", "not run"]


def test_the_page_lists_finished_and_unfinished_cases(check, tmp_path):
    cases = [replace(case("a"), note="easier than the published one"), case("b", number=99.0)]
    check(*cases, seeds=range(1, 2))
    done = check(*cases, case("c"), seeds=range(1, 2), train=False)
    write_page(done, tmp_path / "results.md")
    page = (tmp_path / "results.md").read_text()
    finished, unfinished = page.split("## Not finished")
    assert "| a | evaluation | 10,000 | 300 | 10 | 10 |  | reached |" in finished
    assert "| b | evaluation | 10,000 | 300 | 99 | 10 |  | falls short |" in finished
    assert "- a: easier than the published one." in finished
    assert "| c | evaluation | 10,000 |  | 10 |  |  | not run |" in unfinished
    assert "commit `abcdef0123`: a, b" in page
    assert "](results.png)" in page
    assert (tmp_path / "results.png").stat().st_size > 1000


def test_the_record_replaces_missing_runs(check, tmp_path):
    """With numbers, curves and commits, as long as the case is unchanged."""
    record = tmp_path / "results.json"
    there = check(case("a"), case("b"), seeds=range(1, 3))
    write_record(there, record)
    gone = Verification((CaseResult(case("a"), (), 2), CaseResult(case("b"), (), 2)), False)
    back = with_recorded(gone, record)
    assert [result.verdict for result in back.results] == ["reached", "reached"]
    for before, after in zip(there.results, back.results, strict=True):
        for old, new in zip(before.seeds, after.seeds, strict=True):
            assert (new.curve, new.commit) == (old.curve, old.commit)
            assert replace(new, session={}) == replace(old, session={}, folder=None)
    write_page(back, tmp_path / "results.md")
    assert "commit `abcdef0123`: a, b" in (tmp_path / "results.md").read_text()
    # Begun or failed runs do not replace finished ones.
    begun = seed_result(7, trained=False)
    for seeds in ((begun,), (begun, seed_result(8, evaluation=1.0)), (seed_result(7, error="x"),)):
        partly = Verification((CaseResult(case("a"), seeds, 3),), False)
        assert with_recorded(partly, record).results[0].judgements[0].numbers == (10.0, 20.0)
    # Finished runs replace the record; entries of other cases stay.
    new = CaseResult(case("a"), (seed_result(1, evaluation=1.0),), 1)
    assert with_recorded(Verification((new,), False), record).results == (new,)
    write_record(Verification((new,), False), record)
    assert json.loads(record.read_text()).keys() == {"a", "b"}
    assert with_recorded(gone, record).results[0].judgements[0].numbers == (1.0,)


def test_a_case_verified_anew_by_itself_leaves_the_others_on_the_page(tmp_path):
    page = tmp_path / "results.md"
    first, second = ((CaseResult(c, (seed_result(7, evaluation=450.0),), 1),) for c in CASES[:2])
    publish(Verification(first + second, False), page)
    better = CaseResult(CASES[1], (seed_result(8, evaluation=460.0),), 1)
    assert publish(Verification((better,), False), page).results == (better,)
    rows = [line for line in page.read_text().splitlines() if line.endswith("| falls short |")]
    assert [row.split(" | ")[0] for row in rows] == [f"| {c.name}" for c in CASES[:2]]
    assert [" 450 " in rows[0], " 460 " in rows[1]] == [True, True]


def test_a_record_of_different_settings_is_ignored(check, tmp_path):
    record = tmp_path / "results.json"
    write_record(check(case("a"), seeds=range(1, 2)), record)
    for other, verdict in (
        (case("a", overrides=("training.gamma=0.5",)), "not run"),
        (case("a", number=11.0), "falls short"),  # the published number is none of them
    ):
        (result,) = with_recorded(Verification((CaseResult(other, (), 1),), False), record).results
        assert result.verdict == verdict


def test_what_checkpoints_hold_is_no_different_setting(tmp_path, monkeypatch):
    (sac,) = (each for each in CASES if each.name == "sac-hopper")
    text, stored = (configs_folder() / sac.config).read_text(), settings_digest(sac)
    monkeypatch.setattr("rlrun.experiment.verify.page.configs_folder", lambda: tmp_path)
    for old, new, is_same in (
        (", store_in_checkpoints: true", "", True),
        ("store_in_checkpoints: true", "store_in_checkpoints: false", True),
        ("capacity: 1_000_000", "capacity: 999_999", False),
    ):
        assert old in text
        (tmp_path / sac.config).write_text(text.replace(old, new))
        assert (settings_digest(sac) == stored) == is_same


def test_a_recorded_curve_is_thinned_and_keeps_its_last_point(tmp_path):
    curve = tuple((step, float(step)) for step in range(1, 1002))
    seed = seed_result(1, evaluation=1.0, curve=curve)
    record = tmp_path / "results.json"
    write_record(Verification((CaseResult(case(), (seed,), 1),), False), record)
    (entry,) = json.loads(record.read_text())["ppo-cartpole"]["seeds"]
    assert len(entry["curve"]) <= POINTS_OF_A_CURVE
    assert entry["curve"][-1] == [1001, 1001.0]


def test_numbers_are_aligned_to_the_right():
    seeds = tuple(seed_result(n, evaluation=n) for n in (1, 2, 3))
    heads, row = result_table([CaseResult(case(number=2.0), seeds, 3)]).plain_lines()
    assert heads.split()[:2] == ["case", "kind"]
    assert row.index("1,000 to 3,000") + len("1,000 to 3,000") == heads.index("env steps") + 9
    assert row.endswith("reached")
