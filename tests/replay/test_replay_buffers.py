"""Sampling transitions: n-step returns, priorities, a reservoir, a few train batches."""

from collections import Counter

import numpy as np
import pytest
from experience import GAMMA, Experience, assert_equal_batches, assert_returns
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch, concat_samples
from rlrun.replay.circular_buffer import CircularBuffer
from rlrun.replay.prioritized_replay_buffer import PrioritizedReplayBuffer, SegmentTree
from rlrun.replay.replay_buffer import ReplayBuffer
from rlrun.replay.reservoir_buffer import ReservoirBuffer


def test_two_fragments_in_one_batch_are_joined():
    experience = Experience(1, num_envs=3)
    buffer = ReplayBuffer(100, n_step=3, gamma=GAMMA)
    for _ in range(2):
        buffer.add(concat_samples([experience.batch(4), experience.batch(5)]))
        buffer.check_valid()
        assert_returns(buffer.sample(64, experience.rng), experience.rows["a"], 3)


def test_a_buffer_of_one_transition_holds_the_newest():
    experience = Experience(1, num_envs=1)
    buffer = ReplayBuffer(1)
    assert not buffer.can_be_sampled
    for _ in range(3):
        buffer.add(experience.batch(2))
        assert buffer.can_be_sampled
        buffer.check_valid()
        sample = buffer.sample(4, experience.rng)
        assert sample[col.REWARDS].tolist() == pytest.approx([experience.rows["a"][-1].reward] * 4)
    with pytest.raises(ValueError, match="at least 1"):
        ReplayBuffer(0)


def steps_of_one_agent(steps, observations, following, truncateds, *, unroll=0):
    """Rows of one episode with a reward of ``1 + step``."""
    n = len(steps)
    return SampleBatch(
        {
            col.OBS: np.array(observations, np.float32)[:, None],
            col.NEXT_OBS: np.array(following, np.float32)[:, None],
            col.ACTIONS: np.zeros(n, np.int64),
            col.REWARDS: np.array(steps, np.float32) + 1,
            col.TERMINATEDS: np.zeros(n, np.bool_),
            col.TRUNCATEDS: np.array(truncateds, np.bool_),
            col.EPS_ID: np.zeros(n, np.int64),
            col.T: np.array(steps),
            col.UNROLL_ID: np.full(n, unroll),
        }
    )


def test_the_last_steps_of_an_episode_have_shorter_returns():
    """Also where the next episode follows in the same chunk under the same id."""
    buffer = ReplayBuffer(8, n_step=3, gamma=0.5)
    ends = [False, False, True, False]
    buffer.add(steps_of_one_agent([0, 1, 2, 3], [0, 1, 2, 50], [1, 2, 3, 51], ends))
    sample = buffer.gather(np.arange(4))
    assert sample[col.REWARDS].tolist() == [1 + 1 + 0.75, 2 + 1.5, 3, 4]
    assert sample[col.DISCOUNTS].tolist() == [0.125, 0.25, 0.5, 0.5]
    # Cut short by truncation, the final observation counts; it is no terminal.
    assert sample[col.NEXT_OBS].ravel().tolist() == [3, 3, 3, 51]
    assert not sample[col.TERMINATEDS].any()
    assert sample[col.TRUNCATEDS].tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("step", "goes_on_at", "joined"),
    [(3, 1.0, True), (3, 7.0, False), (1, 7.0, True), (0, 1.0, False)],
)
def test_a_later_fragment_goes_on_only_where_the_agent_was(step, goes_on_at, joined):
    """Env steps without the agent may lie in between, but no step of its own that was not added.

    Its very next step is known as such by its number: a filter may have moved since.
    """
    buffer = ReplayBuffer(8, n_step=2, gamma=0.5)
    buffer.add(steps_of_one_agent([0], [0], [1], [False]))
    buffer.add(steps_of_one_agent([step], [goes_on_at], [8], [False], unroll=1))
    sample = buffer.gather(np.arange(2))
    last = 1 + step
    assert sample[col.REWARDS].tolist() == [1 + 0.5 * last if joined else 1, last]
    assert sample[col.OBS].ravel().tolist() == [0, goes_on_at]
    buffer.check_valid()


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("shape", [(2,), (4, 6, 6)])
def test_observations_that_code_has_changed_are_kept_as_they_are_and_others_once(kind, shape):
    """Vectors, and stacks of frames, which share theirs."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (9, *shape[-2:]), dtype=np.uint8)
    stacks = np.stack([frames[i : i + 4] for i in range(6)]) if len(shape) == 3 else frames
    obs, following = stacks[:5].copy(), stacks[1:6].copy()
    obs[[2, 3]] = 255 - obs[[2, 3]]
    steps = steps_of_one_agent(range(5), range(5), range(1, 6), [False] * 5)
    for first, last, unroll in ((0, 3, 0), (3, 5, 1)):  # the second begins with a changed one
        part = steps.slice(first, last).copy()
        part[col.OBS], part[col.NEXT_OBS] = obs[first:last], following[first:last]
        part[col.UNROLL_ID] = np.full(last - first, unroll)
        if first == 0:
            buffer, whole = kind(8, n_step=2, gamma=0.5), kind(8, n_step=2, gamma=0.5)
        buffer.add(part)
        part[col.OBS] = stacks[first:last]
        whole.add(part)
    sample = buffer.gather(np.arange(5))
    assert np.array_equal(sample[col.OBS], obs)
    assert np.array_equal(sample[col.NEXT_OBS], following[[1, 2, 3, 4, 4]])
    assert sample[col.DISCOUNTS].tolist() == [0.25] * 4 + [0.5]
    assert buffer.size_bytes > whole.size_bytes
    buffer.check_valid()
    whole.check_valid()


def test_episodes_that_never_end_are_forgotten_with_their_transitions():
    buffer = ReplayBuffer(4)
    for episode in range(9):
        batch = Experience(3, num_envs=1).batch(1)
        batch[col.EPS_ID] = np.array([episode])
        batch[col.TERMINATEDS] = batch[col.TRUNCATEDS] = np.array([False])
        buffer.add(batch)
    assert [row[0] for row in buffer.get_state()["newest"].tolist()] == [5, 6, 7, 8]


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("fragments", [0, 2, 30])
@pytest.mark.parametrize("used", [False, True])
def test_a_restored_buffer_goes_on_the_same(kind, fragments, used):
    """Whatever it has held before."""
    experience = Experience(4)
    buffer, restored = (kind(50, n_step=3, gamma=GAMMA) for _ in range(2))
    if used:
        restored.add(Experience(5).batch(40))
    for _ in range(fragments):
        buffer.add(experience.batch(3))
        if kind is PrioritizedReplayBuffer:
            ids = buffer.sample(5, experience.rng)[col.ITEM_IDS]
            buffer.update_priorities(ids, experience.rng.random(5) * 3 + 0.1)
    restored.set_state(buffer.get_state())
    restored.check_valid()
    for _ in range(3):
        more = experience.batch(2)
        for each in (buffer, restored):
            each.add(more)
            each.check_valid()
        one, other = (each.sample(32, np.random.default_rng(7)) for each in (buffer, restored))
        assert_equal_batches(one, other)


@pytest.mark.parametrize("buffer", [ReplayBuffer(), PrioritizedReplayBuffer(), ReservoirBuffer()])
def test_an_empty_buffer_cannot_be_sampled(buffer):
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1, np.random.default_rng(0))
    with pytest.raises(IndexError, match="empty"):
        CircularBuffer(2, 1).sample(np.random.default_rng(0))


def chi_square(counts, probabilities):
    expected = counts.sum() * probabilities
    return float(((counts - expected) ** 2 / expected).sum())


def test_uniform_sampling_is_uniform():
    buffer = ReplayBuffer(20)
    buffer.add(Experience(5, num_envs=1).batch(50))
    ids = buffer.sample(20_000, np.random.default_rng(1))[col.ITEM_IDS]
    counts = np.bincount(ids - 30, minlength=20)
    assert chi_square(counts, np.full(20, 1 / 20)) < 43.8  # 99.9 % of chi-square with 19 degrees


def prioritized(alpha):
    """A full buffer of 16 transitions, and their source."""
    experience, buffer = Experience(6, num_envs=1), PrioritizedReplayBuffer(16, alpha=alpha)
    buffer.add(experience.batch(16))
    return buffer, experience


def test_frequencies_match_the_priorities_and_weights_make_up_for_them():
    buffer, _ = prioritized(alpha=0.7)
    priorities = np.random.default_rng(2).random(16) + 0.05
    buffer.update_priorities(np.arange(16), priorities)
    batch = buffer.sample(40_000, np.random.default_rng(3), beta=0.5)
    probabilities = priorities**0.7 / (priorities**0.7).sum()
    counts = np.bincount(batch[col.ITEM_IDS], minlength=16)
    assert chi_square(counts, probabilities) < 37.7  # 99.9 % with 15 degrees
    weights = (16 * probabilities) ** -0.5
    expected = (weights / weights.max())[batch[col.ITEM_IDS]]
    np.testing.assert_allclose(batch[col.WEIGHTS], expected, rtol=1e-5)


def held_priorities(buffer):
    """Of the transitions from the oldest to the newest, with an alpha of 1."""
    return buffer.get_state()["scaled_priorities"].tolist()


def test_new_items_get_the_highest_priority_so_far():
    buffer, experience = prioritized(alpha=1.0)
    buffer.update_priorities(np.arange(16), np.full(16, 0.5))
    for priority in (7.0, 0.5):
        buffer.update_priorities(np.array([3]), np.array([priority]))
    buffer.add(experience.batch(2))
    assert held_priorities(buffer) == [0.5] * 14 + [7.0] * 2


def test_rows_may_come_with_priorities_more_than_there_are_places_too():
    buffer, experience = prioritized(alpha=1.0)
    buffer.add(experience.batch(2), np.array([0.5, 3.0]))
    assert held_priorities(buffer) == [1.0] * 14 + [0.5, 3.0]
    buffer.add(experience.batch(20), np.arange(1.0, 21.0))
    assert held_priorities(buffer) == [float(number) for number in range(5, 21)]
    with pytest.raises(ValueError, match="positive"):
        buffer.add(experience.batch(2), np.array([1.0, np.nan]))
    assert buffer.num_added == 38
    buffer.check_valid()


def test_transitions_that_were_overwritten_meanwhile_are_not_updated():
    buffer, experience = prioritized(alpha=1.0)
    sampled = np.array([0, 1, 9])
    buffer.add(experience.batch(2))  # in the places of 0 and 1
    buffer.update_priorities(sampled, np.array([9.0, 9.0, 4.0]))
    assert held_priorities(buffer) == [4.0 if number == 9 else 1.0 for number in range(2, 18)]
    assert buffer.max_priority == 4.0
    buffer.check_valid()


def test_priorities_that_come_with_transitions_do_not_raise_those_of_later_ones():
    buffer, experience = prioritized(alpha=1.0)
    buffer.add(experience.batch(1), np.array([10.0]))
    buffer.add(experience.batch(1))
    assert held_priorities(buffer)[-2:] == [10.0, 1.0]


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_priorities_must_be_positive_and_finite(wrong):
    buffer, _ = prioritized(alpha=0.6)
    with pytest.raises(ValueError, match="positive"):
        buffer.update_priorities(np.array([0, 1]), np.array([1.0, wrong]))


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), capacity=st.integers(1, 70))
def test_the_tree_finds_what_a_search_through_the_sums_finds(seed, capacity):
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


@pytest.mark.parametrize(("capacity", "nodes"), [(1, 2), (2, 4), (7, 16), (8, 16), (9, 32)])
def test_the_tree_is_as_deep_as_its_leaves_need(capacity, nodes):
    assert SegmentTree(capacity, np.add, 0.0)._nodes.shape == (nodes,)


def test_a_mass_at_the_border_of_two_leaves_is_of_the_second():
    tree = SegmentTree(4, np.add, 0.0)
    tree[np.arange(4)] = [1.0, 1.0, 0.0, 2.0]
    found = tree.find(np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.9]))
    assert found.tolist() == [0, 0, 1, 1, 3, 3]


@pytest.mark.parametrize(
    ("capacity", "fragment", "most"),
    # 99.9 % of chi-square with 59 and with 2 degrees. Where places are filled without replacement,
    # counts vary less than it allows.
    [(10, 20, 98.3), (1, 1, 13.8)],
)
def test_a_reservoir_holds_each_transition_with_the_same_probability(capacity, fragment, most):
    counts, experience = np.zeros(3 * fragment), Experience(8, num_envs=1)
    fragments = [experience.batch(fragment) for _ in range(3)]
    for seed in range(2000):
        rng = np.random.default_rng(seed)
        buffer = ReservoirBuffer(capacity)
        for each in fragments:
            buffer.add(each, rng)
        counts[buffer.get_state()["item_ids"]] += 1
    assert chi_square(counts, np.full(len(counts), 1 / len(counts))) < most


def test_a_reservoirs_rows_belong_together_and_are_restored():
    experience, rng = Experience(9), np.random.default_rng(0)
    buffer, restored = ReservoirBuffer(15), ReservoirBuffer(15)
    for _ in range(6):
        buffer.add(experience.batch(4), rng)
    restored.set_state(buffer.get_state())
    batch, again = (each.sample(40, np.random.default_rng(1)) for each in (buffer, restored))
    assert_equal_batches(batch, again)
    for i, item in enumerate(batch[col.ITEM_IDS].tolist()):
        row = experience.rows["a"][item]
        found = [batch[name][i].item() for name in (col.OBS, col.NEXT_OBS, col.REWARDS)]
        assert found == [row.obs, row.new_obs, np.float32(row.reward)]


@given(
    num_batches=st.integers(1, 4),
    uses=st.integers(1, 3),
    actions=st.lists(st.booleans(), max_size=40),
    seed=st.integers(0, 1000),
)
def test_a_circular_buffer_keeps_the_newest_batches_and_counts_uses(
    num_batches, uses, actions, seed
):
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


def test_a_circular_buffer_draws_every_batch_with_the_same_probability():
    rng, counts = np.random.default_rng(0), Counter()
    for _ in range(600):
        buffer = CircularBuffer(3, 2)
        for batch in "abc":
            buffer.add(batch)
        counts[buffer.sample(rng)] += 1
    assert all(150 < counts[batch] < 250 for batch in "abc")


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


@pytest.mark.parametrize("capacity", [5, 30])
def test_a_state_of_another_capacity_or_without_priorities_is_refused_in_words(capacity):
    buffer = ReplayBuffer(10)
    buffer.add(Experience(1).batch(12))
    state = buffer.get_state()
    with pytest.raises(ValueError, match=rf"capacity is {capacity}, .* another .* set it to 10"):
        ReplayBuffer(capacity).set_state(state)
    with pytest.raises(ValueError, match=r"no priorities, but replay\.prioritized is true"):
        PrioritizedReplayBuffer(10).set_state(state)
