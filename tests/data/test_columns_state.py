"""Columns as a checkpoint keeps them."""

import json

import numpy as np
import pytest

from rlrun.checkpoint.state_codec import decode, encode
from rlrun.data.batch_state import columns_from_state, columns_state


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
