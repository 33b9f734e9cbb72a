"""Decoding an encoded state gives the same values, bit for bit."""

import json
import math

import hypothesis.extra.numpy as npst
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from rlrun.checkpoint.state_codec import StateError, decode, encode

DTYPES = st.sampled_from(["bool", "int8", "uint8", "int32", "int64", "uint64", "f2", "f4", "f8"])
ARRAYS = DTYPES.flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_dims=3))
)
SCALARS = st.sampled_from(["float32", "float64", "int64", "uint8"]).flatmap(
    lambda dtype: npst.from_dtype(np.dtype(dtype))
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
LEAVES = PLAIN | ARRAYS | SCALARS
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


def assert_same(left, right):
    assert type(left) is type(right)
    if isinstance(left, np.ndarray | np.generic):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert left.tobytes() == right.tobytes()
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    elif isinstance(left, float):
        assert left == right or (math.isnan(left) and math.isnan(right))
        assert math.copysign(1, left) == math.copysign(1, right) or math.isnan(left)
    else:
        assert left == right


@given(STATES)
def test_a_state_survives_json_and_safetensors_bit_for_bit(state):
    document, arrays = encode(state)
    text = json.dumps(document, allow_nan=False)
    stored = safetensors.numpy.load(safetensors.numpy.save(arrays))
    assert_same(decode(json.loads(text), stored), state)


def test_a_generator_continues_from_its_decoded_state():
    generator = np.random.Generator(np.random.SFC64(3))
    generator.normal(size=5)
    restored = np.random.Generator(np.random.SFC64())
    restored.bit_generator.state = decode(*encode(generator.bit_generator.state))
    assert (
        restored.integers(1 << 40, size=9).tolist() == generator.integers(1 << 40, size=9).tolist()
    )


def test_big_integers_are_text_for_other_readers_of_json():
    assert encode({"n": 2**53 + 1})[0] == {"n": {"$int": "9007199254740993"}}


def test_views_of_arrays_are_stored_by_their_values():
    whole = np.arange(12.0).reshape(3, 4)
    document, arrays = encode({"a": whole[:, ::2], "b": whole.T})
    stored = safetensors.numpy.load(safetensors.numpy.save(arrays))
    state = decode(document, stored)
    np.testing.assert_array_equal(state["a"], whole[:, ::2])
    np.testing.assert_array_equal(state["b"], whole.T)


@pytest.mark.parametrize(
    "value",
    [object(), frozenset({1, 2}), np.array([object()]), np.array(["a"]), 1j],
    ids=["object", "frozen set", "array of objects", "array of texts", "complex"],
)
def test_unsupported_values_are_named_by_their_address(value):
    with pytest.raises(StateError, match="learner/1/odd"):
        encode({"learner": [0, {"odd": value}]})


def test_a_foreign_tag_is_refused():
    with pytest.raises(ValueError, match=r"\$exec"):
        decode({"$exec": "import os"}, {})
