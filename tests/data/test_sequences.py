"""Batches with seq_lens: snapping, exact slices, padding; segments of fragments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.data.sample_batch import SampleBatch


def recurrent(seq_lens, **more):
    n = sum(seq_lens)
    return SampleBatch(
        {
            "obs": np.arange(1, n + 1),
            "state_in_0": np.arange(len(seq_lens))[:, None] * 10,
            "seq_lens": np.array(seq_lens),
            **more,
        }
    )


def test_count_is_the_sum_of_seq_lens():
    batch = recurrent([2, 3])
    assert batch.count == 5
    batch.check_valid()
    batch["seq_lens"] = np.array([2, 2])
    with pytest.raises(ValueError, match="'obs' has"):
        batch.check_valid()


def test_slices_snap_to_sequence_starts_and_carry_states():
    part = recurrent([3, 2, 4])[4:8]
    assert part["seq_lens"].tolist() == [2]
    assert part["obs"].tolist() == [4, 5]
    assert part["state_in_0"].tolist() == [[10]]
    assert recurrent([3, 2, 4])[1:99]["seq_lens"].tolist() == [3, 2, 4]
    assert recurrent([3, 2])[0:2].count == 0


def test_padded_batches_are_sliced_by_real_steps():
    batch = recurrent([3, 2, 4]).right_zero_pad(4)
    part = batch[3:9]
    assert part["seq_lens"].tolist() == [2, 4]
    assert part["obs"].tolist() == [4, 5, 0, 0, 6, 7, 8, 9]
    assert part.count == 6
    part.check_valid()


def test_exact_slice_adjusts_the_first_and_last_sequence():
    batch = recurrent([3, 2, 4])
    part = batch.slice(1, 7)
    assert part["obs"].tolist() == [2, 3, 4, 5, 6, 7]
    assert part["seq_lens"].tolist() == [2, 2, 2]
    assert part["state_in_0"].ravel().tolist() == [0, 10, 20]
    inner = batch.slice(6, 7)
    assert (inner["seq_lens"].tolist(), inner["state_in_0"].tolist()) == ([1], [[20]])
    assert batch.slice(1, 4, 0, 2)["seq_lens"].tolist() == [2, 1]
    for states in ((1, 2), (3, 3), (0, 1)):
        with pytest.raises(ValueError, match="do not hold these rows"):
            batch.slice(1, 9, *states)


def test_exact_slice_pads_in_front():
    part = recurrent([3, 2]).slice(-2, 4)
    assert part["obs"].tolist() == [0, 0, 1, 2, 3, 4]
    assert part["seq_lens"].tolist() == [5, 1]
    assert recurrent([3]).slice(-2, 0)["seq_lens"].tolist() == [2]
    plain = SampleBatch({"obs": np.ones(3), "infos": [{}, {}, {}]}).slice(-1, 2)
    assert plain["obs"].tolist() == [0, 1, 1]
    assert plain["infos"].tolist() == [None, {}, {}]
    assert SampleBatch({"obs": np.ones(3)}).slice(2, 2).count == 0


def test_right_zero_pad():
    batch = recurrent(
        [1, 3],
        infos=[{"i": i} for i in range(4)],
        action_name=np.array(["l", "r", "l", "r"]),
        nested={"a": np.ones((4, 2))},
    )
    batch.right_zero_pad(3)
    assert batch["obs"].tolist() == [1, 0, 0, 2, 3, 4]
    assert batch["infos"].tolist() == [{"i": 0}, None, None, {"i": 1}, {"i": 2}, {"i": 3}]
    assert batch["action_name"].tolist() == ["l", None, None, "r", "l", "r"]
    assert batch["nested"]["a"].sum() == 8
    assert batch["state_in_0"].shape == (2, 1)
    assert (batch.zero_padded, batch.max_seq_len, batch.count) == (True, 3, 4)
    batch.check_valid()
    assert batch.right_zero_pad(4)["obs"].tolist() == [1, 0, 0, 0, 2, 3, 4, 0]
    with pytest.raises(ValueError, match="3 steps, more than max_seq_len=2"):
        batch.right_zero_pad(2)
    with pytest.raises(ValueError, match="seq_lens"):
        SampleBatch({"obs": np.zeros(2)}).right_zero_pad(4)


def test_rows_have_sequences_of_one():
    rows = list(recurrent([1, 2]).rows())
    assert [row["seq_lens"] for row in rows] == [1, 1, 1]
    assert [row["state_in_0"].tolist() for row in rows] == [[0], [10], [10]]
    assert [row["obs"] for row in recurrent([1, 2]).right_zero_pad(2).rows()] == [1, 2, 3]


def test_rows_of_sequences_keep_their_order():
    for operation in (SampleBatch.shuffle, lambda batch: batch.take(np.array([0]))):
        with pytest.raises(ValueError, match="seq_lens"):
            operation(recurrent([1, 2]))


def test_concat_appends_sequences():
    whole = recurrent([1, 2]).concat(recurrent([3]))
    assert whole["seq_lens"].tolist() == [1, 2, 3]
    assert whole["state_in_0"].ravel().tolist() == [0, 10, 0]
    padded = recurrent([1, 2]).right_zero_pad(2).concat(recurrent([2]).right_zero_pad(2))
    assert padded["obs"].tolist() == [1, 0, 2, 3, 1, 2]
    padded.check_valid()
    with pytest.raises(ValueError, match="max_seq_len: 2, 3"):
        padded.concat(recurrent([2]).right_zero_pad(3))
    with pytest.raises(ValueError, match="zero_padded"):
        padded.concat(recurrent([2]))


def test_time_major_batches_are_appended_along_sequences():
    def major(seq_lens):
        return SampleBatch(
            {"obs": np.zeros((4, len(seq_lens))), "seq_lens": seq_lens, "state_in_0": seq_lens},
            time_major=True,
        )

    whole = major([4, 3]).concat(major([2]))
    assert whole["obs"].shape == (4, 3)
    assert whole["state_in_0"].tolist() == whole["seq_lens"].tolist() == [4, 3, 2]
    assert whole.count == 9


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_every_cut_of_sequences_keeps_every_row_once(seq_lens, data):
    batch = recurrent(seq_lens)
    size = data.draw(st.integers(1, batch.count + 1))
    for whole in (batch, batch.copy().right_zero_pad(5)):
        parts = whole.timeslices(size)
        for part in parts:
            part.check_valid()
        rows = [int(row["obs"]) for part in parts for row in part.rows()]
        assert rows == list(range(1, batch.count + 1))
    start = data.draw(st.integers(-3, batch.count))
    end = data.draw(st.integers(max(start, 0), batch.count))
    exact = batch.slice(start, end)
    exact.check_valid()
    expected = [0] * max(-start, 0) + list(range(max(start, 0) + 1, end + 1))
    assert exact["obs"].tolist() == expected
