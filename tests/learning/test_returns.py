"""GAE: chunks of rows, and the episode ends it must not confuse."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.learning.returns import (
    chunk_lengths,
    explained_variance,
    gae,
    gae_of_rows,
    standardized,
)


def random_columns(rng, shape):
    return (
        rng.normal(size=shape).astype(np.float32),
        rng.normal(size=shape).astype(np.float32),
        rng.normal(size=shape).astype(np.float32),
        rng.random(shape) < 0.1,
        rng.random(shape) < 0.1,
    )


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_chunks_of_any_length_do_not_touch_each_other(seed, lengths):
    rng = np.random.default_rng(seed)
    traces = rng.random(sum(lengths), np.float32)
    columns = *random_columns(rng, (sum(lengths),)), traces
    found = gae_of_rows(np.array(lengths), *columns, gamma=0.97, lambda_=0.9)
    start = 0
    for length in lengths:
        chunk = [column[start : start + length, None] for column in columns]
        expected = gae(*chunk, gamma=0.97, lambda_=0.9)[:, 0]
        np.testing.assert_allclose(found[start : start + length], expected, rtol=1e-5, atol=1e-6)
        start += length


@pytest.mark.parametrize(
    ("terminated", "truncated", "bootstrap"),
    [(True, False, 0.0), (False, True, 10.0), (True, True, 0.0), (False, False, 10.0)],
)
def test_only_what_did_not_terminate_bootstraps(terminated, truncated, bootstrap):
    one = np.ones((1, 1))
    for final_value in [10.0, np.inf, np.nan] if terminated else [10.0]:
        advantage = gae(
            one,
            0 * one,
            final_value * one,
            np.array([[terminated]]),
            np.array([[truncated]]),
            gamma=1.0,
            lambda_=0.95,
        )
        assert advantage[0, 0] == 1.0 + bootstrap


def test_lambda_0_looks_one_step_ahead_and_lambda_1_to_the_end():
    """Targets, advantages plus values; the last value of a chunk or a truncated episode counts."""
    rewards = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]]).T
    values = 10.0 * rewards
    next_values = np.array([[20.0, 7.0, 40.0, 8.0, 60.0]]).T  # 7 and 8 are behind ends
    truncateds = np.array([[False, True, False, False, False]]).T
    terminateds = np.array([[False, False, False, True, False]]).T
    columns = rewards, values, next_values, terminateds, truncateds
    ahead = gae(*columns, gamma=0.5, lambda_=0.0) + values
    assert ahead[:, 0].tolist() == [11.0, 5.5, 23.0, 4.0, 35.0]
    to_the_end = gae(*columns, gamma=0.5, lambda_=1.0) + values
    assert to_the_end[:, 0].tolist() == [3.75, 5.5, 5.0, 4.0, 35.0]


@pytest.mark.parametrize("value", [27.3923, 0.1, -3e4])
@pytest.mark.parametrize("rows", [1, 100, 128])
def test_equal_advantages_are_standardized_to_0(value, rows):
    assert not standardized(torch.full((rows,), value)).any()
    advantages = standardized(torch.arange(rows, dtype=torch.float32) + value)
    assert advantages.dtype is torch.float32
    assert advantages.mean() == pytest.approx(0.0, abs=1e-5)


def test_the_smallest_deviations_are_not_standardized_to_1():
    """1e-8 is added to the standard deviation."""
    advantages = standardized(torch.tensor([-1e-8, 1e-8]))
    np.testing.assert_allclose(advantages, [-0.5, 0.5], rtol=1e-6)


def test_explained_variance():
    targets = np.array([1.0, 2.0, 3.0])
    assert explained_variance(targets, targets) == 1.0
    assert explained_variance(targets, np.zeros(3)) == 0.0
    assert explained_variance(np.ones(3), np.zeros(3)) is None


def test_chunks_are_rows_of_equal_unroll_ids_in_a_row():
    assert chunk_lengths(np.array([4, 4, 9, 4, 4, 4])).tolist() == [2, 1, 3]
    assert chunk_lengths(np.array([7])).tolist() == [1]
