"""GAE against a transcription of its recursion, and the episode ends it must not confuse."""

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.config.schema import LearnersConfig, ModelConfig, TrainingConfig
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import Learner
from rlrun.learning.returns import (
    add_advantages,
    chunk_lengths,
    discounted_returns,
    explained_variance,
    gae,
    gae_of_rows,
)
from rlrun.policies.rl_module import ActorCritic


def slow_gae(rewards, values, next_values, terminateds, truncateds, gamma, lambda_):
    """Equation 16 of the paper, one sub-environment and one step at a time."""
    advantages = np.zeros(rewards.shape)
    for b in range(rewards.shape[1]):
        following = 0.0
        for t in reversed(range(rewards.shape[0])):
            bootstrap = 0.0 if terminateds[t, b] else next_values[t, b]
            delta = rewards[t, b] + gamma * bootstrap - values[t, b]
            passed_on = 0.0 if terminateds[t, b] or truncateds[t, b] else following
            following = delta + gamma * lambda_ * passed_on
            advantages[t, b] = following
    return advantages


def random_columns(rng, shape):
    return (
        rng.normal(size=shape).astype(np.float32),
        rng.normal(size=shape).astype(np.float32),
        rng.normal(size=shape).astype(np.float32),
        rng.random(shape) < 0.1,
        rng.random(shape) < 0.1,
    )


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 30),
    num_envs=st.integers(1, 4),
    gamma=st.floats(0, 1),
    lambda_=st.floats(0, 1),
)
def test_gae_is_the_papers_recursion(seed, steps, num_envs, gamma, lambda_):
    columns = random_columns(np.random.default_rng(seed), (steps, num_envs))
    expected = slow_gae(*columns, gamma, lambda_)
    np.testing.assert_allclose(
        gae(*columns, gamma=gamma, lambda_=lambda_), expected, rtol=1e-4, atol=1e-4
    )


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_chunks_of_any_length_do_not_touch_each_other(seed, lengths):
    columns = random_columns(np.random.default_rng(seed), (sum(lengths),))
    found = gae_of_rows(*columns, np.array(lengths), gamma=0.97, lambda_=0.9)
    start = 0
    for length in lengths:
        chunk = [column[start : start + length, None] for column in columns]
        expected = slow_gae(*chunk, 0.97, 0.9)[:, 0]
        np.testing.assert_allclose(found[start : start + length], expected, rtol=1e-4, atol=1e-4)
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


def test_explained_variance():
    targets = np.array([1.0, 2.0, 3.0])
    assert explained_variance(targets, targets) == 1.0
    assert explained_variance(targets, np.zeros(3)) == 0.0
    assert explained_variance(np.ones(3), np.zeros(3)) is None


def test_chunks_are_rows_of_equal_unroll_ids_in_a_row():
    assert chunk_lengths(np.array([4, 4, 9, 4, 4, 4])).tolist() == [2, 1, 3]
    assert chunk_lengths(np.array([7])).tolist() == [1]


def test_discounted_returns_stop_at_ends_and_take_nothing_from_behind_a_chunk():
    rng = np.random.default_rng(3)
    lengths = np.array([4, 7, 1, 9])
    rewards, _, _, terminateds, truncateds = random_columns(rng, int(lengths.sum()))
    expected, begin = [], 0
    for length in lengths:
        for t in range(length):
            total, discount = 0.0, 1.0
            for k in range(begin + t, begin + length):
                total += discount * rewards[k]
                discount *= 0.9
                if terminateds[k] or truncateds[k]:
                    break
            expected.append(total)
        begin += length
    found = discounted_returns(rewards, terminateds, truncateds, lengths, gamma=0.9)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


class ValueIsTheObservation(ActorCritic):
    """V(s) is the number that is observed."""

    def forward_train(self, batch):
        return {**super().forward_train(batch), col.VF_PREDS: batch[col.OBS][:, 0]}


def test_targets_value_the_final_observation_and_know_no_normalisation():
    """Two fragments: a truncation whose next episode begins at 5, and one that is cut."""
    obs, new_obs = [1.0, 2.0, 5.0, 9.0], [2.0, 70.0, 6.0, 30.0]
    batch = SampleBatch(
        {
            col.OBS: np.array(obs, np.float32)[:, None],
            col.NEXT_OBS: np.array(new_obs, np.float32)[:, None],
            col.ACTIONS: np.zeros(4, np.int64),
            col.REWARDS: np.array([1.0, 2.0, 3.0, 4.0], np.float32),
            col.TERMINATEDS: np.zeros(4, np.bool_),
            col.TRUNCATEDS: np.array([False, True, False, False]),
            col.UNROLL_ID: np.array([0, 0, 0, 1]),
        }
    )
    space, model = gym.spaces.Box(-100, 100, (1,), np.float32), ModelConfig(hidden=(4,))
    module = ValueIsTheObservation(space, gym.spaces.Discrete(2), model)
    rows = Learner(module, TrainingConfig(), LearnersConfig()).load(batch, (col.ACTIONS,))
    add_advantages(rows, batch, module, 0.5, 0.9)
    second = 2.0 + 0.5 * 70.0 - 2.0
    expected = [
        (1.0 + 0.5 * 2.0 - 1.0) + 0.5 * 0.9 * second,
        second,
        3.0 + 0.5 * 6.0 - 5.0,
        4.0 + 0.5 * 30.0 - 9.0,
    ]
    np.testing.assert_allclose(rows.columns[col.ADVANTAGES], expected, rtol=1e-6)
    targets = np.array(expected) + obs
    np.testing.assert_allclose(rows.columns[col.VALUE_TARGETS], targets, rtol=1e-6)
