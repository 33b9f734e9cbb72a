"""Sequences, episodes, fragments and policies in replay, against the transitions added."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.data import columns as col
from rlrun.data.multi_agent_batch import MultiAgentBatch
from rlrun.data.sample_batch import SampleBatch
from rlrun.replay.item_replay_buffer import ItemReplayBuffer
from rlrun.replay.multi_agent_replay_buffer import MultiAgentReplayBuffer
from rlrun.replay.replay_buffer import ReplayBuffer
from rlrun.replay.sequence_replay_buffer import SequenceReplayBuffer

STATE = "state_in_0"


class Stream:
    """Lanes whose observations are numbers, each used once; the state before a step is minus it."""

    def __init__(self, seed, lanes=2):
        self.rng = np.random.default_rng(seed)
        self.moment, self.fragment = 0, 0
        self.at = [(lane, 0, self._moment()) for lane in range(lanes)]  # episode, step, obs
        self.rows = []  # (lane, episode, step, obs, next_obs, done), in the order of arrival

    def _moment(self):
        self.moment += 1
        return float(self.moment)

    def batch(self, length):
        rows = []
        for lane in range(len(self.at)):
            for _ in range(length):
                episode, step, obs = self.at[lane]
                following, done = self._moment(), bool(self.rng.random() < 0.2)
                rows.append((lane, episode, step, obs, following, done))
                self.at[lane] = (episode, step + 1, following)
                if done:
                    self.at[lane] = (episode + len(self.at), 0, self._moment())
        self.rows += rows
        lane, episode, step, obs, following, done = map(np.array, zip(*rows, strict=True))
        ended_by_itself = self.rng.random(len(rows)) < 0.5
        batch = SampleBatch(
            {
                col.OBS: obs[:, None].astype(np.float32),
                col.NEXT_OBS: following[:, None].astype(np.float32),
                col.ACTIONS: step,
                col.REWARDS: obs.astype(np.float32),
                col.TERMINATEDS: done & ended_by_itself,
                col.TRUNCATEDS: done & ~ended_by_itself,
                col.EPS_ID: episode,
                col.T: step,
                col.UNROLL_ID: lane + (self.fragment << 16),
            }
        )
        batch[STATE] = -obs[:, None].astype(np.float32)
        self.fragment += 1
        return batch

    def run_from(self, first, length):
        """The rows that follow row ``first`` in its episode, itself included."""
        lane, episode, step = self.rows[first][:3]
        found = [first]
        while len(found) < length and not self.rows[found[-1]][5]:
            wanted = (lane, episode, step + len(found))
            later = [i for i in range(first, len(self.rows)) if self.rows[i][:3] == wanted]
            if not later:
                break
            found += later
        return found


def pieces(batch):
    return np.split(np.arange(len(batch)), np.cumsum(batch[col.SEQ_LENS])[:-1])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 99),
    capacity=st.integers(3, 60),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    length=st.integers(1, 7),
)
def test_a_sequence_stays_in_its_episode_and_begins_with_its_state(seed, capacity, lengths, length):
    stream = Stream(seed)
    buffer = SequenceReplayBuffer(capacity, length=length, further_columns=[STATE], alpha=1.0)
    for size in lengths:
        buffer.add(stream.batch(size))
        buffer.check_valid()
    batch = buffer.sample(20, stream.rng)
    assert len(batch[STATE]) == len(batch[col.SEQ_LENS]) == 20
    for k, rows in enumerate(pieces(batch)):
        ids = batch[col.ITEM_IDS][rows]
        assert ids.tolist() == stream.run_from(int(ids[0]), length)
        expected = [stream.rows[i] for i in ids]
        assert batch[col.T][rows].tolist() == [row[2] for row in expected]
        assert batch[col.OBS][rows, 0].tolist() == [row[3] for row in expected]
        assert batch[col.NEXT_OBS][rows, 0].tolist() == [row[4] for row in expected]
        assert batch[STATE][k].tolist() == [-expected[0][3]]
        assert len(set(batch[col.WEIGHTS][rows].tolist())) == 1
        assert min(ids) >= len(stream.rows) - capacity


def test_sequences_are_drawn_by_the_priority_of_their_first_step():
    stream = Stream(1)
    buffer = SequenceReplayBuffer(100, length=4, alpha=1.0)
    buffer.add(stream.batch(20))
    buffer.update_priorities(np.arange(40), np.full(40, 1e-6))
    drawn = buffer.sample(5, stream.rng)
    priorities = np.where(np.arange(5) == 2, 1e6, 1e-6)
    buffer.update_sequence_priorities(drawn, priorities)
    favourite = drawn[col.ITEM_IDS][pieces(drawn)[2][0]]
    again = buffer.sample(10, stream.rng)
    assert {int(again[col.ITEM_IDS][rows[0]]) for rows in pieces(again)} == {int(favourite)}


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 99),
    capacity=st.integers(5, 80),
    lengths=st.lists(st.integers(1, 9), min_size=4, max_size=9),
)
def test_an_episode_is_sampled_whole_or_not_at_all(seed, capacity, lengths):
    stream = Stream(seed)
    buffer = ItemReplayBuffer(capacity, unit="episodes")
    for size in lengths:
        buffer.add(stream.batch(size))
    oldest = len(stream.rows) - min(capacity, len(stream.rows))
    complete = []
    for first, row in enumerate(stream.rows):
        run = stream.run_from(first, 10**6)
        if row[2] == 0 and first >= oldest and stream.rows[run[-1]][5]:
            complete.append(run)
    assert buffer.num_items == len(complete)
    if not complete:
        with pytest.raises(ValueError, match="no episodes yet"):
            buffer.sample(1, stream.rng)
        return
    batch = buffer.sample(30, stream.rng)
    found = [batch[col.ITEM_IDS][rows].tolist() for rows in pieces(batch)]
    assert all(ids in complete for ids in found)
    assert (batch[col.TERMINATEDS] | batch[col.TRUNCATEDS]).sum() == 30
    resumed = ItemReplayBuffer(capacity, unit="episodes")
    resumed.set_state(buffer.get_state())
    further = stream.batch(8)
    for each in (buffer, resumed):
        each.add(further)
    assert buffer.num_items == resumed.num_items
    if not buffer.num_items:
        return
    a, b = (each.sample(9, np.random.default_rng(0)) for each in (buffer, resumed))
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


def test_fragments_are_the_batches_that_were_added():
    stream = Stream(2)
    buffer = ItemReplayBuffer(25, unit="fragments")
    batches = [stream.batch(size) for size in (3, 5, 4)]  # 6, 10 and 8 transitions
    for batch in batches:
        buffer.add(batch)
    assert buffer.num_items == 3
    buffer.add(stream.batch(2))  # takes the places of the first
    assert buffer.num_items == 3
    batch = buffer.sample(40, stream.rng)
    assert set(batch[col.SEQ_LENS].tolist()) == {10, 8, 4}
    for rows in pieces(batch):
        if len(rows) == 10:
            np.testing.assert_array_equal(batch[col.OBS][rows], batches[1][col.OBS])
    with pytest.raises(ValueError, match="neither"):
        ItemReplayBuffer(unit="steps")


def stacked(stream, batch):
    """The stream's batch with stacks of the episode's last 4 frames, and the frames of each row."""
    frames = {}
    for _, _, step, obs, following, _ in stream.rows:
        if step == 0:
            frames[obs] = [obs] * 4
        frames[following] = [*frames[obs][1:], following]
    for name in (col.OBS, col.NEXT_OBS):
        batch[name] = images([frames[moment] for moment in batch[name][:, 0].tolist()])
    return batch, frames


def images(frames):
    """``[n, 4]`` numbers as n stacks of 4 images."""
    return np.array(frames, np.float32)[:, :, None, None] + np.arange(6, dtype=np.float32).reshape(
        2, 3
    )


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 99),
    capacity=st.integers(3, 60),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    make=st.sampled_from(
        [ReplayBuffer, SequenceReplayBuffer, lambda n: ItemReplayBuffer(n, unit="fragments")]
    ),
)
def test_of_stacks_each_frame_is_kept_once(seed, capacity, lengths, make):
    stream, buffer = Stream(seed), make(capacity)
    for length in lengths:
        batch, frames = stacked(stream, stream.batch(length))
        buffer.add(batch)
        buffer.check_valid()
        held = stream.rows[-capacity:]
        distinct = {frame for row in held for at in row[3:5] for frame in frames[at]}
        assert buffer._observations.num_frames == len(distinct)
    ids = np.arange(len(stream.rows))[-capacity:]
    restored = make(capacity)
    restored.set_state(buffer.get_state())
    for each in (buffer, restored):
        each.check_valid()
        rows = each._rows(ids)
        for name, column in ((col.OBS, 3), (col.NEXT_OBS, 4)):
            expected = images([frames[stream.rows[i][column]] for i in ids])
            np.testing.assert_array_equal(rows[name], expected)
    assert restored._observations.num_frames == len(distinct)


def test_stacks_of_atari_take_a_quarter_of_their_bytes():
    frames = np.random.default_rng(0).integers(0, 256, (104, 8, 8), np.uint8)
    stacks = np.stack([frames[i : i + 101] for i in range(4)], axis=1)  # [101, 4, 8, 8]
    batch = Stream(0, lanes=1).batch(100)
    for name in (col.TERMINATEDS, col.TRUNCATEDS):
        batch[name] = np.zeros(100, dtype=np.bool_)
    batch[col.EPS_ID], batch[col.T] = np.zeros(100, dtype=np.int64), np.arange(100)
    batch.set_shared(col.OBS, stacks, np.arange(100))
    batch.set_shared(col.NEXT_OBS, stacks, np.arange(1, 101))
    buffer = ReplayBuffer(200)
    buffer.add(batch)
    others = sum(column[:100].nbytes for column in buffer._columns.values())
    numbers_of_frames = 101 * 4 * 8  # bytes
    assert buffer.size_bytes - others == frames.nbytes + numbers_of_frames


def test_images_that_are_no_stacks_are_kept_as_they_are():
    stream, buffer = Stream(3), ReplayBuffer(50)
    batch, _ = stacked(stream, stream.batch(9))
    for name in (col.OBS, col.NEXT_OBS):
        batch[name] = batch[name][:, ::-1].copy()
    buffer.add(batch)
    assert len(buffer._observations[np.array([0])][0]) == 4
    assert not hasattr(buffer._observations, "num_frames")
    np.testing.assert_array_equal(buffer._rows(np.arange(18))[col.OBS], batch[col.OBS])


def test_each_policy_has_a_buffer_of_its_own():
    streams = {"a": Stream(1), "b": Stream(2, lanes=3)}
    buffer = MultiAgentReplayBuffer(lambda policy_id: ReplayBuffer(9 if policy_id == "a" else 50))
    first = {name: stream.batch(4) for name, stream in streams.items()}
    buffer.add(MultiAgentBatch(first, 4))
    buffer.add(MultiAgentBatch({"a": streams["a"].batch(4)}, 4))
    assert {name: len(each) for name, each in buffer.buffers.items()} == {"a": 9, "b": 12}
    assert len(buffer) == 21
    batch = buffer.sample(7, np.random.default_rng(0))
    assert set(batch) == {"a", "b"}
    for name in batch:
        known = {(row[3], row[4]) for row in streams[name].rows}
        pairs = zip(batch[name][col.OBS][:, 0], batch[name][col.NEXT_OBS][:, 0], strict=True)
        assert {(float(x), float(y)) for x, y in pairs} <= known
    assert set(buffer.sample(3, np.random.default_rng(0), policies=["b"])) == {"b"}
    resumed = MultiAgentReplayBuffer(lambda policy_id: ReplayBuffer(9 if policy_id == "a" else 50))
    resumed.set_state(buffer.get_state())
    again = resumed.sample(7, np.random.default_rng(0))
    for name in batch:
        np.testing.assert_array_equal(batch[name][col.OBS], again[name][col.OBS])
