"""Sending batches: pickle, Ray's object store, compression, devices."""

import pickle

import numpy as np
import pytest

from rlrun.data.sample_batch import MultiAgentBatch, SampleBatch

ROWS = 64


def fragment():
    storage = np.arange((ROWS + 1) * 3, dtype=np.float32).reshape(ROWS + 1, 3)
    batch = SampleBatch(
        {
            "rewards": np.arange(ROWS, dtype=np.float32),
            "actions": {"a": np.arange(ROWS), "b": (np.ones((ROWS, 2)),)},
        },
        num_grad_updates=3,
    )
    batch.set_shared("obs", storage, np.arange(ROWS))
    batch.set_shared("new_obs", storage, np.arange(1, ROWS + 1))
    return batch


def sent(batch):
    """What a receiver gets whose memory is read-only, and the buffers it took."""
    buffers = []
    stream = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    views = [memoryview(bytes(buffer.raw())) for buffer in buffers]
    return pickle.loads(stream, buffers=views), views, stream


def test_every_array_is_one_buffer_and_a_storage_is_sent_once():
    batch = fragment()
    assert batch["obs"].shape == (ROWS, 3)  # gathered rows are not sent
    received, buffers, stream = sent(batch)
    nbytes = sorted(view.nbytes for view in buffers)
    assert nbytes == sorted([ROWS * 4, ROWS * 8, ROWS * 16, (ROWS + 1) * 12, ROWS * 8, ROWS * 8])
    assert len(stream) < 1000
    received.check_valid()
    assert received.shared("obs")[0] is received.shared("new_obs")[0]
    assert (received["new_obs"] == batch["new_obs"]).all()
    assert (received["actions"]["b"][0] == 1).all()
    assert received.num_grad_updates == 3


def test_received_batches_are_read_only_and_usable():
    received, _, _ = sent(fragment())
    for column in (received["rewards"], received["obs"], received["actions"]["a"]):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
    received["advantages"] = received["rewards"] * 2
    received.shuffle(np.random.default_rng(0)).check_valid()
    assert fragment().concat(received).count == 2 * ROWS
    writable = fragment().copy()
    writable["rewards"][0] = 7


def test_a_small_slice_does_not_drag_its_storage_along():
    part = fragment()[10:14]
    received, buffers, _ = sent(part)
    assert sum(view.nbytes for view in buffers) < 5 * 12 + 4 * (4 + 8 + 16 + 8 + 8) + 1
    assert len(received.shared("obs")[0]) == 5
    assert (received["new_obs"] == part["new_obs"]).all()
    assert received.shared("obs")[0] is received.shared("new_obs")[0]


def test_strided_columns_travel_as_buffers_too():
    table = np.arange(12.0).reshape(6, 2)
    received, buffers, _ = sent(SampleBatch({"rewards": table[:, 1]}))
    assert [view.nbytes for view in buffers] == [48]
    assert received["rewards"].tolist() == table[:, 1].tolist()


def test_flags_sequences_and_policies_survive():
    batch = SampleBatch({"obs": np.ones(3), "seq_lens": [1, 2]}).right_zero_pad(2)
    both = MultiAgentBatch({"a": batch, "b": SampleBatch({"t": np.arange(2)})}, 3)
    received, _, _ = sent(both)
    received.check_valid()
    assert (received.count, received.agent_steps()) == (3, 5)
    assert (received["a"].zero_padded, received["a"].max_seq_len) == (True, 2)


def test_ray_object_store_hands_out_the_same_memory_read_only(local_ray):
    import ray

    reference = ray.put(fragment())
    one, two = ray.get(reference), ray.get(reference)
    for name in ("rewards", "obs"):
        assert not one[name].flags.writeable
    assert np.shares_memory(one["rewards"], two["rewards"]), "copied on the way out"
    assert np.shares_memory(one.shared("obs")[0], two.shared("new_obs")[0])
    assert (one["new_obs"] == fragment()["new_obs"]).all()


def test_compression_is_undone_exactly():
    def nested():
        return SampleBatch(
            {
                "obs": {"a": np.zeros((ROWS, 500), np.uint8), "b": (np.arange(ROWS),)},
                "new_obs": np.arange(ROWS, dtype=np.float32),
                "infos": [{"i": i} for i in range(ROWS)],
            }
        )

    batch = nested()
    packed = batch.compress(columns=("obs", "new_obs", "infos", "absent"))
    packed.compress()
    assert packed is batch
    assert packed.count == ROWS
    assert isinstance(packed["obs"][0], bytes)
    assert packed.size_bytes() < 40_000
    received, _, _ = sent(packed[2:9])
    for result, rows in ((received, slice(2, 9)), (packed, slice(None))):
        result.decompress_if_needed(("obs", "new_obs", "infos"))
        result.decompress_if_needed()
        expected = nested()
        assert result["obs"]["a"].dtype == np.uint8
        assert (result["obs"]["b"][0] == expected["obs"]["b"][0][rows]).all()
        assert result["new_obs"].dtype == np.float32
        assert result["new_obs"].tolist() == expected["new_obs"][rows].tolist()
        assert result["infos"].tolist() == expected["infos"][rows].tolist()
        result.check_valid()


def test_compressed_columns_stay_shared():
    batch = fragment().compress()
    assert batch.size_bytes() < fragment().compress(["obs"]).size_bytes()
    batch.shuffle(np.random.default_rng(0))
    whole = batch.concat(fragment().compress()).decompress_if_needed()
    whole.check_valid()
    assert whole.shared("obs")[0] is whole.shared("new_obs")[0]
    rows = whole["rewards"].astype(int)
    assert (whole["new_obs"] == fragment()["new_obs"][rows]).all()


def test_empty_and_mixed_columns_are_left_as_they_are():
    batch = SampleBatch({"obs": {"a": np.zeros(1), "b": [None]}, "new_obs": [1.0]})
    assert batch.compress(columns=["obs"])["obs"]["a"].tolist() == [0.0]
    assert batch[:0].compress().decompress_if_needed()["new_obs"].tolist() == []


def test_to_device_keeps_sharing_and_copies_read_only_memory():
    torch = pytest.importorskip("torch")
    batch = fragment()
    batch["infos"] = [{}] * ROWS
    received, _, _ = sent(batch)
    for source in (batch, received):
        moved = source.to_device("cpu")
        storage, index = moved.shared("obs")
        assert isinstance(storage, torch.Tensor)
        assert storage is moved.shared("new_obs")[0]
        assert torch.equal(moved["obs"], storage[index])
        assert moved["new_obs"].dtype == torch.float32
        assert moved["actions"]["a"].tolist() == list(range(ROWS))
        assert isinstance(moved["infos"], np.ndarray)
        assert moved.count == ROWS
        assert moved[3:5]["rewards"].tolist() == [3, 4]
        assert torch.equal(moved.to_device("cpu")["rewards"], moved["rewards"])
        assert "torch.Tensor((64,), dtype=torch.float32, device=cpu)" in repr(moved)
        moved["rewards"][0] = 100
    assert received["rewards"][0] == 0
    batch.set_shared("obs", np.arange(3), np.array([2, 0], dtype=np.uint8))
    assert batch.to_device("cpu")["obs"].tolist() == [2, 0]
    assert SampleBatch({"x": torch.ones(2)}).copy()["x"].tolist() == [1, 1]
