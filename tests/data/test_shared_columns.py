"""Columns that share a storage: they stay shared, read-only and right through every operation."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rlrun.data.sample_batch import SampleBatch, concat_samples


def trajectory(first=0, n=4):
    """Rows first .. first + n - 1, whose obs are their numbers and new_obs the ones after."""
    storage = np.arange(first, first + n + 1)[:, None] * [1.0, 100.0]
    batch = SampleBatch.from_columns({"t": np.arange(first, first + n)})
    batch.set_shared("obs", storage, np.arange(n))
    batch.set_shared("new_obs", storage, np.arange(1, n + 1))
    return batch


def test_reading_gathers_once_and_read_only():
    batch = trajectory()
    assert batch["obs"].tolist() == [[0, 0], [1, 100], [2, 200], [3, 300]]
    assert batch["obs"] is batch["obs"]
    with pytest.raises(ValueError, match="read-only"):
        batch["obs"][0] = 1
    storage, index = batch.shared("new_obs")
    assert storage is batch.shared("obs")[0]
    assert index.tolist() == [1, 2, 3, 4]
    assert batch.shared("t") is None
    batch["obs"] = batch["obs"] + 1
    assert batch.shared("obs") is None


def test_concat_appends_each_storage_once():
    first, second = trajectory(0), trajectory(10)
    whole = first.concat(second)
    assert whole.shared("obs")[0] is whole.shared("new_obs")[0]
    assert len(whole.shared("obs")[0]) == 10
    assert whole["new_obs"][:, 0].tolist() == [1, 2, 3, 4, 11, 12, 13, 14]
    again = concat_samples(whole.timeslices(3))
    assert again.shared("obs")[0] is whole.shared("obs")[0], "parts of one storage are not copied"
    assert again["obs"].tolist() == whole["obs"].tolist()


def test_columns_that_cannot_share_are_appended_as_rows():
    first, second = trajectory(0), trajectory(10)
    second["obs"] = second["obs"].astype(np.float32)
    second.set_shared("new_obs", second["new_obs"].astype(np.float32), np.arange(4))
    whole = first.concat(second)
    assert whole.shared("obs") is whole.shared("new_obs") is None
    assert whole["new_obs"][:, 0].tolist() == [1, 2, 3, 4, 11, 12, 13, 14]


def test_copy_and_size_count_a_storage_once():
    batch = trajectory()
    assert batch.size_bytes() == 4 * 8 + 2 * 4 * 8 + 5 * 2 * 8
    copy = batch.copy()
    assert copy.shared("obs")[0] is copy.shared("new_obs")[0]
    assert not np.shares_memory(copy.shared("obs")[0], batch.shared("obs")[0])
    assert batch.copy(shallow=True).shared("obs")[0] is batch.shared("obs")[0]


def test_bad_indices_are_noticed():
    batch = trajectory()
    for index in (np.zeros(4), np.zeros((4, 1, 1), dtype=int)):
        with pytest.raises(ValueError, match="int \\[N\\]"):
            batch.set_shared("obs", np.zeros(3), index)
    for index in (np.array([0, 1, 2, 3]), np.array([0, 1, -1, 0])):
        batch.set_shared("obs", np.zeros(3), index)
        with pytest.raises(ValueError, match="outside of its storage"):
            batch.check_valid()


class SharedBatches(RuleBasedStateMachine):
    """Random operations against a model: the row numbers that a batch must hold, in order."""

    @initialize(first=st.integers(0, 9), n=st.integers(1, 9))
    def start(self, first, n):
        self.batch = trajectory(first, n)
        self.expected = list(range(first, first + n))

    @rule(first=st.integers(0, 99), n=st.integers(0, 6))
    def append(self, first, n):
        self.batch = concat_samples([self.batch, trajectory(first, n)])
        self.expected = self.expected + list(range(first, first + n))

    @rule(data=st.data())
    def cut(self, data):
        start = data.draw(st.integers(0, max(len(self.expected) - 1, 0)))
        stop = data.draw(st.integers(start + 1, len(self.expected) + 2))
        self.batch = self.batch[start:stop]
        self.expected = self.expected[start:stop]

    @rule(seed=st.integers(0, 99))
    def shuffle(self, seed):
        self.batch.shuffle(np.random.default_rng(seed))
        order = np.random.default_rng(seed).permutation(len(self.expected))
        self.expected = [self.expected[row] for row in order]

    @rule(size=st.integers(1, 5))
    def slice_and_join(self, size):
        self.batch = concat_samples(self.batch.timeslices(size))

    @rule(data=st.data())
    def take(self, data):
        rows = data.draw(st.lists(st.integers(0, len(self.expected) - 1), min_size=1, max_size=9))
        self.batch = self.batch.take(np.array(rows))
        self.expected = [self.expected[row] for row in rows]

    @rule(shallow=st.booleans())
    def copy(self, shallow):
        self.batch = self.batch.copy(shallow)

    @rule()
    def read(self):
        assert len(self.batch["obs"]) == len(self.expected)

    @invariant()
    def rows_are_as_expected(self):
        self.batch.check_valid()
        assert self.batch["t"].tolist() == self.expected
        (storage, rows), (same, next_rows) = map(self.batch.shared, ("obs", "new_obs"))
        assert storage is same
        assert storage[rows][:, 0].tolist() == self.expected
        assert storage[next_rows][:, 1].tolist() == [100 * (row + 1) for row in self.expected]
        assert self.batch.copy()["obs"][:, 0].tolist() == self.expected


SharedBatches.TestCase.settings = settings(max_examples=40, stateful_step_count=15)
TestSharedBatches = SharedBatches.TestCase
