"""Replies of env runners as bytes: what is copied, what is not, and code without an import path."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from rlrun.actors.runner_host import INLINE_BYTES, pack, pack_reply, unpack


def test_a_reply_comes_back_and_only_its_large_arrays_are_not_copied():
    small, large = np.arange(10.0), np.zeros(INLINE_BYTES // 8 + 1)
    state = {"seeds": np.arange(3)}
    packed, arrays, packed_state, warnings = pack_reply([small, large, "x"], state, ["hot"])
    assert len(arrays) == 1
    assert np.shares_memory(np.frombuffer(arrays[0]), large)
    one, other, text = unpack(packed, arrays)
    np.testing.assert_array_equal(one, small)
    assert np.shares_memory(other, large)
    assert (text, warnings) == ("x", ["hot"])
    assert packed_state is not None
    np.testing.assert_array_equal(unpack(packed_state)["seeds"], state["seeds"])


def test_the_limit_is_inclusive():
    _, arrays, state, _ = pack_reply(np.zeros(INLINE_BYTES // 8), None, [])
    assert (arrays, state) == ([], None)


@pytest.mark.parametrize("place", ["reply", "state"])
def test_an_object_of_code_without_an_import_path_travels_all_the_same(place: str):
    class Found:
        value = 7

    large = np.zeros(INLINE_BYTES)
    contents: dict[str, Any] = {"reply": [large], "state": [large]}
    contents[place].append(Found())
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(contents)
    packed, arrays, state, _ = pack_reply(**contents, warnings=[])
    assert state is not None
    assert len(arrays) == 1  # and not once more for the first attempt
    found = {"reply": unpack(packed, arrays), "state": unpack(state)}
    assert found[place][1].value == 7


def test_what_cannot_be_pickled_raises_the_reason():
    with pytest.raises(TypeError, match="cannot pickle"):
        pack_reply((one for one in "ab"), None, [])
    with pytest.raises(TypeError, match="cannot pickle"):
        pack(one for one in "ab")
