"""Actions on their way to the environments: bounds, starts, shapes, immutability."""

from collections import OrderedDict

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space, iterate
from hypothesis import given
from hypothesis import strategies as st

from rlrun.connectors.actions import ActionPipeline
from rlrun.policies.action_sampling import action_layout

N = 4
SPACES: dict[str, gym.Space] = {
    "discrete": gym.spaces.Discrete(3),
    "discrete_int32": gym.spaces.Discrete(3, dtype=np.int32),
    "discrete_from_5": gym.spaces.Discrete(3, start=5),
    "multi_discrete": gym.spaces.MultiDiscrete([3, 2]),
    "multi_discrete_2d": gym.spaces.MultiDiscrete([[3, 2], [2, 2]], start=[[1, 2], [3, 4]]),
    "multi_discrete_int32": gym.spaces.MultiDiscrete([3, 2], dtype=np.int32),
    "multi_binary": gym.spaces.MultiBinary((2, 2)),
    "box": gym.spaces.Box(-2, 2, (3,)),
    "box_2d_float64": gym.spaces.Box(
        np.array([[0.0, -3.0]]), np.array([[1.0, 5.0]]), dtype=np.float64
    ),
    "bools": gym.spaces.Box(
        np.array([False, True, False]), np.array([True, True, False]), dtype=np.bool_
    ),
    "integers": gym.spaces.Box(np.array([2, -1]), np.array([4, 0]), dtype=np.int32),
    # Ordered: of a plain dict, gymnasium sorts the keys itself.
    "nested": gym.spaces.Dict(
        OrderedDict(
            b=gym.spaces.Box(-1, 3, (2,)),
            a=gym.spaces.Discrete(3, start=1),
            c=gym.spaces.Tuple((gym.spaces.MultiBinary(2), gym.spaces.MultiDiscrete([2, 3]))),
        )
    ),
}


def module_actions(space: gym.Space, seed: int = 0) -> np.ndarray:
    """Actions as a policy gives them: categories from 0, numbers of any size."""
    rng, layout = np.random.default_rng(seed), action_layout(space)
    columns: list[np.ndarray] = []
    for leaf in layout.leaves:
        if leaf.kind == "gaussian":
            columns.append(rng.normal(0, 2, (N, leaf.num_columns)))
        elif leaf.kind == "bernoulli":
            columns.append(rng.integers(0, 2, (N, leaf.num_columns)))
        else:
            columns.append(rng.integers(0, leaf.categories, (N, leaf.num_columns)))
    dtype = np.int64 if "categorical" in layout.kind else np.float32
    actions = np.concatenate(columns, axis=1).astype(dtype)
    return actions[:, 0] if layout.kind == "categorical" else actions


@pytest.mark.parametrize("name", SPACES)
def test_every_space_gets_valid_batched_actions(name: str) -> None:
    space = SPACES[name]
    actions = module_actions(space)
    before = actions.copy()
    result = ActionPipeline(space, normalize=True, clip=False)(actions)
    if name == "discrete":
        assert result is actions
    for single in iterate(batch_space(space, N), result):
        assert space.contains(single), single
    np.testing.assert_array_equal(actions, before)


def test_unsquashing_by_hand() -> None:
    space = gym.spaces.Box(np.array([0.0, 300.0], np.float32), np.array([1.0, 500.0], np.float32))
    pipeline = ActionPipeline(space, normalize=True, clip=False)
    actions = np.array([[-1, -1], [0, 0], [1, 1], [0.5, 0.25], [9, -9]], np.float32)
    expected = [[0, 300], [0.5, 400], [1, 500], [0.75, 425], [1, 300]]
    np.testing.assert_allclose(pipeline(actions), expected)


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.floats(-3, 3))
def test_unsquashing_is_the_formula_then_the_bounds(
    low: float, width: float, action: float
) -> None:
    space = gym.spaces.Box(low, low + width, (1,), np.float64)
    result = ActionPipeline(space, normalize=True, clip=False)(np.array([[action]]))
    formula = low + (action + 1) * width / 2
    expected = np.clip(formula, space.low, space.high)
    np.testing.assert_allclose(result, [expected], rtol=1e-9, atol=1e-9)
    assert space.contains(result[0])


def test_bounds_as_wide_as_float32_do_not_overflow() -> None:
    limit = np.finfo(np.float32).max
    space = gym.spaces.Box(-limit, limit, (1,))
    result = ActionPipeline(space, normalize=True, clip=False)(
        np.array([[0.5], [-1.0]], np.float32)
    )
    np.testing.assert_allclose(result[:, 0], [0.5 * limit, -limit])


def test_each_dimension_is_stretched_to_its_two_bounds_or_clipped_to_its_one() -> None:
    low = np.array([-1000, 300, -np.inf, -np.inf], np.float32)
    high = np.array([3000, np.inf, 5, np.inf], np.float32)
    space = gym.spaces.Box(low, high)
    pipeline = ActionPipeline(space, normalize=True, clip=False)
    actions = np.array([[-1, -1, -1, -1], [0.5, 4, 0, 4], [1, 1, 1, 1]], np.float32)
    expected = [[-1000, 300, 3, -1], [2000, 305, 4, 4], [3000, 302, 5, 1]]
    result = pipeline(actions)
    np.testing.assert_allclose(result, expected)
    np.testing.assert_allclose(pipeline.leaves[0].inverse(result), actions)
    beyond = pipeline(np.array([[9, -9, 9, -9]], np.float32))
    np.testing.assert_allclose(beyond, [[3000, 300, 5, -9]])
    assert space.contains(beyond[0])


@pytest.mark.parametrize("name", ["bools", "integers", "multi_discrete_2d"])
def test_the_inverse_gives_the_categories_of_actions(name: str) -> None:
    actions = module_actions(SPACES[name])
    pipeline = ActionPipeline(SPACES[name], normalize=True, clip=False)
    np.testing.assert_array_equal(pipeline.leaves[0].inverse(pipeline(actions)), actions)


def test_without_bounds_actions_pass_unchanged() -> None:
    space, actions = gym.spaces.Box(-np.inf, np.inf, (1,)), np.array([[5.0]], np.float32)
    result = ActionPipeline(space, normalize=True, clip=True)(actions)
    assert np.shares_memory(result, actions)
    assert result.tolist() == [[5.0]]


def test_without_normalisation_actions_pass_or_are_clipped() -> None:
    space, actions = gym.spaces.Box(-2, 2, (1,)), np.array([[5.0], [-5.0]], np.float32)
    assert ActionPipeline(space, normalize=False, clip=False)(actions).tolist() == [[5.0], [-5.0]]
    assert ActionPipeline(space, normalize=False, clip=True)(actions).tolist() == [[2.0], [-2.0]]
    assert actions.tolist() == [[5.0], [-5.0]]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", ["box", "multi_discrete", "integers"])
def test_environments_cannot_write_into_their_actions(name: str, normalize: bool) -> None:
    actions = module_actions(SPACES[name])
    result = ActionPipeline(SPACES[name], normalize=normalize, clip=False)(actions)
    with pytest.raises(ValueError, match="read-only"):
        result[0][0] = 1
    actions[0, 0] = 0  # the policy's own array stays writable


def test_nested_actions_by_hand() -> None:
    # sorted keys: a (category), b (2 numbers), c (2 bits, 2 categories)
    actions = np.array([[2, 0.0, 1.0, 1, 0, 1, 2]], np.float32)
    result = ActionPipeline(SPACES["nested"], normalize=True, clip=False)(actions)
    assert list(result) == list(SPACES["nested"].spaces)
    assert result["a"].tolist() == [3]
    assert result["b"].tolist() == [[1.0, 3.0]]
    bits, categories = result["c"]
    assert (bits.tolist(), categories.tolist()) == ([[1, 0]], [[1, 2]])
    assert (result["a"].dtype, bits.dtype, categories.dtype) == (np.int64, np.int8, np.int64)


def test_integer_boxes_count_from_their_lower_bound() -> None:
    pipeline = ActionPipeline(SPACES["integers"], normalize=True, clip=False)
    assert pipeline(np.array([[0, 1], [2, 0]])).tolist() == [[2, 0], [4, -1]]


def test_only_plain_discrete_is_the_identity() -> None:
    identities = [
        n for n, s in SPACES.items() if ActionPipeline(s, normalize=True, clip=True).identity
    ]
    assert identities == ["discrete"]
