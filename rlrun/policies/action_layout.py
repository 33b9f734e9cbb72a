"""How an action space is laid out in the two arrays that policies exchange.

Owns the one enumeration of an action space's leaves: which columns of the distribution inputs
[N, P] and which columns of the module's action array [N, K] belong to each of them. Torch
distributions and action connectors both read it. Must not know of torch, networks or environments.

| space                  | kind        | inputs                | action columns            |
|------------------------|-------------|-----------------------|---------------------------|
| Discrete(n)            | categorical | n logits              | 1, the index from 0       |
| MultiDiscrete(nvec)    | categorical | sum(nvec) logits      | one index per component   |
| Box of integers        | categorical | high - low + 1 logits | one ``a - low`` per entry |
| MultiBinary(n)         | bernoulli   | n logits              | n of 0 or 1               |
| Box                    | gaussian    | n means, n log-stds   | n                         |
"""

from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from rlrun.policies.action_sampling import action_leaves

Kind = Literal["categorical", "bernoulli", "gaussian"]


@dataclass(frozen=True, slots=True)
class ActionLeaf:
    """One leaf of an action space and where it lies in both arrays."""

    space: gym.Space[Any]
    kind: Kind
    inputs: slice
    """Its columns in the distribution inputs [N, P]."""
    columns: slice
    """Its columns in the action array [N, K]."""
    categories: tuple[int, ...]
    """Number of categories of each column; empty unless categorical."""

    @property
    def num_columns(self) -> int:
        """How many columns of the action array the leaf takes."""
        return int(self.columns.stop - self.columns.start)


@dataclass(frozen=True, slots=True)
class ActionLayout:
    """The leaves of an action space in order, with the widths of its arrays."""

    leaves: tuple[ActionLeaf, ...]
    num_inputs: int
    """P, the width of the distribution inputs."""
    num_columns: int
    """K, the width of the action array."""
    nested: bool
    """True for Dict and Tuple spaces: their action arrays are float32 [N, K]."""
    scalar: bool
    """True for a plain Discrete space: its action array is int64 [N], not [N, 1]."""

    @property
    def kind(self) -> Kind | Literal["product"]:
        """Of its only leaf, or "product" for Dict and Tuple spaces."""
        return "product" if self.nested else self.leaves[0].kind


def action_layout(space: gym.Space[Any]) -> ActionLayout:
    """Lay out an action space.

    Raises:
        TypeError: for a space that holds something other than Box, Discrete, MultiDiscrete,
            MultiBinary, Dict and Tuple.
        ValueError: for a Box of integers without finite bounds.
    """
    leaves: list[ActionLeaf] = []
    inputs = columns = 0
    for leaf_space in action_leaves(space):
        kind, categories, width = _describe(leaf_space)
        num_inputs = {"categorical": sum(categories), "bernoulli": width, "gaussian": 2 * width}
        leaf = ActionLeaf(
            space=leaf_space,
            kind=kind,
            inputs=slice(inputs, inputs + num_inputs[kind]),
            columns=slice(columns, columns + width),
            categories=categories,
        )
        leaves.append(leaf)
        inputs, columns = leaf.inputs.stop, leaf.columns.stop
    nested = isinstance(space, gym.spaces.Dict | gym.spaces.Tuple)
    return ActionLayout(
        leaves=tuple(leaves),
        num_inputs=inputs,
        num_columns=columns,
        nested=nested,
        scalar=isinstance(space, gym.spaces.Discrete),
    )


def _describe(space: gym.Space[Any]) -> tuple[Kind, tuple[int, ...], int]:
    """Kind, categories and number of action columns of a leaf."""
    if isinstance(space, gym.spaces.Discrete):
        return "categorical", (int(space.n),), 1
    if isinstance(space, gym.spaces.MultiDiscrete):
        categories = tuple(int(n) for n in space.nvec.ravel())
        return "categorical", categories, len(categories)
    if isinstance(space, gym.spaces.MultiBinary):
        return "bernoulli", (), int(np.prod(space.shape))
    if isinstance(space, gym.spaces.Box):
        width = int(np.prod(space.shape))
        if np.issubdtype(space.dtype, np.floating):
            return "gaussian", (), width
        if not space.is_bounded():
            raise ValueError(f"cannot choose among unboundedly many integers: {space}")
        counts = space.high.astype(np.int64) - space.low.astype(np.int64) + 1
        return "categorical", tuple(int(n) for n in counts.ravel()), width
    raise TypeError(
        f"cannot act in a {type(space).__name__} space; supported are Box, Discrete, "
        "MultiDiscrete, MultiBinary, Dict and Tuple"
    )
