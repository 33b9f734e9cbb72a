"""Preprocessing of every space, and the observation filter on top."""

from collections import OrderedDict
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from rlrun.config.problems import ConfigError
from rlrun.config.schema import EnvRunnersConfig
from rlrun.connectors.filters import MeanStdFilter
from rlrun.connectors.observations import ObservationPipeline
from rlrun.data.column_data import leaves
from rlrun.data.nested import nest

IMAGE = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
# Ordered: of a plain dict, gymnasium sorts the keys itself.
NESTED = gym.spaces.Dict(
    OrderedDict(
        z=gym.spaces.Box(-2, 2, (2, 2)),
        a=gym.spaces.Discrete(3, start=4),
        m=gym.spaces.Tuple(
            (gym.spaces.MultiBinary(2), gym.spaces.Dict(k=gym.spaces.MultiDiscrete([2, 3])))
        ),
    )
)
SPACES: dict[str, gym.Space] = {
    "box": gym.spaces.Box(-1, 1, (3,)),
    "matrix": gym.spaces.Box(-1, 1, (2, 2)),
    "float64": gym.spaces.Box(-1, 1, (3,), np.float64),
    "bytes": gym.spaces.Box(0, 255, (3,), np.uint8),
    "image": IMAGE,
    "small_image": gym.spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "image_without_channels": gym.spaces.Box(0, 255, (5, 6), np.uint8),
    "discrete": gym.spaces.Discrete(4, start=-1),
    "multi_discrete": gym.spaces.MultiDiscrete([2, 3], start=[1, 0]),
    "multi_discrete_2d": gym.spaces.MultiDiscrete([[2, 3], [1, 4]]),
    "multi_binary": gym.spaces.MultiBinary((2, 2)),
    "nested": NESTED,
    "tuple": gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2,), np.float64))),
}


def pipeline(space: gym.Space, **settings: Any) -> ObservationPipeline:
    return ObservationPipeline(space, EnvRunnersConfig(**settings))


def slow_flat(space: gym.Space, value: Any) -> list[float]:
    """One observation by the rules, element by element."""
    if isinstance(space, gym.spaces.Discrete):
        return [float(space.start + i == value) for i in range(space.n)]
    if isinstance(space, gym.spaces.MultiDiscrete):
        triples = zip(space.nvec.ravel(), np.ravel(space.start), np.ravel(value), strict=True)
        return [float(first + i == v) for n, first, v in triples for i in range(n)]
    if isinstance(space, gym.spaces.Dict):
        return [x for key in sorted(space.spaces) for x in slow_flat(space.spaces[key], value[key])]
    if isinstance(space, gym.spaces.Tuple):
        return [
            x for child, v in zip(space.spaces, value, strict=True) for x in slow_flat(child, v)
        ]
    return [float(x) for x in np.ravel(value)]


def batch_of(space: gym.Space, n: int, seed: int = 0) -> tuple[Any, list[Any]]:
    """n observations as a gymnasium vector environment returns them, and one by one."""
    space.seed(seed)
    singles = [space.sample() for _ in range(n)]
    return concatenate(space, singles, create_empty_array(space, n)), singles


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("name", SPACES)
def test_every_space_against_the_slow_rules(name: str, n: int) -> None:
    space = SPACES[name]
    batch, singles = batch_of(space, n)
    assert batch in batch_space(space, n)
    connector = pipeline(space)
    result = connector(batch)
    assert isinstance(connector.output_space, gym.spaces.Box)
    assert result.shape == (n, *connector.output_space.shape)
    assert (
        result.dtype
        == connector.output_space.dtype
        == (np.uint8 if "image" in name else np.float32)
    )
    expected = np.array([slow_flat(space, single) for single in singles])
    np.testing.assert_array_equal(result.reshape(n, -1), expected.astype(np.float32))
    assert all(row in connector.output_space for row in result)


@pytest.mark.parametrize("name", ["box", "matrix", "image"])
def test_what_needs_nothing_passes_as_it_is(name: str) -> None:
    connector = pipeline(SPACES[name])
    batch, _ = batch_of(SPACES[name], 3)
    assert connector.identity
    assert connector(batch) is batch
    assert connector.output_space is SPACES[name]
    assert connector.get_state() == connector.flush_deltas() == {}


@pytest.mark.parametrize("name", SPACES)
def test_without_preprocessor_raw_observations_go_on(name: str) -> None:
    connector = pipeline(SPACES[name], preprocessor_pref=None)
    batch, _ = batch_of(SPACES[name], 3)
    assert connector.output_space is SPACES[name]
    assert connector.identity == isinstance(batch, np.ndarray)
    rows = connector(batch)
    assert len(rows) == 3
    if connector.identity:
        assert rows is batch
    for before, after in zip(leaves(batch), leaves(nest(rows)), strict=True):
        np.testing.assert_array_equal(before, after)
        assert before.dtype == after.dtype


def test_results_are_new_arrays() -> None:
    for name in ("discrete", "nested", "float64"):
        connector = pipeline(SPACES[name])
        first = connector(batch_of(SPACES[name], 4, seed=1)[0])
        kept = first.copy()
        connector(batch_of(SPACES[name], 4, seed=2)[0])
        np.testing.assert_array_equal(first, kept)


def test_float64_bounds_beyond_float32_become_infinite() -> None:
    space = gym.spaces.Box(-1e300, 1e300, (2,), np.float64)
    assert np.isinf(pipeline(space).output_space.high).all()


def test_filter_leaves_one_hots_and_bits_alone() -> None:
    connector = pipeline(NESTED, observation_filter="MeanStdFilter")
    plain = pipeline(NESTED)
    batch, _ = batch_of(NESTED, 20)
    raw, result = plain(batch), connector(batch)
    # sorted keys: a (3 one-hots), m (2 bits, 2 + 3 one-hots), z (4 numbers)
    np.testing.assert_array_equal(result[:, :10], raw[:, :10])
    wide = raw[:, 10:].astype(np.float64)
    expected = (wide - wide.mean(0)) / (wide.std(0, ddof=1) + 1e-6)
    np.testing.assert_allclose(result[:, 10:], expected, rtol=1e-4, atol=1e-5)
    assert connector.output_space.high[:10].tolist() == [1.0] * 10
    assert connector.output_space.high[10:].tolist() == [10.0] * 4
    assert all(row in connector.output_space for row in result)


@pytest.mark.parametrize(("preprocessor", "part"), [("rllib", "observation"), (None, "v")])
def test_filter_leaves_action_masks_alone(preprocessor: str | None, part: str) -> None:
    space = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(3), v=gym.spaces.Box(-2, 2, (2,)))
    batch, _ = batch_of(space, 20)
    connector = pipeline(space, observation_filter="MeanStdFilter", preprocessor_pref=preprocessor)
    result = connector(batch)
    np.testing.assert_array_equal(result["action_mask"], batch["action_mask"])
    alone = pipeline(space["v"], observation_filter="MeanStdFilter")
    np.testing.assert_array_equal(result[part], alone(batch["v"]))
    assert set(connector.output_space.spaces) == {"action_mask", part}


@pytest.mark.parametrize("preprocessor", ["rllib", None])
def test_filter_leaves_images_and_categories_beside_floats_alone(preprocessor: str | None) -> None:
    floats = gym.spaces.Box(-2, 2, (2, 2)), gym.spaces.Box(-9, 9, (3,), np.float64)
    parts = gym.spaces.Tuple((floats[0], IMAGE, floats[1], gym.spaces.Discrete(3)))
    space = gym.spaces.Dict(OrderedDict(z=parts, camera=IMAGE, action_mask=floats[0]))
    batch, _ = batch_of(space, 20)
    connector = pipeline(space, observation_filter="MeanStdFilter", preprocessor_pref=preprocessor)
    result = nest(connector(batch))
    np.testing.assert_array_equal(result["action_mask"], batch["action_mask"])
    result = result["observation"] if preprocessor else result
    np.testing.assert_array_equal(result["camera"], batch["camera"])
    for i, part in enumerate(parts):
        expected = batch["z"][i]
        if part in floats:
            expected = pipeline(part, observation_filter="MeanStdFilter")(expected)
        np.testing.assert_allclose(result["z"][i], expected, rtol=1e-6)
    space = connector.output_space
    assert list(space["observation"] if preprocessor else space) == list(result)
    assert (space["observation"] if preprocessor else space)["z"][2].high.tolist() == [10.0] * 3
    other = pipeline(parts, observation_filter="MeanStdFilter", preprocessor_pref=preprocessor)
    other.set_state(connector.get_state())
    np.testing.assert_array_equal(nest(other(batch["z"], update=False))[0], result["z"][0])


@pytest.mark.parametrize("name", ["box", "matrix", "float64", "bytes"])
def test_filter_standardizes_boxes_of_any_dtype(name: str) -> None:
    connector = pipeline(SPACES[name], observation_filter="MeanStdFilter")
    batch, _ = batch_of(SPACES[name], 50)
    expected = MeanStdFilter(SPACES[name].shape or ())(batch.astype(np.float32))
    np.testing.assert_array_equal(connector(batch), expected)


def test_filter_on_discrete_observations_does_nothing() -> None:
    connector = pipeline(SPACES["discrete"], observation_filter="MeanStdFilter")
    batch, _ = batch_of(SPACES["discrete"], 3)
    np.testing.assert_array_equal(connector(batch), pipeline(SPACES["discrete"])(batch))
    assert connector.get_state() == {}


def test_filter_on_images_makes_floats() -> None:
    connector = pipeline(IMAGE, observation_filter="MeanStdFilter")
    batch, _ = batch_of(IMAGE, 4)
    assert connector(batch).dtype == np.float32 == connector.output_space.dtype


def test_what_cannot_be_done_is_named() -> None:
    for preprocessor in ("rllib", None):
        with pytest.raises(TypeError, match="Text"):
            pipeline(gym.spaces.Dict(a=gym.spaces.Text(4)), preprocessor_pref=preprocessor)
    with pytest.raises(ConfigError, match=r"observation_filter.*preprocessor_pref: rllib"):
        pipeline(IMAGE, preprocessor_pref=None, observation_filter="MeanStdFilter")
    with pytest.raises(ConfigError, match=r"observation_filter.*remove this key"):
        pipeline(gym.spaces.Dict(a=IMAGE), observation_filter="MeanStdFilter")


@pytest.mark.parametrize("preprocessor", ["rllib", None])
def test_observations_of_nothing_are_named_unless_they_are_a_part(preprocessor: Any) -> None:
    empty = gym.spaces.Box(-1, 1, (0,))
    for space in (empty, gym.spaces.Dict(a=empty), gym.spaces.Dict()):
        with pytest.raises(ConfigError, match="env: the observation space has no numbers"):
            pipeline(space, preprocessor_pref=preprocessor)
    space = gym.spaces.Dict(a=empty, b=gym.spaces.Box(-1, 1, (2,)))
    batch, _ = batch_of(space, 3)
    assert len(pipeline(space, preprocessor_pref=preprocessor)(batch)) == 3
