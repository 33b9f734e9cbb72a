"""Each observation is kept once, and each frame of stacks of frames."""

import numpy as np
import pytest
from experience import Experience
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.data import columns as col
from rlrun.replay.observation_store import ObservationStore
from rlrun.replay.replay_buffer import ReplayBuffer
from rlrun.replay.sequence_replay_buffer import ItemReplayBuffer, SequenceReplayBuffer

STORED = 8 + 4 + 1 + 1  # bytes of a transition's action, reward and ends
FRAME, STACK = 2 * 3 * 4, 4 * 8  # bytes of a frame of 2 x 3 floats, and of the numbers of 4 frames


def observations_of(rows):
    return {moment for row in rows for moment in (row.obs, row.new_obs)}


def test_a_store_without_a_free_slot_grows_and_keeps_what_it_has():
    store = ObservationStore(1, (2,), np.float32)
    rows = np.arange(1000, dtype=np.float32).reshape(500, 2)
    slots = np.concatenate([store.put(part) for part in np.split(rows, [60, 70, 300])])
    assert len(set(slots.tolist())) == len(rows)
    store.refer(slots)
    store.check_valid(slots)
    np.testing.assert_array_equal(store[slots], rows)
    assert store.nbytes == rows.nbytes
    store.release(slots[::2])
    again = store.put(rows[::2] + 0.5)
    assert set(again.tolist()) == set(slots[::2].tolist())
    np.testing.assert_array_equal(store[slots[1::2]], rows[1::2])


@pytest.mark.parametrize("length", [1, 7])
def test_each_observation_is_kept_once(length):
    experience, buffer = Experience(2), ReplayBuffer(1000)
    assert buffer.size_bytes == 0
    for _ in range(60):
        buffer.add(experience.batch(length, shared=True))
    rows = experience.rows["a"]
    assert buffer.size_bytes == STORED * len(rows) + 4 * len(observations_of(rows))


def stacked(experience, batch):
    """The batch with stacks of the episode's last 4 frames, and the frames of each moment."""
    frames = {}
    for row in experience.rows["a"]:
        if row.t == 0:
            frames[row.obs] = [row.obs] * 4
        frames[row.new_obs] = [*frames[row.obs][1:], row.new_obs]
    for name in (col.OBS, col.NEXT_OBS):
        batch[name] = images([frames[moment] for moment in batch[name][:, 0].tolist()])
    return batch, frames


def images(frames):
    """``[n, 4]`` numbers as n stacks of 4 images."""
    pixels = np.arange(6, dtype=np.float32).reshape(2, 3)
    return np.array(frames, np.float32)[:, :, None, None] + pixels


@settings(max_examples=20)
@given(
    seed=st.integers(0, 99),
    capacity=st.integers(3, 60),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    kind=st.sampled_from([("transitions", 0), ("sequences", 8), ("fragments", 16)]),
)
def test_of_stacks_each_frame_is_kept_once(seed, capacity, lengths, kind):
    name, further_bytes = kind  # sequences keep `t` too, fragments also the episode
    make = {
        "transitions": ReplayBuffer,
        "sequences": SequenceReplayBuffer,
        "fragments": lambda capacity: ItemReplayBuffer(capacity, unit="fragments"),
    }[name]
    experience, buffer, restored = Experience(seed), make(capacity), make(capacity)
    for length in lengths:
        batch, frames = stacked(experience, experience.batch(length))
        buffer.add(batch)
        buffer.check_valid()
        held = experience.rows["a"][-capacity:]
        stacks = observations_of(held)
        distinct = {frame for moment in stacks for frame in frames[moment]}
        size = (STORED + further_bytes) * len(held) + FRAME * len(distinct) + STACK * len(stacks)
        assert buffer.size_bytes == size
    restored.set_state(buffer.get_state())
    assert restored.size_bytes == size
    for each in (buffer, restored):
        each.check_valid()
        rows = each.gather(np.arange(buffer.num_added)[-capacity:])
        for column, moments in ((col.OBS, "obs"), (col.NEXT_OBS, "new_obs")):
            expected = images([frames[getattr(row, moments)] for row in held])
            np.testing.assert_array_equal(rows[column], expected)


@pytest.mark.parametrize("size", [2, 4])
def test_stacks_of_frames_take_the_bytes_of_their_last_ones(size):
    """A quarter of their own with 4 frames, as of Atari."""
    frames = np.random.default_rng(0).integers(0, 256, (100 + size, 8, 8), np.uint8)
    stacks = np.stack([frames[i : i + 101] for i in range(size)], axis=1)  # [101, size, 8, 8]
    batch = Experience(0, num_envs=1).batch(100)
    for name in (col.TERMINATEDS, col.TRUNCATEDS):
        batch[name] = np.zeros(100, dtype=np.bool_)
    batch[col.EPS_ID], batch[col.T] = np.zeros(100, dtype=np.int64), np.arange(100)
    batch.set_shared(col.OBS, stacks, np.arange(100))
    batch.set_shared(col.NEXT_OBS, stacks, np.arange(1, 101))
    buffer = ReplayBuffer(200)
    buffer.add(batch)
    assert buffer.size_bytes == STORED * 100 + frames.nbytes + size * STACK // 4 * 101


def test_a_stack_that_does_not_continue_the_one_before_is_kept_as_it_is():
    """Stacks by the first batch; in the second a frame is left out between two of them."""
    frames = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)
    stacks = np.stack([frames[i : i + 37] for i in range(4)], axis=1)  # [37, 4, 8, 8]
    buffer, experience = ReplayBuffer(100), Experience(0, num_envs=1)
    obs, new_obs = np.arange(20), np.append(np.arange(1, 11), np.arange(12, 22))
    for following in (np.arange(1, 21), new_obs):
        batch = experience.batch(20)
        for name in (col.TERMINATEDS, col.TRUNCATEDS):
            batch[name] = np.zeros(20, dtype=np.bool_)
        batch[col.EPS_ID], batch[col.T] = np.zeros(20, dtype=np.int64), np.arange(20)
        batch.set_shared(col.OBS, stacks, obs)
        batch.set_shared(col.NEXT_OBS, stacks, following)
        buffer.add(batch)
    rows = buffer.gather(np.arange(20, 40))
    np.testing.assert_array_equal(rows[col.NEXT_OBS], stacks[new_obs])
    buffer.check_valid()


def test_images_that_are_no_stacks_are_kept_as_they_are():
    experience, buffer = Experience(3), ReplayBuffer(50)
    batch, _ = stacked(experience, experience.batch(9))
    for name in (col.OBS, col.NEXT_OBS):
        batch[name] = batch[name][:, ::-1].copy()
    buffer.add(batch)
    assert buffer.size_bytes == STORED * 18 + 4 * FRAME * len(observations_of(experience.rows["a"]))
    np.testing.assert_array_equal(buffer.gather(np.arange(18))[col.OBS], batch[col.OBS])
