"""Running statistics: exact for any batches and any order of merging."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.connectors.filters import MeanStdFilter, RunningStat


class SlowStat:
    """Welford's algorithm (1962), one row at a time."""

    def __init__(self) -> None:
        self.n, self.mean, self.m2 = 0, 0.0, 0.0

    def push(self, x: float) -> None:
        self.n += 1
        delta = x - self.mean
        self.mean += delta / self.n
        self.m2 += delta * (x - self.mean)


floats = st.floats(-1e4, 1e4, width=32)
batches = st.lists(st.lists(floats, min_size=0, max_size=6), max_size=8)


@settings(max_examples=60)
@given(batches)
def test_batches_are_worth_the_same_as_rows(parts: list[list[float]]) -> None:
    fast, slow = RunningStat(), SlowStat()
    for part in parts:
        fast.update(np.array(part, np.float32))
        for x in part:
            slow.push(x)
    assert fast.count == slow.n
    np.testing.assert_allclose(fast.mean, slow.mean, rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(fast.m2, slow.m2, rtol=1e-7, atol=1e-3)
    assert fast.m2 >= 0


@settings(max_examples=60)
@given(batches, st.integers(1, 3))
def test_deltas_of_any_number_of_runners_give_one_filter_over_all_rows(
    parts: list[list[float]], num_runners: int
) -> None:
    central, alone = MeanStdFilter((1,)), RunningStat((1,))
    runners = [MeanStdFilter((1,)) for _ in range(num_runners)]
    for i, part in enumerate(parts):
        rows = np.array(part, np.float32).reshape(-1, 1)
        runners[i % num_runners](rows)
        alone.update(rows)
        if i % 3 == 2:  # an iteration ends
            central.apply_deltas([runner.flush_deltas() for runner in runners])
            for runner in runners:
                runner.set_state(central.get_state())
    central.apply_deltas([runner.flush_deltas() for runner in runners])
    state = central.get_state()["stat"]
    assert state["count"] == alone.count  # each row once
    np.testing.assert_allclose(state["mean"], alone.mean, rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(state["m2"], alone.m2, rtol=1e-7, atol=1e-3)
    assert runners[0].flush_deltas()["count"] == 0
    runners[0].set_state(central.get_state())
    rows = np.array([[1.0], [-2.0]])
    np.testing.assert_array_equal(central(rows, update=False), runners[0](rows, update=False))


def test_variance_before_there_is_one() -> None:
    stat = RunningStat((2,))
    assert stat.variance().tolist() == [1.0, 1.0]
    stat.update(np.array([[3.0, -2.0]]))
    assert stat.variance().tolist() == [9.0, 4.0]


def test_merging_into_an_empty_one_copies() -> None:
    empty, other = RunningStat((1,)), RunningStat((1,))
    other.update(np.array([[1.0], [2.0]]))
    empty.merge(other)
    empty.update(np.array([[10.0]]))
    assert other.mean.tolist() == [1.5]


def test_a_constant_feature_has_exactly_zero_variance() -> None:
    stat = RunningStat((1,))
    for n in (3, 7, 1, 5):
        stat.update(np.full((n, 1), 0.1, np.float32))
    assert stat.m2.tolist() == [0.0]
    assert MeanStdFilter((1,))(np.full((3, 1), 0.1, np.float32)).tolist() == [[0.0]] * 3


def test_far_from_zero_no_digits_are_lost() -> None:
    rows = 1e8 + np.random.default_rng(0).standard_normal((1000, 1))
    stat = RunningStat((1,))
    for part in np.split(rows, 125):
        stat.update(part)
    np.testing.assert_allclose(stat.variance(), np.var(rows, axis=0, ddof=1), rtol=1e-6)


def test_filter_learns_before_it_normalises_and_keeps_the_type() -> None:
    rows = np.random.default_rng(0).normal(5, 3, (50, 4)).astype(np.float32)
    for dtype in (np.float32, np.float64):
        filtered = MeanStdFilter((4,))(rows.astype(dtype))
        wide = rows.astype(np.float64)
        expected = (wide - wide.mean(0)) / (wide.std(0, ddof=1) + 1e-6)
        np.testing.assert_allclose(filtered, expected, rtol=1e-5, atol=1e-6)
        assert filtered.dtype == dtype


def test_frozen_filter_learns_nothing() -> None:
    filter_ = MeanStdFilter((2,))
    rows = np.random.default_rng(0).standard_normal((8, 2)).astype(np.float32)
    filter_(rows)
    filter_.flush_deltas()
    before = filter_.get_state()
    first = filter_(rows * 3, update=False)
    np.testing.assert_array_equal(filter_(rows * 3, update=False), first)
    after = filter_.get_state()
    assert after["stat"]["count"] == before["stat"]["count"] == 8
    np.testing.assert_array_equal(after["stat"]["mean"], before["stat"]["mean"])
    assert after["deltas"]["count"] == 0


def test_the_filtered_observation_is_clipped_and_the_input_untouched() -> None:
    filter_ = MeanStdFilter((1,))
    filter_(np.random.default_rng(0).standard_normal((100, 1)).astype(np.float32))
    rows = np.array([[1e6], [-1e6]], np.float32)
    assert filter_(rows, update=False).tolist() == [[10.0], [-10.0]]
    assert rows.tolist() == [[1e6], [-1e6]]


def test_masked_features_pass_and_are_not_learned() -> None:
    mask = np.array([True, False, True])
    filter_, plain = MeanStdFilter((3,), normalized=mask), MeanStdFilter((2,))
    rows = np.random.default_rng(0).normal(4, 2, (9, 3)).astype(np.float32)
    filtered = filter_(rows)
    np.testing.assert_array_equal(filtered[:, 1], rows[:, 1])
    np.testing.assert_array_equal(filtered[:, [0, 2]], plain(rows[:, [0, 2]]))
    assert filter_.get_state()["stat"]["mean"].shape == (2,)


def test_state_round_trip_and_wrong_shape() -> None:
    source, target = MeanStdFilter((3,)), MeanStdFilter((3,))
    rows = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    source(rows)
    state = source.get_state()
    target.set_state(state)
    frozen = source(rows, update=False)
    np.testing.assert_array_equal(target(rows, update=False), frozen)
    np.testing.assert_array_equal(source(rows), target(rows))
    assert state["stat"]["count"] == 8  # a copy, not a view of the living filter
    np.testing.assert_array_equal(source.flush_deltas()["m2"], target.flush_deltas()["m2"])
    with pytest.raises(ValueError, match=r"\(3,\).*\(2,\)"):
        MeanStdFilter((2,)).set_state(state)
