"""Replay buffers against a list of transitions that is searched step by step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch, concat_samples
from rlrun.replay.prioritized_replay_buffer import PrioritizedReplayBuffer
from rlrun.replay.replay_buffer import ReplayBuffer
from rlrun.replay.reservoir_buffer import ReservoirBuffer
from rlrun.replay.segment_tree import SegmentTree

GAMMA = 0.9


class Lanes:
    """Streams of transitions: observations are numbers, each used for one moment only."""

    def __init__(self, seed, num_lanes):
        self.rng = np.random.default_rng(seed)
        self.num_lanes = num_lanes
        self.moment = 0
        self.fragment = 0
        self.obs = [self.new_moment() for _ in range(num_lanes)]
        self.episode = list(range(num_lanes))
        self.step = [0] * num_lanes
        self.transitions = []  # (lane, episode, step, obs, action, reward, next_obs, term, trunc)

    def new_moment(self):
        self.moment += 1
        return float(self.moment)

    def take_step(self, lane):
        following = self.new_moment()
        terminated, truncated = (bool(x) for x in self.rng.random(2) < 0.15)
        row = (
            lane,
            self.episode[lane],
            self.step[lane],
            self.obs[lane],
            int(self.rng.integers(5)),
            float(self.rng.normal()),
            following,
            terminated,
            truncated,
        )
        self.obs[lane], self.step[lane] = following, self.step[lane] + 1
        if terminated or truncated:
            self.obs[lane], self.step[lane] = self.new_moment(), 0
            self.episode[lane] += self.num_lanes
        return row

    def fragment_of(self, length, *, shared=True):
        """The next ``length`` steps of each lane, lane after lane, as an env runner sends them."""
        rows = [self.take_step(lane) for lane in range(self.num_lanes) for _ in range(length)]
        self.transitions += rows
        lane, episode, step, obs, action, reward, following, term, trunc = map(
            np.array, zip(*rows, strict=True)
        )
        batch = SampleBatch(
            {
                col.ACTIONS: action,
                col.REWARDS: reward.astype(np.float32),
                col.TERMINATEDS: term,
                col.TRUNCATEDS: trunc,
                col.EPS_ID: episode,
                col.T: step,
                col.UNROLL_ID: lane + (self.fragment << 16) + (3 << 48),
            }
        )
        self.fragment += 1
        obs, following = (x.astype(np.float32)[:, None] for x in (obs, following))
        if shared:
            storage, index = np.unique(np.concatenate([obs, following]), return_inverse=True)
            batch.set_shared(col.OBS, storage[:, None], index.ravel()[: len(rows)])
            batch.set_shared(col.NEXT_OBS, storage[:, None], index.ravel()[len(rows) :])
            assert batch.shared(col.OBS)[0] is not None
        else:
            batch[col.OBS], batch[col.NEXT_OBS] = obs, following
        return batch


def slow_sample(transitions, item, n_step):
    """Walks the episode of a transition among those that came later."""
    lane, episode, step, obs, action, reward, following, term, trunc = transitions[item]
    total, discount = reward, GAMMA
    for _ in range(n_step - 1):
        if term or trunc:
            break
        step += 1
        found = [row for row in transitions if row[:3] == (lane, episode, step)]
        if not found:
            break
        _, _, _, _, _, reward, following, term, trunc = found[0]
        total += discount * reward
        discount *= GAMMA
    return obs, action, total, following, term, trunc, discount


def assert_samples_are_right(buffer, transitions, n_step, rng):
    batch = buffer.sample(64, rng)
    assert batch[col.ITEM_IDS].min() >= max(len(transitions) - buffer.capacity, 0)
    names = (col.OBS, col.ACTIONS, col.REWARDS, col.NEXT_OBS)
    names += (col.TERMINATEDS, col.TRUNCATEDS, col.DISCOUNTS)
    for i, item in enumerate(batch[col.ITEM_IDS].tolist()):
        expected = slow_sample(transitions, item, n_step)
        found = [np.ravel(batch[name][i])[0] for name in names]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_lanes=st.integers(1, 4),
    capacity=st.integers(1, 40),
    n_step=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    kind=st.sampled_from([ReplayBuffer, PrioritizedReplayBuffer]),
    shared=st.booleans(),
)
def test_pitfalls_29_to_33_returns_stop_at_ends_and_at_the_rings_edge(
    seed, num_lanes, capacity, n_step, lengths, kind, shared
):
    lanes = Lanes(seed, num_lanes)
    buffer = kind(capacity, n_step=n_step, gamma=GAMMA)
    for length in lengths:
        buffer.add(lanes.fragment_of(length, shared=shared))
        buffer.check_valid()
        assert buffer.num_added == len(lanes.transitions)
        assert len(buffer) == min(capacity, len(lanes.transitions))
        assert_samples_are_right(buffer, lanes.transitions, n_step, lanes.rng)


def test_two_fragments_in_one_batch_are_joined():
    lanes = Lanes(1, 3)
    buffer = ReplayBuffer(100, n_step=3, gamma=GAMMA)
    buffer.add(concat_samples([lanes.fragment_of(4), lanes.fragment_of(5)]))
    buffer.check_valid()
    assert_samples_are_right(buffer, lanes.transitions, 3, lanes.rng)


@pytest.mark.parametrize("length", [1, 7])
def test_each_observation_is_kept_once(length):
    lanes = Lanes(2, 2)
    buffer = ReplayBuffer(1000)
    for _ in range(60):
        buffer.add(lanes.fragment_of(length))
    distinct = {x for row in lanes.transitions for x in (row[3], row[6])}
    assert buffer._observations.num_used == len(distinct)


def test_pitfalls_30_31_34_the_last_steps_of_an_episode_have_shorter_returns():
    batch = SampleBatch(
        {
            col.OBS: np.arange(3, dtype=np.float32)[:, None],
            col.NEXT_OBS: np.arange(1, 4, dtype=np.float32)[:, None],
            col.ACTIONS: np.zeros(3, np.int64),
            col.REWARDS: np.array([1, 2, 4], np.float32),
            col.TERMINATEDS: np.zeros(3, np.bool_),
            col.TRUNCATEDS: np.array([False, False, True]),
            col.EPS_ID: np.zeros(3, np.int64),
            col.T: np.arange(3),
            col.UNROLL_ID: np.zeros(3, np.int64),
        }
    )
    buffer = ReplayBuffer(8, n_step=3, gamma=0.5)
    buffer.add(batch)
    sample = buffer.gather(np.arange(3))
    assert sample[col.REWARDS].tolist() == [1 + 1 + 1, 2 + 2, 4]
    assert sample[col.DISCOUNTS].tolist() == [0.125, 0.25, 0.5]
    # Cut short by truncation, the final observation counts; it is no terminal.
    assert sample[col.NEXT_OBS].ravel().tolist() == [3, 3, 3]
    assert not sample[col.TERMINATEDS].any()
    assert sample[col.TRUNCATEDS].all()


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("fragments", [0, 2, 30])
def test_a_restored_buffer_goes_on_the_same(kind, fragments):
    lanes = Lanes(4, 2)
    buffer, restored = (kind(50, n_step=3, gamma=GAMMA) for _ in range(2))
    for _ in range(fragments):
        buffer.add(lanes.fragment_of(3))
        if kind is PrioritizedReplayBuffer:
            ids = buffer.sample(5, lanes.rng)[col.ITEM_IDS]
            buffer.update_priorities(ids, lanes.rng.random(5) * 3 + 0.1)
    restored.set_state(buffer.get_state())
    restored.check_valid()
    for _ in range(3):
        more = lanes.fragment_of(2)
        for one in (buffer, restored):
            one.add(more)
            one.check_valid()
        first, second = (one.sample(32, np.random.default_rng(7)) for one in (buffer, restored))
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize("buffer", [ReplayBuffer(), PrioritizedReplayBuffer(), ReservoirBuffer()])
def test_an_empty_buffer_cannot_be_sampled(buffer):
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1, np.random.default_rng(0))


def chi_square(counts, probabilities):
    expected = counts.sum() * probabilities
    return float(((counts - expected) ** 2 / expected).sum())


def test_uniform_sampling_is_uniform():
    lanes = Lanes(5, 1)
    buffer = ReplayBuffer(20)
    buffer.add(lanes.fragment_of(50))
    ids = buffer.sample(20_000, np.random.default_rng(1))[col.ITEM_IDS]
    counts = np.bincount(ids - 30, minlength=20)
    assert chi_square(counts, np.full(20, 1 / 20)) < 43.8  # 99.9 % of chi-square with 19 degrees


def prioritized(num_items=16, **settings):
    lanes = Lanes(6, 1)
    buffer = PrioritizedReplayBuffer(num_items, gamma=GAMMA, **settings)
    buffer.add(lanes.fragment_of(num_items))
    return buffer, lanes


def test_pitfall_38_frequencies_match_the_priorities():
    buffer, _ = prioritized(alpha=0.7)
    priorities = np.random.default_rng(2).random(16) + 0.05
    buffer.update_priorities(np.arange(16), priorities)
    ids = buffer.sample(40_000, np.random.default_rng(3))[col.ITEM_IDS]
    scaled = priorities**0.7
    counts = np.bincount(ids, minlength=16)
    assert chi_square(counts, scaled / scaled.sum()) < 37.7  # 99.9 % with 15 degrees


def test_pitfall_36_weights_are_those_of_the_paper():
    buffer, _ = prioritized(alpha=0.6)
    priorities = np.random.default_rng(2).random(16) + 0.05
    buffer.update_priorities(np.arange(16), priorities)
    batch = buffer.sample(64, np.random.default_rng(3), beta=0.5)
    p = priorities**0.6 / (priorities**0.6).sum()
    weights = (16 * p) ** -0.5
    np.testing.assert_allclose(
        batch[col.WEIGHTS], (weights / weights.max())[batch[col.ITEM_IDS]], rtol=1e-5
    )


def test_pitfall_35_new_items_get_the_highest_priority_so_far():
    buffer, lanes = prioritized(alpha=1.0)
    buffer.update_priorities(np.arange(16), np.full(16, 0.5))
    buffer.update_priorities(np.array([3]), np.array([7.0]))
    buffer.update_priorities(np.array([3]), np.array([0.5]))
    buffer.add(lanes.fragment_of(2))
    assert buffer._sums[np.array([0, 1, 2])].tolist() == [7.0, 7.0, 0.5]


def test_pitfall_39_what_was_overwritten_meanwhile_is_not_updated():
    buffer, lanes = prioritized(alpha=1.0)
    sampled = np.array([0, 1, 9])
    buffer.add(lanes.fragment_of(2))  # items 0 and 1 are gone, their places hold 16 and 17
    buffer.update_priorities(sampled, np.array([9.0, 9.0, 4.0]))
    assert buffer._sums[np.array([0, 1, 9])].tolist() == [1.0, 1.0, 4.0]
    assert buffer.max_priority == 4.0
    buffer.check_valid()


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_priorities_must_be_positive_and_finite(wrong):
    buffer, _ = prioritized()
    with pytest.raises(ValueError, match="positive"):
        buffer.update_priorities(np.array([0, 1]), np.array([1.0, wrong]))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), capacity=st.integers(1, 70))
def test_pitfall_38_the_tree_finds_what_a_search_through_the_sums_finds(seed, capacity):
    rng = np.random.default_rng(seed)
    tree = SegmentTree(capacity, np.add, 0.0)
    values = np.zeros(capacity)
    for _ in range(4):
        leaves = rng.integers(capacity, size=5)
        new = rng.random(5) * rng.choice([1e-12, 1.0, 1e9], size=5) * (rng.random(5) < 0.7)
        tree[leaves] = new
        values[leaves] = new
    np.testing.assert_array_equal(tree[np.arange(capacity)], values)
    assert tree.root == pytest.approx(values.sum())
    if not values.any():
        return
    # The total itself, which rounding may reach, must not lead to an empty leaf either.
    masses = np.append(rng.random(50), 1.0) * tree.root
    found = tree.find(masses)
    assert (found < capacity).all()
    assert (values[found] > 0).all()
    if capacity <= 8 and values.max() < 10 * values[values > 0].min():
        expected = np.searchsorted(np.cumsum(values), masses[:-1], side="right")
        np.testing.assert_array_equal(found[:-1], expected)


def test_a_reservoir_holds_each_transition_with_the_same_probability():
    counts = np.zeros(60)
    lanes = Lanes(8, 1)
    fragments = [lanes.fragment_of(20) for _ in range(3)]
    for seed in range(2000):
        rng = np.random.default_rng(seed)
        buffer = ReservoirBuffer(10)
        for fragment in fragments:
            buffer.add(fragment, rng)
        counts[buffer.get_state()["item_ids"]] += 1
    # Places are filled without replacement, so the counts vary less than chi-square allows.
    assert chi_square(counts, np.full(60, 1 / 60)) < 98.3  # 99.9 % with 59 degrees


def test_a_reservoirs_rows_belong_together_and_are_restored():
    lanes = Lanes(9, 2)
    buffer, rng = ReservoirBuffer(15), np.random.default_rng(0)
    for _ in range(6):
        buffer.add(lanes.fragment_of(4), rng)
    restored = ReservoirBuffer(15)
    restored.set_state(buffer.get_state())
    for one in (buffer, restored):
        batch = one.sample(40, np.random.default_rng(1))
        for i, item in enumerate(batch[col.ITEM_IDS].tolist()):
            row = lanes.transitions[item]
            assert batch[col.OBS][i, 0] == row[3]
            assert batch[col.NEXT_OBS][i, 0] == row[6]
            assert batch[col.REWARDS][i] == np.float32(row[5])
