"""Each batch is used as often as it may be, and the newest are kept."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.replay.circular_buffer import CircularBuffer


@given(
    num_batches=st.integers(1, 4),
    uses=st.integers(1, 3),
    actions=st.lists(st.booleans(), max_size=40),
    seed=st.integers(0, 1000),
)
def test_it_keeps_the_newest_and_counts_uses(num_batches, uses, actions, seed):
    buffer, rng = CircularBuffer(num_batches, uses), np.random.default_rng(seed)
    kept, added, handed_out = [], 0, Counter()
    for add in actions:
        if add:
            buffer.add(added)
            kept = [*kept, added][-num_batches:]
            added += 1
        elif kept:
            batch = buffer.sample(rng)
            assert batch in kept
            handed_out[batch] += 1
            if handed_out[batch] == uses:
                kept.remove(batch)
        assert len(buffer) == len(kept)
    assert max(handed_out.values(), default=0) <= uses


def test_every_batch_is_as_likely_as_the_others():
    rng, counts = np.random.default_rng(0), Counter()
    for _ in range(600):
        buffer = CircularBuffer(3, 2)
        for batch in "abc":
            buffer.add(batch)
        counts[buffer.sample(rng)] += 1
    assert all(150 < counts[batch] < 250 for batch in "abc")


def test_an_empty_buffer_says_so():
    buffer = CircularBuffer(2, 1)
    with pytest.raises(IndexError, match="empty"):
        buffer.sample(np.random.default_rng(0))


def test_contents_go_from_one_buffer_to_another_with_the_uses_that_are_left():
    buffer, other = CircularBuffer(3, 2), CircularBuffer(3, 2)
    for batch in "abcd":
        buffer.add(batch)
    for _ in range(2):
        buffer.sample(np.random.default_rng(1))
    assert sum(left for _, left in buffer.contents()) == 4
    other.add("x")
    other.set_contents(buffer.contents())
    rng, again = np.random.default_rng(3), np.random.default_rng(3)
    handed_out = [buffer.sample(rng) for _ in range(4)]
    assert [other.sample(again) for _ in range(4)] == handed_out
    assert len(other) == len(buffer) == 0
