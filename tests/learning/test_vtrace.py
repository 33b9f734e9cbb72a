"""V-trace: chunks of rows, and the ends of trajectories."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.learning.vtrace import VTraceSettings, vtrace, vtrace_of_rows


def random_columns(seed, steps, num_envs, spread=1.0):
    rng = np.random.default_rng(seed)
    shape = (steps, num_envs)
    values = rng.normal(size=(steps + 1, num_envs)).astype(np.float32)
    terminateds, truncateds = rng.random(shape) < 0.15, rng.random(shape) < 0.15
    next_values = values[1:].copy()
    ends = terminateds | truncateds
    # Behind an end stands the final observation, not the first of the next episode.
    next_values[ends] = rng.normal(size=int(ends.sum()))
    log_ratios = (spread * rng.normal(size=shape)).astype(np.float32)
    rewards = rng.normal(size=shape).astype(np.float32)
    return [log_ratios, rewards, values[:-1], next_values, terminateds, truncateds]


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_chunks_of_any_length_do_not_touch_each_other(seed, lengths):
    columns = [column[:, 0] for column in random_columns(seed, sum(lengths), 1)]
    got = vtrace_of_rows(np.array(lengths), *columns, settings=VTraceSettings(0.9))
    begin = 0
    for length in lengths:
        chunk = [column[begin : begin + length, None] for column in columns]
        for mine, alone in zip(got, vtrace(*chunk, settings=VTraceSettings(0.9)), strict=True):
            np.testing.assert_allclose(mine[begin : begin + length], alone[:, 0], rtol=1e-5)
        begin += length


@pytest.mark.parametrize("clip", [1.0, None])
def test_of_what_the_policy_itself_has_done_targets_are_returns_to_the_end(clip):
    _, *columns = random_columns(3, 12, 4)
    rewards, values, next_values, terminateds, truncateds = columns
    configured = VTraceSettings(0.9, rho_clip=clip, pg_rho_clip=clip)
    targets, advantages = vtrace(np.zeros_like(rewards), *columns, settings=configured)
    returns = next_values[-1]
    for t in reversed(range(12)):
        returns = np.where(truncateds[t], next_values[t], returns)
        returns = rewards[t] + 0.9 * np.where(terminateds[t], 0.0, returns)
        np.testing.assert_allclose(targets[t], returns, atol=1e-6)
        np.testing.assert_allclose(advantages[t], returns - values[t], atol=2e-6)


def test_a_truncation_bootstraps_and_a_termination_does_not():
    zero, one = np.zeros((1, 1)), np.ones((1, 1))
    yes, no = np.ones((1, 1), bool), np.zeros((1, 1), bool)
    truncated = vtrace(zero, one, zero, 10 * one, no, yes, settings=VTraceSettings(0.5))
    assert [x.item() for x in truncated] == [6.0, 6.0]
    for truncateds, value in product((no, yes), (10.0, np.inf, np.nan)):
        final = value * one
        ended = vtrace(zero, one, zero, final, yes, truncateds, settings=VTraceSettings(0.5))
        assert [x.item() for x in ended] == [1.0, 1.0]
