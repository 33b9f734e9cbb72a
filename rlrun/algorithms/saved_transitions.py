"""Transitions of `rlrun rollout --save`, as an algorithm's policy would have sampled them.

Owns the reading of such a file and what its columns must be. Must not know losses or buffers.

    N  rows
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.algorithms.algorithm import Algorithm
from rlrun.config.problems import InputError
from rlrun.config.registry import no_such
from rlrun.connectors.actions import ActionPipeline
from rlrun.connectors.observations import ObservationPipeline
from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.nested import Keys, leaf_spaces, map_space
from rlrun.data.sample_batch import DEFAULT_POLICY_ID, SampleBatch
from rlrun.policies.action_sampling import action_layout
from rlrun.sampling.runner_connectors import RunnerConnectors


def load_transitions(
    algorithm: Algorithm[Any],
    path: str | Path,
    *,
    agent: str | None = None,
    policy_id: str = DEFAULT_POLICY_ID,
) -> SampleBatch:
    """Load the transitions in a file of `rlrun rollout --save`, as rows to learn from.

    Observations are preprocessed, and actions are the policy's: between -1 and 1 in a bounded Box
    with `connectors.normalize_actions`. Rewards are clipped as `connectors.clip_rewards` says.

    Args:
        agent: the agent whose transitions to load; None for environments with a single one.
        policy_id: the policy that learns from them.

    Returns:
        ``obs``, ``new_obs``, ``actions``, ``rewards``, ``terminateds``, ``truncateds``, ``eps_id``,
        ``unroll_id`` and ``t``, each ``[N, ...]``.

    Raises:
        InputError: there is no such policy; the file cannot be read; a column is missing, does not
            fit the environment, or holds NaN; or a connector is custom, or normalises by what is
            sampled.
    """
    if policy_id not in algorithm.policies:
        raise InputError(no_such("policy", policy_id, list(algorithm.policies)))
    connectors = algorithm.policies.connectors[policy_id]
    observations, actions = _stateless(connectors, Path(path))
    saved = _SavedColumns(Path(path), "" if agent is None else f"{agent}/")
    space, action_space = connectors.env_spaces
    rows = {
        col.OBS: observations.preprocess(saved.nest("obs", space)),
        col.NEXT_OBS: observations.preprocess(saved.nest("next_obs", space)),
        col.ACTIONS: _actions(saved, actions, action_space),
        col.TERMINATEDS: saved.exact("terminated", bool),
        col.TRUNCATEDS: saved.exact("truncated", bool),
        col.EPS_ID: saved.exact("episode", np.int64),
    }
    rewards = saved.read("reward", ())
    ends = rows[col.TERMINATEDS], rows[col.TRUNCATEDS]
    clipped = connectors.rewards(rewards, *ends, np.zeros(len(rewards)), update=False)
    rows[col.REWARDS] = clipped.astype(np.float32)
    rows[col.UNROLL_ID], rows[col.T] = rows[col.EPS_ID], saved.steps()
    return SampleBatch(rows)


def _stateless(
    connectors: RunnerConnectors, path: Path
) -> tuple[ObservationPipeline, ActionPipeline]:
    """The connectors of observations and actions; InputError if they are more than functions."""
    observations, actions, rewards = connectors.observations, connectors.actions, connectors.rewards
    if not isinstance(observations, ObservationPipeline) or not isinstance(actions, ActionPipeline):
        what = "a custom connector"
    elif observations.filter is not None:
        what = "env_runners.observation_filter"
    elif rewards.get_state():
        what = "connectors.normalize_rewards"
    else:
        return observations, actions
    raise InputError(
        f"{path}: its transitions are the environment's own, to which {what} cannot be applied "
        "later; remove that setting"
    )


class _SavedColumns:
    """The columns of a file.

    Args:
        prefix: of their names.

    Raises:
        InputError: the file cannot be read, or holds no transitions.
    """

    def __init__(self, path: Path, prefix: str) -> None:
        self._path, self._prefix = path, prefix
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                self._columns = {name: file[name] for name in file.files}
        except Exception as error:  # a damaged zip file raises half a dozen kinds
            reason = "no such file" if isinstance(error, FileNotFoundError) else str(error)
            message = f"{path}: not a file of `rlrun rollout --save`: {reason}"
            raise InputError(message) from error
        rewards = self._columns.get(f"{prefix}reward", np.empty(0))
        self._num_rows = len(rewards) if rewards.ndim else 0
        if not self._num_rows:
            self.read("reward", ())
            raise InputError(f"{path}: there are no transitions in it")

    def nest(self, name: str, space: gym.Space[Any]) -> Any:
        """The observations ``[N, ...]`` of a space, which may be nested."""
        return map_space(lambda path, leaf: self.leaf(_join(name, path), leaf), space)

    def leaf(self, name: str, space: gym.Space[Any]) -> Array:
        """The rows ``[N, ...]`` of a space that is not nested."""
        column = self.read(name, space.shape or ())
        values = column.astype(space.dtype)
        lossless = np.issubdtype(space.dtype, np.floating) or (values == column).all()
        if not lossless or not _are_within(values, space):
            low, high = column.min(), column.max()
            raise self.problem(name, f"values from {low:g} to {high:g} do not fit {space}")
        return values

    def read(self, name: str, shape: tuple[int, ...]) -> Array:
        """A column of numbers ``[N, *shape]``."""
        column = self._columns.get(f"{self._prefix}{name}")
        if column is None:
            raise self.problem(name, f"missing; it holds {', '.join(sorted(self._columns))}")
        wanted = self._num_rows, *shape
        if column.dtype.kind not in "biuf" or column.shape != wanted:
            found = f"{column.dtype} of shape {column.shape}"
            raise self.problem(name, f"{found}, not numbers of shape {wanted}")
        if column.dtype.kind != "f":
            return column
        with np.errstate(over="ignore"):
            wrong = ~np.isfinite(column.astype(np.float32))
        if name.startswith(("obs", "next_obs")):
            # Some environments end with an infinite observation, which nothing learns from.
            wrong &= ~np.isinf(column)
        if wrong.any():
            row = int(wrong.nonzero()[0][0])
            raise self.problem(name, f"row {row} has a number that is not finite in float32")
        return column

    def exact(self, name: str, dtype: type) -> Array:
        """A column ``[N]`` of flags or whole numbers; InputError if a value is something else."""
        column = self.read(name, ())
        with np.errstate(invalid="ignore"):  # what does not fit is found below
            values: Array = column.astype(dtype)
        changed = values != column
        if changed.any():
            row = int(changed.nonzero()[0][0])
            wanted = "0 or 1" if dtype is bool else "a whole number of 64 bits"
            raise self.problem(name, f"row {row} has {column[row]}, not {wanted}")
        return values

    def steps(self) -> Array:
        """The env step of each row in its episode, which files have for several agents."""
        if f"{self._prefix}t" in self._columns:
            return self.exact("t", np.int64)
        episodes, rows = self.exact("episode", np.int64), np.arange(self._num_rows)
        begins = np.append(True, episodes[1:] != episodes[:-1])
        return rows - np.maximum.accumulate(np.where(begins, rows, 0))

    def problem(self, name: str, message: str) -> InputError:
        """The error of a column."""
        return InputError(f"{self._path}: {self._prefix}{name}: {message}")


def _join(name: str, path: Keys) -> str:
    return "/".join((name, *map(str, path)))


def _are_within(values: Array, space: gym.Space[Any]) -> bool:
    """Whether all values are of the space's categories; numbers of a Box may lie outside."""
    match space:
        case gym.spaces.Discrete():
            low, high = space.start, space.start + space.n - 1
        case gym.spaces.MultiDiscrete():
            low, high = space.start, space.start + space.nvec - 1
        case gym.spaces.MultiBinary():
            low, high = 0, 1
        case _:
            return True
    return bool(((values >= low) & (values <= high)).all())


def _actions(saved: _SavedColumns, pipeline: ActionPipeline, space: gym.Space[Any]) -> Array:
    """The actions in the file as the policy would have chosen them, ``[N]`` or ``[N, K]``."""
    layout = action_layout(space)
    columns = []
    for (path, part), leaf in zip(leaf_spaces(space), pipeline.leaves, strict=True):
        name = _join("action", path)
        values = saved.leaf(name, part)
        columns.append(leaf.inverse(values))
        if leaf.bounds is not None and not np.allclose(
            values, np.clip(values, *leaf.bounds), rtol=0.0, atol=1e-4
        ):
            raise saved.problem(name, "actions lie beyond the bounds of the action space")
    if layout.nested:
        return np.concatenate(columns, axis=1, dtype=np.float32)
    counted = layout.kind in ("categorical", "multi_categorical")
    actions = columns[0].astype(np.int64 if counted else np.float32)
    return actions[:, 0] if layout.kind == "categorical" else actions
