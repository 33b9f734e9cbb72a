"""Sequences, episodes and fragments in replay, against the transitions added."""

import numpy as np
import pytest
from experience import STATE, Experience, Row, assert_equal_batches, followers
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.data import columns as col
from rlrun.replay.sequence_replay_buffer import ItemReplayBuffer, SequenceReplayBuffer


def sequences(batch):
    """The rows of each sequence of a sample."""
    return np.split(np.arange(len(batch)), np.cumsum(batch[col.SEQ_LENS])[:-1])


@settings(max_examples=25)
@given(
    seed=st.integers(0, 99),
    capacity=st.integers(3, 60),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    length=st.integers(1, 7),
)
def test_a_sequence_stays_in_its_episode_and_begins_with_its_state(seed, capacity, lengths, length):
    experience = Experience(seed)
    buffer = SequenceReplayBuffer(capacity, length=length, further_columns=[STATE], alpha=1.0)
    for size in lengths:
        buffer.add(experience.batch(size))
        buffer.check_valid()
    rows, batch = experience.rows["a"], buffer.sample(20, experience.rng)
    assert len(batch[STATE]) == len(batch[col.SEQ_LENS]) == 20
    for k, at in enumerate(sequences(batch)):
        ids = batch[col.ITEM_IDS][at].tolist()
        assert ids == followers(rows, ids[0])[:length]
        assert batch[col.T][at].tolist() == [rows[i].t for i in ids]
        assert batch[col.OBS][at, 0].tolist() == [rows[i].obs for i in ids]
        assert batch[col.NEXT_OBS][at, 0].tolist() == [rows[i].new_obs for i in ids]
        assert batch[STATE][k].tolist() == [-rows[ids[0]].obs]
        assert len(set(batch[col.WEIGHTS][at].tolist())) == 1
        assert min(ids) >= len(rows) - capacity


def test_sequences_are_drawn_by_the_priority_of_their_first_step():
    experience = Experience(1)
    buffer = SequenceReplayBuffer(100, length=4, alpha=1.0)
    buffer.add(experience.batch(20))
    buffer.update_priorities(np.arange(40), np.full(40, 1e-6))
    drawn = buffer.sample(5, experience.rng)
    favourite = drawn[col.ITEM_IDS][sequences(drawn)[2][0]]
    buffer.update_priorities(np.array([favourite]), np.array([1e6]))
    again = buffer.sample(10, experience.rng)
    assert {int(again[col.ITEM_IDS][rows[0]]) for rows in sequences(again)} == {int(favourite)}


@settings(max_examples=25)
@given(
    seed=st.integers(0, 99),
    capacity=st.integers(3, 60),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    burn_in=st.integers(1, 6),
)
def test_a_sequence_of_burn_in_alone_is_not_drawn(seed, capacity, lengths, burn_in):
    """Nor has it a part in the weights of others; one that begins in the initial state has none."""
    options = {"length": burn_in + 3, "burn_in": burn_in, "initial_state": [np.float32([-1.0])]}
    experience = Experience(seed)
    buffer, resumed = (
        SequenceReplayBuffer(capacity, **options, further_columns=[STATE], alpha=0.0)
        for _ in range(2)
    )
    for size in lengths:
        batch = experience.batch(size)
        for part in (batch.slice(0, 0), batch):
            buffer.add(part)
        buffer.update_priorities(np.arange(buffer.num_added), np.full(buffer.num_added, 2.0))
        buffer.check_valid()
    rows = experience.rows["a"]
    held = range(max(len(rows) - capacity, 0), len(rows))
    known = {i for i in held if len(followers(rows, i)) > burn_in or rows[i].obs == 1.0}
    resumed.set_state(buffer.get_state())
    for each in (buffer, resumed):
        assert each.can_be_sampled == bool(known)
        if known:
            batch = each.sample(400, np.random.default_rng(seed))
            firsts = {int(batch[col.ITEM_IDS][at[0]]) for at in sequences(batch)}
            assert firsts <= known
            assert len(firsts) > 0.8 * len(known)
            assert (batch[col.WEIGHTS] == 1.0).all()
        else:
            with pytest.raises(ValueError, match="no sequence to learn from"):
                each.sample(1, experience.rng)
    further = experience.batch(8)
    for each in (buffer, resumed):
        each.add(further)
    if buffer.can_be_sampled:
        one, other = (each.sample(9, np.random.default_rng(0)) for each in (buffer, resumed))
        assert_equal_batches(one, other)


def test_without_an_initial_state_all_sequences_have_burn_in():
    experience = Experience(1, num_envs=1)
    buffer, empty = (SequenceReplayBuffer(50, length=4, burn_in=2) for _ in range(2))
    buffer.set_state(empty.get_state())
    buffer.add(experience.batch(2))
    assert not buffer.can_be_sampled
    buffer.add(experience.batch(20))
    assert min(buffer.sample(50, experience.rng)[col.SEQ_LENS]) == 3


def test_a_state_of_another_burn_in_begins_sequences_with_the_present_one():
    experience = Experience(1, num_envs=1)
    before, after = (SequenceReplayBuffer(50, length=9, burn_in=k) for k in (0, 4))
    before.add(experience.batch(20))
    after.set_state(before.get_state())
    for buffer, shortest in ((before, 1), (after, 5)):
        assert min(buffer.sample(200, experience.rng)[col.SEQ_LENS]) == shortest


@pytest.mark.parametrize("seed", [15, 28, 37])
def test_a_restored_buffer_does_not_wait_for_steps_of_before(seed):
    """They would begin sequences by what is added where they were."""
    experience = Experience(seed, num_envs=1)
    used, fresh = (SequenceReplayBuffer(50, length=4, burn_in=3) for _ in range(2))
    state = fresh.get_state()
    used.add(experience.batch(3))
    used.set_state(state)
    for length in (2, 3, 4, 5):
        batch = experience.batch(length)
        for buffer in (used, fresh):
            buffer.add(batch)
        np.testing.assert_array_equal(
            used.get_state()["scaled_priorities"], fresh.get_state()["scaled_priorities"]
        )


@settings(max_examples=15)
@given(
    seed=st.integers(0, 99),
    capacity=st.integers(5, 80),
    lengths=st.lists(st.integers(1, 9), min_size=4, max_size=9),
    num_agents=st.sampled_from([1, 5]),
)
def test_an_episode_is_sampled_whole_or_not_at_all(seed, capacity, lengths, num_agents):
    """Agents of several do not act in each step."""
    experience = Experience(seed, num_agents=num_agents)
    buffer, resumed = (ItemReplayBuffer(capacity, unit="episodes") for _ in range(2))
    for size in lengths:
        batches = experience.batches(size).policy_batches
        if "a" in batches:  # no agent of the policy acted otherwise
            buffer.add(batches["a"])
    rows = experience.rows["a"]
    followed = {row.episode for row in rows if not row.t}
    firsts = {row[:3]: i for i, row in reversed([*enumerate(rows)]) if row.episode in followed}
    episodes = [
        followers(rows, first) for first in firsts.values() if first >= len(rows) - capacity
    ]
    complete = [episode for episode in episodes if rows[episode[-1]].done]
    # Of agents that come when those of the first step have left it is not known.
    known = [episode for episode in complete if not rows[episode[0]].t]
    assert len(known) <= buffer.num_items <= len(complete)
    if not buffer.num_items:
        with pytest.raises(ValueError, match="no episodes yet"):
            buffer.sample(1, experience.rng)
        return
    batch = buffer.sample(30, experience.rng)
    assert all(batch[col.ITEM_IDS][at].tolist() in complete for at in sequences(batch))
    assert (batch[col.TERMINATEDS] | batch[col.TRUNCATEDS]).sum() == 30
    resumed.set_state(buffer.get_state())
    further = experience.batch(8)
    for each in (buffer, resumed):
        each.add(further)
    assert buffer.num_items == resumed.num_items
    if buffer.num_items:
        one, other = (each.sample(9, np.random.default_rng(0)) for each in (buffer, resumed))
        assert_equal_batches(one, other)


def test_an_episode_whose_first_steps_were_not_added_is_not_sampled():
    experience = Experience(4)
    experience.batch(3)
    buffer = ItemReplayBuffer(200, unit="episodes")
    for _ in range(8):
        buffer.add(experience.batch(4))
    batch = buffer.sample(60, experience.rng)
    firsts = {rows[0] for rows in sequences(batch)}
    assert len(firsts) == 60
    assert not batch[col.T][sorted(firsts)].any()


@pytest.mark.parametrize(("start", "sampled"), [(0, 2), (5, 0)])
def test_agents_that_join_an_episode_are_sampled_if_its_first_step_was_added(start, sampled):
    buffer = ItemReplayBuffer(200, unit="episodes")
    alone = range(start, start + 3)
    place = Experience(0)._batch
    buffer.add(place([Row(0, 0, 0, t, t, 0, 0.0, t + 1, False, False) for t in alone], False))
    last = alone.stop
    joined = [Row(0, 0, agent, last, last, 0, 0.0, last, True, False) for agent in (0, 1)]
    buffer.add(place(joined, False))
    assert buffer.num_items == sampled


def test_fragments_are_the_batches_that_were_added():
    experience = Experience(2)
    buffer = ItemReplayBuffer(25, unit="fragments")
    batches = [experience.batch(size) for size in (3, 5, 4)]  # 6, 10 and 8 transitions
    for batch in batches:
        buffer.add(batch)
    assert buffer.num_items == 3
    buffer.add(experience.batch(2))  # takes the places of the first
    assert buffer.num_items == 3
    batch = buffer.sample(40, experience.rng)
    assert set(batch[col.SEQ_LENS].tolist()) == {10, 8, 4}
    for rows in sequences(batch):
        if len(rows) == 10:
            np.testing.assert_array_equal(batch[col.OBS][rows], batches[1][col.OBS])
    with pytest.raises(ValueError, match="neither"):
        ItemReplayBuffer(unit="steps")
