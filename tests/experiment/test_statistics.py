"""Statistics of runs, against loops, the paper's words and the numbers of the package rliable."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.experiment.report.statistics import (
    bootstrap_interval,
    iqm,
    performance_profile,
    probability_of_improvement,
)

RLIABLE = json.loads(Path(__file__).with_name("rliable.json").read_text())

SCORES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12)


def slow_iqm(scores):
    """The lowest and the highest quarter dropped, in whole scores, the mean of the rest."""
    dropped = int(0.25 * len(scores))
    kept = sorted(scores)[dropped : len(scores) - dropped]
    return sum(kept) / len(kept)


@given(SCORES)
def test_iqm_is_the_mean_of_the_middle_half(scores):
    assert iqm(scores) == pytest.approx(slow_iqm(scores), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ([7.0], 7.0),
        ([1, 3], 2.0),
        ([0, 6, 600], 202.0),
        ([1, 2, 3, 400], 2.5),
        ([500.0] * 3, 500.0),
    ],
)
def test_iqm_by_hand(scores, mean):
    assert iqm(scores) == pytest.approx(mean, rel=1e-15)


@given(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=12))
def test_the_order_and_how_bad_the_worst_is_do_not_matter(scores):
    assert iqm(scores[::-1]) == iqm(scores)
    worst, *others = sorted(scores)
    assert iqm([worst - 1e7, *others]) == pytest.approx(iqm(scores), abs=1e-3)


def test_iqm_goes_along_the_last_axis():
    table = np.random.default_rng(0).normal(size=(5, 4, 7))
    expected = [[slow_iqm(row) for row in block] for block in table.tolist()]
    np.testing.assert_allclose(iqm(table), expected)


def test_no_scores_are_an_error():
    with pytest.raises(ValueError, match="no scores"):
        iqm([])


def slow_interval(strata, statistic, resamples, seed):
    """Run by run, with loops; draws the same rows."""
    random = np.random.default_rng(seed)
    rows = [random.integers(len(s), size=(resamples, len(s))) for s in strata]
    values = []
    for resample in range(resamples):
        drawn = [s[i] for s, picks in zip(strata, rows, strict=True) for i in picks[resample]]
        values.append(statistic(drawn))
    return np.quantile(values, 0.025), np.quantile(values, 0.975)


def test_interval_against_loops():
    strata = [[1.0, 2.0, 9.0], [4.0, 5.0, 6.0, 7.0]]
    low, high = bootstrap_interval(iqm, *strata, resamples=300, seed=4)
    assert (low, high) == pytest.approx(slow_interval(strata, slow_iqm, 300, 4))


def test_runs_are_resampled_within_their_task():
    """Each task keeps its number of runs: the means of two constant tasks never mix."""
    mean = bootstrap_interval(
        lambda *drawn: np.concatenate(drawn, axis=-1).mean(axis=-1), [0.0] * 3, [10.0] * 3
    )
    assert mean == (5.0, 5.0)


def test_the_interval_contains_the_true_mean_with_its_confidence():
    random = np.random.default_rng(1)
    runs = random.normal(3.0, 1.0, size=(200, 10))
    intervals = [bootstrap_interval(iqm, row, resamples=200) for row in runs]
    held = np.mean([low <= 3.0 <= high for low, high in intervals])
    assert 0.80 < held < 0.99


def test_equal_scores_give_equal_intervals():
    scores = [1.0, 5.0, 2.0]
    assert bootstrap_interval(iqm, scores) == bootstrap_interval(iqm, scores)
    assert bootstrap_interval(iqm, [4.0, 4.0, 4.0]) == (4.0, 4.0)


def test_the_points_of_a_curve_share_their_draws():
    runs = np.array([1.0, 5.0, 2.0, 8.0, 3.0])
    lows, highs = bootstrap_interval(iqm, np.stack([runs, 10 * runs]), resamples=500)
    low, high = bootstrap_interval(iqm, runs, resamples=500)
    np.testing.assert_allclose([lows, highs], [[low, 10 * low], [high, 10 * high]])


@pytest.mark.parametrize("name", RLIABLE)
def test_numbers_equal_those_of_rliable(name):
    """Its intervals come from other draws: they agree up to what a drawn quantile may vary."""
    case = RLIABLE[name]
    both = [case["x"], case["y"]]  # [tasks][runs] each
    for tasks, expected, interval, profile in zip(
        both, case["iqm"], case["interval"], case["profiles"], strict=True
    ):
        assert iqm(*tasks) == pytest.approx(expected, rel=1e-8)
        found = bootstrap_interval(iqm, *tasks)
        assert found == pytest.approx(interval, abs=0.05 * (interval[1] - interval[0]))
        every_run = np.concatenate(tasks)
        np.testing.assert_allclose(performance_profile(every_run, case["thresholds"]), profile)
    better = probability_of_improvement(*map(np.array, both))
    assert better.mean() == pytest.approx(case["improvement"], rel=1e-8)
    if len(better) == 1:
        found = bootstrap_interval(probability_of_improvement, case["x"][0], case["y"][0])
        assert found == pytest.approx(case["improvement_interval"], abs=0.03)
