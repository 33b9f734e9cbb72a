"""SampleBatch and MultiAgentBatch: fragments of trajectories, as columns.

Owns the meaning of rows as steps of trajectories: slicing, episodes, sequences and their padding,
the input of a single step, and batches of several policies. `column_batch` owns the columns. Needs
numpy alone; knows neither environments nor policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar, cast, overload

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_batch import ColumnBatch, append
from rlrun.data.column_data import Array, convert_columns, num_rows, pick
from rlrun.data.compression import pack_column, unpack_column
from rlrun.data.sequences import (
    change_points,
    padded_column,
    real_rows,
    sequence_of,
    sequence_offsets,
    slice_bounds,
    trimmed_seq_lens,
)
from rlrun.data.view_requirement import ViewRequirement, single_step_columns

DEFAULT_POLICY_ID = "default_policy"
"""The id of the policy if none is named."""

AnyBatch = TypeVar("AnyBatch", bound="SampleBatch | MultiAgentBatch")

# Inside the class, `slice` in a signature would be the method of that name.
RowRange = slice


class SampleBatch(ColumnBatch):
    """Columns of steps, all with the same N rows; the rows of a trajectory are contiguous.

    Names of columns are constants of the class (`SampleBatch.OBS`). See `ColumnBatch` for flags and
    constructor arguments.
    """

    __slots__ = ()

    OBS = col.OBS
    NEXT_OBS = col.NEXT_OBS
    ACTIONS = col.ACTIONS
    REWARDS = col.REWARDS
    TERMINATEDS = col.TERMINATEDS
    TRUNCATEDS = col.TRUNCATEDS
    INFOS = col.INFOS
    EPS_ID = col.EPS_ID
    ENV_ID = col.ENV_ID
    AGENT_INDEX = col.AGENT_INDEX
    UNROLL_ID = col.UNROLL_ID
    T = col.T
    ACTION_LOGP = col.ACTION_LOGP
    ACTION_DIST_INPUTS = col.ACTION_DIST_INPUTS
    VF_PREDS = col.VF_PREDS
    WEIGHTS_CHECKSUM = col.WEIGHTS_CHECKSUM
    ADVANTAGES = col.ADVANTAGES
    VALUE_TARGETS = col.VALUE_TARGETS
    PREV_ACTIONS = col.PREV_ACTIONS
    PREV_REWARDS = col.PREV_REWARDS
    DISCOUNTS = col.DISCOUNTS
    WEIGHTS = col.WEIGHTS
    ITEM_IDS = col.ITEM_IDS
    SEQ_LENS = col.SEQ_LENS

    @overload
    def __getitem__(self, key: str) -> Any: ...
    @overload
    def __getitem__(self, key: RowRange) -> SampleBatch: ...
    def __getitem__(self, key: str | RowRange) -> Any:
        """A column by name, or a batch of the rows [a:b], as views.

        Bounds must not be negative, and the step must be 1; the stop is cut to the length. With
        `seq_lens`, each bound is moved back to the start of its sequence, and the result has the
        states of its sequences. In padded batches, bounds count real steps.
        """
        return self._sliced(key) if isinstance(key, slice) else self.column(key)

    def env_steps(self) -> int:
        """Env steps: `count`, since one agent acts in each."""
        return self.count

    def agent_steps(self) -> int:
        """Agent steps: `count`."""
        return self.count

    # Selecting rows

    def take(self, rows: Array) -> SampleBatch:
        """A copy of the rows `rows` (int `[n]`). Raises ValueError for batches with seq_lens."""
        self._require_free_rows("take")
        return self._like({name: pick(column, rows) for name, column in self._columns.items()})

    def slice(
        self, start: int, end: int, state_start: int | None = None, state_end: int | None = None
    ) -> SampleBatch:
        """Exactly the rows [start, end), even if they begin or end inside a sequence.

        With a negative start, the batch begins with that many rows of zeros. The first and last
        `seq_lens` are adjusted. The states are those of sequences with a row in the slice, or of
        [state_start, state_end); a sequence that is cut keeps the state of its original start.
        """
        self._require_rows("slice")
        if self.zero_padded:
            raise ValueError("a zero-padded batch has no exact slice: slice before padding")
        if end < 0:
            raise ValueError(f"end must not be negative, but is {end}")
        seq_lens = self._seq_lens()
        end = min(end, self.count)
        padding = max(-start, 0)
        begin = min(max(start, 0), end)
        if seq_lens is None or (begin == end and not padding):
            batch = self._cut(slice(begin, end), slice(0))
            return batch._left_padded(padding)
        if state_start is None:
            state_start = sequence_of(seq_lens, begin)
            state_end = sequence_of(seq_lens, max(end - 1, begin)) + 1
        sequences = slice(state_start, state_end)
        batch = self._cut(slice(begin, end), sequences)._left_padded(padding)
        batch[col.SEQ_LENS] = trimmed_seq_lens(seq_lens, sequences, begin, end, padding)
        return batch

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the steps as dicts of values by column name, in which `seq_lens` is 1.

        Each step has the state of its sequence. Padded batches yield their real steps.
        """
        self._require_rows("rows")
        seq_lens = self._seq_lens()
        columns = dict(self.items())
        steps = range(self.count)
        of_sequence: Sequence[int] = steps
        positions: Sequence[int] = steps
        if seq_lens is not None:
            of_sequence = np.repeat(np.arange(len(seq_lens)), seq_lens).tolist()
            if self.zero_padded:
                positions = real_rows(seq_lens, self._padded_length()).tolist()
        per_sequence = {name for name in columns if self._is_per_sequence(name)}
        for step in steps:
            yield {
                name: 1
                if name == col.SEQ_LENS
                else pick(column, of_sequence[step] if name in per_sequence else positions[step])
                for name, column in columns.items()
            }

    def split_by_episode(self, key: str | None = None) -> list[SampleBatch]:
        """The rows of each episode, in order, as views.

        With `key` "eps_id", a batch ends where the id changes; with "terminateds", after rows that
        are terminated or truncated, and the rows after the last of these are a batch, too. None is
        "eps_id" if there is that column. Raises KeyError for a batch without the column.
        """
        self._require_rows("split_by_episode")
        if self.zero_padded:
            raise ValueError("split by episode before padding")
        key = key or (col.EPS_ID if col.EPS_ID in self else col.TERMINATEDS)
        if key not in (col.EPS_ID, col.TERMINATEDS):
            raise KeyError(f"key must be {col.EPS_ID!r} or {col.TERMINATEDS!r}, not {key!r}")
        if not self.count:
            return []
        if key == col.EPS_ID:
            cuts = change_points(self[key])
        else:
            cuts = (np.flatnonzero(self._ends()[:-1]) + 1).tolist()
        bounds = [0, *cuts, self.count]
        return [self.slice(a, b) for a, b in pairwise(bounds)]

    def timeslices(
        self, size: int | None = None, num_slices: int | None = None
    ) -> list[SampleBatch]:
        """Consecutive slices, as views: `num_slices`, or as many as there are of `size` rows.

        With `size`, the last slice may be shorter. With `num_slices`, each has (rows left) //
        (slices left) rows: 7 rows in 3 slices are 2, 2, 3. With `seq_lens`, bounds are moved back
        to the start of a sequence, and empty slices dropped; every row is in exactly one slice.
        """
        self._require_rows("timeslices")
        bounds = slice_bounds(self.count, size, num_slices)
        slices = [self[a:b] for a, b in pairwise(bounds)]
        return slices if self._seq_lens() is None else [part for part in slices if len(part)]

    def shuffle(self, rng: np.random.Generator | None = None) -> SampleBatch:
        """Shuffle the rows in place. Raises ValueError for batches with seq_lens.

        Without `rng` the order differs in every call, so that a run cannot be repeated.
        """
        self._require_free_rows("shuffle")
        order = (rng or np.random.default_rng()).permutation(self.count)
        for name, column in self._columns.items():
            self._columns[name] = pick(column, order)
        return self

    def right_zero_pad(self, max_seq_len: int, exclude_states: bool = True) -> SampleBatch:
        """Pad every sequence to `max_seq_len` rows in place: zeros, None for objects and strings.

        States per sequence stay as they are; states per step are padded unless `exclude_states`.
        Raises ValueError without seq_lens and for sequences longer than `max_seq_len`.
        """
        self._require_rows("right_zero_pad")
        seq_lens = self._seq_lens()
        if seq_lens is None:
            raise ValueError("only a batch with seq_lens can be padded")
        if seq_lens.max() > max_seq_len:
            longest = seq_lens.max()
            raise ValueError(f"a sequence has {longest} steps, more than max_seq_len={max_seq_len}")
        source = real_rows(seq_lens, self._padded_length()) if self.zero_padded else None
        target = real_rows(seq_lens, max_seq_len)
        total = len(seq_lens) * max_seq_len
        for name, column in list(self.items()):
            is_state = name.startswith(col.STATE_IN_PREFIX)
            if self._is_per_sequence(name) or (is_state and exclude_states):
                continue
            self._columns[name] = padded_column(column, source, target, total)
        self.zero_padded = True
        self.max_seq_len = max_seq_len
        return self

    # Appending, sending

    def concat(self, other: SampleBatch) -> SampleBatch:
        """A new batch: the rows of this one, then the other's."""
        return concat_samples([self, other])

    @staticmethod
    def concat_samples(batches: Iterable[AnyBatch]) -> AnyBatch:
        """The function `concat_samples`."""
        return concat_samples(batches)

    def as_multi_agent(self, policy_id: str = DEFAULT_POLICY_ID) -> MultiAgentBatch:
        """A MultiAgentBatch in which this is the batch of `policy_id`."""
        return MultiAgentBatch({policy_id: self}, self.count)

    def compress(self, columns: Iterable[str] = (col.OBS, col.NEXT_OBS)) -> SampleBatch:
        """Compress each row of these columns in place with LZ4, into arrays of bytes.

        Each row of a shared storage is compressed once.
        """
        return self._converted(columns, pack_column)

    def decompress_if_needed(self, columns: Iterable[str] = (col.OBS, col.NEXT_OBS)) -> SampleBatch:
        """Undo `compress` in place for columns that are compressed."""
        return self._converted(columns, unpack_column)

    # What the rows say

    def is_single_trajectory(self) -> bool:
        """Whether all rows belong to one episode, which ends at the last row if it ends."""
        if col.EPS_ID in self and not self.zero_padded and change_points(self[col.EPS_ID]):
            return False
        return not self._ends()[:-1].any()

    def is_terminated_or_truncated(self) -> bool:
        """Whether the episode ends at the last row."""
        return bool(self._ends()[-1:].any())

    def get_single_step_input_dict(
        self, view_requirements: Mapping[str, ViewRequirement], index: int | str = "last"
    ) -> SampleBatch:
        """The model's input for one step: row `index`, or the step after the last row ("last").

        For "last", `obs` is new_obs[-1], `prev_actions` actions[-1], `prev_rewards` rewards[-1].
        The batch must be one trajectory, or come from an env runner. The result has one row, and no
        seq_lens, so that recurrent models act on it and do not learn from it.

        Raises ValueError for a step inside a sequence if the batch lacks the step's states.
        """
        return SampleBatch.from_columns(single_step_columns(self, view_requirements, index))

    def set_training(self, training: bool = True) -> SampleBatch:
        """Set `is_training`, and return the batch."""
        self.is_training = training
        return self

    def _require_rows(self, what: str) -> None:
        if self.time_major:
            raise ValueError(f"{what}: a time-major batch has no rows to select")

    def _require_free_rows(self, what: str) -> None:
        self._require_rows(what)
        if self._seq_lens() is not None:
            raise ValueError(f"{what}: the rows of a batch with seq_lens cannot be reordered")

    def _sliced(self, key: RowRange) -> SampleBatch:
        self._require_rows("slicing")
        count = self.count
        start = 0 if key.start is None else key.start
        stop = count if key.stop is None else min(key.stop, count)
        if start < 0 or stop < 0 or key.step not in (None, 1):
            raise ValueError(f"bounds must not be negative and the step must be 1: {key}")
        start = min(start, count)
        seq_lens = self._seq_lens()
        if seq_lens is None:
            return self._cut(slice(start, max(stop, start)), slice(0))
        first = sequence_of(seq_lens, start)
        last = max(sequence_of(seq_lens, stop), first)
        if self.zero_padded:
            length = self._padded_length()
            return self._cut(slice(first * length, last * length), slice(first, last))
        offsets = sequence_offsets(seq_lens)
        return self._cut(slice(int(offsets[first]), int(offsets[last])), slice(first, last))

    def _left_padded(self, padding: int) -> SampleBatch:
        columns = dict(self._columns)
        for name, column in self.items() if padding else ():
            if not self._is_per_sequence(name):
                total = num_rows(column) + padding
                columns[name] = padded_column(column, None, np.arange(padding, total), total)
        return self._like(columns)

    def _ends(self) -> Array:
        """Whether the episode ends at each real step, bool `[count]`."""
        self._require_rows("ends of episodes")
        ends: Array = np.asarray(self[col.TERMINATEDS], dtype=bool)
        if col.TRUNCATEDS in self:
            ends = ends | np.asarray(self[col.TRUNCATEDS], dtype=bool)
        seq_lens = self._seq_lens()
        if self.zero_padded and seq_lens is not None:
            return ends[real_rows(seq_lens, self._padded_length())]
        return ends

    def _converted(self, columns: Iterable[str], convert: Callable[[Any], Any]) -> SampleBatch:
        given = {name: self._columns[name] for name in columns if name in self._columns}
        self._columns |= convert_columns(given, convert)
        return self


class MultiAgentBatch:
    """The batches of several policies from the same env steps.

    | attribute | meaning |
    |---|---|
    | policy_batches | policy id -> SampleBatch |
    | count | env steps; each counts once, whatever the number of agents that act in it |
    """

    __slots__ = ("count", "policy_batches")

    def __init__(self, policy_batches: Mapping[str, SampleBatch], env_steps: int):
        self.policy_batches = dict(policy_batches)
        self.count = int(env_steps)

    @staticmethod
    def wrap_as_needed(
        policy_batches: Mapping[str, SampleBatch], env_steps: int
    ) -> SampleBatch | MultiAgentBatch:
        """A SampleBatch if the default policy is the only one, or else a MultiAgentBatch."""
        return MultiAgentBatch(policy_batches, env_steps).unwrapped()

    def unwrapped(self) -> SampleBatch | MultiAgentBatch:
        """The SampleBatch if the default policy is the only one, or else this batch."""
        batches = self.policy_batches
        return batches[DEFAULT_POLICY_ID] if batches.keys() == {DEFAULT_POLICY_ID} else self

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, policy_id: str) -> SampleBatch:
        """The SampleBatch of a policy."""
        return self.policy_batches[policy_id]

    def __contains__(self, policy_id: object) -> bool:
        return policy_id in self.policy_batches

    def __iter__(self) -> Iterator[str]:
        return iter(self.policy_batches)

    def __repr__(self) -> str:
        return f"MultiAgentBatch({self.policy_batches!r}, env_steps={self.count})"

    def __reduce__(self) -> tuple[Any, ...]:
        return MultiAgentBatch, (self.policy_batches, self.count)

    def env_steps(self) -> int:
        """Env steps: `count`."""
        return self.count

    def agent_steps(self) -> int:
        """Rows of all policies together."""
        return sum(batch.agent_steps() for batch in self.policy_batches.values())

    def timeslices(self, k: int) -> list[MultiAgentBatch]:
        """Slices of `k` env steps, the same ones for every policy; the last may be shorter.

        Rows with equal (eps_id, t) are of one env step, and slices are in the order of (eps_id, t).
        A policy without rows in a slice is not part of it. Raises ValueError for k < 1 and for
        batches with seq_lens, whose rows cannot be reordered.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        batches = {pid: batch for pid, batch in self.policy_batches.items() if len(batch)}
        if not batches:
            return []
        steps = step_ranks(batches.values())
        slices: list[MultiAgentBatch] = []
        splits = np.cumsum([len(batch) for batch in batches.values()])[:-1]
        by_policy = dict(zip(batches, np.split(steps, splits), strict=True))
        num_steps = int(steps.max()) + 1
        for start in range(0, num_steps, k):
            stop = min(start + k, num_steps)
            parts = {}
            for policy_id, ranks in by_policy.items():
                rows = np.flatnonzero((ranks >= start) & (ranks < stop))
                if len(rows):
                    rows = rows[np.argsort(ranks[rows], kind="stable")]
                    parts[policy_id] = batches[policy_id].take(rows)
            slices.append(MultiAgentBatch(parts, stop - start))
        return slices

    def as_multi_agent(self) -> MultiAgentBatch:
        """Itself."""
        return self

    def copy(self, shallow: bool = False) -> MultiAgentBatch:
        """A copy of every policy's batch, deep unless `shallow`."""
        copies = {pid: batch.copy(shallow) for pid, batch in self.policy_batches.items()}
        return MultiAgentBatch(copies, self.count)

    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(batch.size_bytes() for batch in self.policy_batches.values())

    def compress(self, columns: Iterable[str] = (col.OBS, col.NEXT_OBS)) -> MultiAgentBatch:
        """Compress columns of every policy's batch in place and return the batch."""
        for batch in self.policy_batches.values():
            batch.compress(columns)
        return self

    def decompress_if_needed(
        self, columns: Iterable[str] = (col.OBS, col.NEXT_OBS)
    ) -> MultiAgentBatch:
        """Undo `compress` in place where it was done and return the batch."""
        for batch in self.policy_batches.values():
            batch.decompress_if_needed(columns)
        return self

    def set_training(self, training: bool = True) -> MultiAgentBatch:
        """Set `is_training` of every policy's batch, and return the batch."""
        for batch in self.policy_batches.values():
            batch.set_training(training)
        return self

    def to_device(self, device: Any) -> MultiAgentBatch:
        """A batch with torch tensors on `device`; see `ColumnBatch.to_device`."""
        moved = {pid: batch.to_device(device) for pid, batch in self.policy_batches.items()}
        return MultiAgentBatch(moved, self.count)

    def check_valid(self) -> None:
        """Raise ValueError if a policy's batch is invalid, or the number of env steps negative."""
        for policy_id, batch in self.policy_batches.items():
            try:
                batch.check_valid()
            except ValueError as error:
                raise ValueError(f"policy {policy_id!r}: {error}") from None
        if self.count < 0:
            raise ValueError(f"env_steps is {self.count}")


def step_ranks(batches: Iterable[SampleBatch]) -> Array:
    """The rank of (eps_id, t) of each row, int `[N]` over all batches one after the other."""
    present = list(batches)
    episodes = np.concatenate([batch.column(col.EPS_ID) for batch in present])
    times = np.concatenate([batch.column(col.T) for batch in present]).astype(np.int64)
    _, episode_ranks = np.unique(episodes, return_inverse=True)
    times -= times.min()
    _, ranks = np.unique(episode_ranks * (times.max() + 1) + times, return_inverse=True)
    return ranks


def concat_samples(batches: Iterable[AnyBatch]) -> AnyBatch:
    """Append batches. Empty ones are skipped; without any, the result is an empty SampleBatch.

    The result has the columns of the first batch, and the others must have them, too. Shared
    columns stay shared. If one batch is a MultiAgentBatch, so is the result, and a SampleBatch is
    appended to the default policy's. A single batch is copied shallowly. Raises ValueError for
    batches that do not fit together (`column_batch.append`).
    """
    given: Sequence[Any] = list(batches)
    filled = [batch for batch in given if len(batch)]
    joined: Any
    if not all(isinstance(batch, SampleBatch) for batch in given):
        joined = _concat_multi_agent([batch.as_multi_agent() for batch in filled])
    elif filled:
        joined = append(filled) if len(filled) > 1 else filled[0].copy(shallow=True)
    else:
        joined = SampleBatch()
    return cast(AnyBatch, joined)


def _concat_multi_agent(batches: Sequence[MultiAgentBatch]) -> MultiAgentBatch:
    by_policy: dict[str, list[SampleBatch]] = {}
    for batch in batches:
        for policy_id in batch:
            by_policy.setdefault(policy_id, []).append(batch[policy_id])
    joined = {policy_id: concat_samples(parts) for policy_id, parts in by_policy.items()}
    return MultiAgentBatch(joined, sum(batch.count for batch in batches))
