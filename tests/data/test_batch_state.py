"""Batches and columns that went through plain values are the same, in the same storages."""

import json

import numpy as np
import pytest

from rlrun.checkpoint.state_codec import decode, encode
from rlrun.data.column_data import columns_from_state, columns_state
from rlrun.data.sample_batch import SampleBatch


def test_columns_storages_and_flags_come_back():
    storage = np.arange(12.0).reshape(6, 2)
    batch = SampleBatch(
        {
            "rewards": np.arange(4.0),
            "nest": {"a": np.zeros((4, 2), np.int8), "b": (np.ones(4, np.bool_),)},
            "state_in_0": np.ones((2, 3), np.float32),
            "infos": np.array([{}, {"x": 1}, {}, {}], dtype=object),
            "seq_lens": np.array([3, 1]),
        },
        max_seq_len=3,
    )
    batch.set_shared("obs", storage, np.array([0, 1, 2, 4]))
    batch.set_shared("new_obs", storage, np.array([1, 2, 3, 5]))
    back = SampleBatch.from_state(decode(*encode(batch.get_state())))
    assert list(back) == [name for name in batch if name != "infos"]
    assert back.max_seq_len == 3
    (obs, index), (new_obs, _) = back.shared("obs"), back.shared("new_obs")
    assert obs is new_obs
    np.testing.assert_array_equal(obs, storage)
    np.testing.assert_array_equal(index, [0, 1, 2, 4])
    for name in ("obs", "new_obs", "rewards", "state_in_0", "seq_lens"):
        np.testing.assert_array_equal(back[name], batch[name])
        assert back[name].dtype == batch[name].dtype
    np.testing.assert_array_equal(back["nest"]["b"][0], batch["nest"]["b"][0])
    assert back["nest"]["a"].dtype == np.int8


@pytest.mark.parametrize("shape", [(2,), (1, 2), (3, 1), (0, 1)])
def test_columns_of_objects_keep_their_shape_in_a_checkpoint(shape):
    infos = np.empty(shape, np.object_)
    for place in np.ndindex(shape):
        infos[place] = {"place": list(place), "deep": [[1], [2]]}
    document, arrays = encode(columns_state({"infos": infos, "obs": np.ones(shape)}))
    found = columns_from_state(decode(json.loads(json.dumps(document)), arrays))
    assert found["infos"].dtype == np.object_
    assert found["infos"].shape == shape
    assert found["infos"].tolist() == infos.tolist()
    np.testing.assert_array_equal(found["obs"], np.ones(shape))
