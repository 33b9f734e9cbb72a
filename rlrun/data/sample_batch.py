"""SampleBatch: the columns of one or more trajectory fragments, the form all data travels in.

Owns the batch as a whole: its columns and flags, selecting and appending rows, sending it. What a
column can be is in `column_data`, columns that share a storage in `shared_column`, sequences and
their padding in `sequences`. Knows numpy alone: neither environments nor policies.

Glossary: N rows; a *row* is one step of one agent; S sequences (`seq_lens`), for recurrent models.
Learner rows are `[N, ...]`. A time-major batch holds `[T, B, ...]` instead and is for learners that
ask for it: it can be appended (along B), copied and sent, its rows cannot be selected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Any, overload

import numpy as np

from rlrun.data import columns as names
from rlrun.data.column_data import (
    Array,
    LazyColumn,
    as_column,
    concat,
    deep_copy,
    leaves,
    map_leaves,
    num_rows,
    pick,
    read,
    size_bytes,
)
from rlrun.data.compression import Compressor, PackedColumn
from rlrun.data.multi_agent_batch import DEFAULT_POLICY_ID, MultiAgentBatch
from rlrun.data.sequences import (
    change_points,
    padded_column,
    real_rows,
    sequence_of,
    sequence_offsets,
    slice_bounds,
    trimmed_seq_lens,
)
from rlrun.data.shared_column import SharedColumn, compact, concat_shared, copy_shared
from rlrun.data.single_step import View, single_step_columns
from rlrun.data.summary import summary


class SampleBatch:
    """Columns by name, all with the same N rows.

    | flag | meaning |
    |---|---|
    | zero_padded | every sequence fills `max_seq_len` rows, zeros behind its real steps |
    | max_seq_len | longest sequence allowed; None where there are none |
    | time_major | columns are [T, B, ...] |
    | num_grad_updates | how often the acting policy had been updated, None if unknown |
    | is_training | set by `set_training`: the learner, not a sampler, is reading |

    Args:
        columns: name -> array, list, number, or dict/tuple of those (`column_data.as_column`).
            Raises ValueError where the numbers of rows differ and for retired names (`dones`).
    """

    __slots__ = (
        "_columns",
        "is_training",
        "max_seq_len",
        "num_grad_updates",
        "time_major",
        "zero_padded",
    )

    OBS = names.OBS
    NEXT_OBS = names.NEXT_OBS
    ACTIONS = names.ACTIONS
    REWARDS = names.REWARDS
    TERMINATEDS = names.TERMINATEDS
    TRUNCATEDS = names.TRUNCATEDS
    INFOS = names.INFOS
    EPS_ID = names.EPS_ID
    ENV_ID = names.ENV_ID
    AGENT_INDEX = names.AGENT_INDEX
    UNROLL_ID = names.UNROLL_ID
    T = names.T
    ACTION_LOGP = names.ACTION_LOGP
    ACTION_PROB = names.ACTION_PROB
    ACTION_DIST_INPUTS = names.ACTION_DIST_INPUTS
    VF_PREDS = names.VF_PREDS
    VALUES_BOOTSTRAPPED = names.VALUES_BOOTSTRAPPED
    ADVANTAGES = names.ADVANTAGES
    VALUE_TARGETS = names.VALUE_TARGETS
    PREV_ACTIONS = names.PREV_ACTIONS
    PREV_REWARDS = names.PREV_REWARDS
    SEQ_LENS = names.SEQ_LENS

    def __init__(
        self,
        columns: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        *,
        zero_padded: bool = False,
        max_seq_len: int | None = None,
        time_major: bool = False,
        num_grad_updates: float | None = None,
        is_training: bool = False,
    ):
        if isinstance(columns, SampleBatch):
            columns = columns._columns
        self._columns: dict[str, Any] = {}
        self.zero_padded = zero_padded
        self.max_seq_len = max_seq_len
        self.time_major = time_major
        self.num_grad_updates = num_grad_updates
        self.is_training = is_training
        for name, value in dict(columns).items():
            self[name] = value
        self._check_rows(names.is_countable)

    @classmethod
    def from_columns(
        cls,
        columns: dict[str, Any],
        *,
        zero_padded: bool = False,
        max_seq_len: int | None = None,
        time_major: bool = False,
        num_grad_updates: float | None = None,
        is_training: bool = False,
    ) -> SampleBatch:
        """The constructor of hot paths: takes over `columns`, converts and checks nothing.

        The values are ready columns with equal numbers of rows; the dict belongs to the batch now.
        """
        batch = cls.__new__(cls)
        batch._columns = columns
        batch.zero_padded = zero_padded
        batch.max_seq_len = max_seq_len
        batch.time_major = time_major
        batch.num_grad_updates = num_grad_updates
        batch.is_training = is_training
        return batch

    # The columns

    @overload
    def __getitem__(self, key: str) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> SampleBatch: ...
    def __getitem__(self, key: str | slice) -> Any:
        """A column, or with a slice [a:b] the batch of those rows, as views.

        Bounds are not negative, the step is 1, the stop is cut at the length. With `seq_lens` both
        bounds go back to the start of the sequence they fall into, whose states come along; in a
        padded batch they count real steps.
        """
        if isinstance(key, slice):
            return self._sliced(key)
        try:
            return read(self._columns[key])
        except KeyError:
            raise KeyError(_refusal(key) or key) from None

    def __setitem__(self, name: str, value: Any) -> None:
        refusal = _refusal(name)
        if refusal:
            raise ValueError(refusal)
        self._columns[name] = as_column(value)

    def __delitem__(self, name: str) -> None:
        del self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __repr__(self) -> str:
        return f"SampleBatch({self.count} rows, {summary(self._columns.items())})"

    def keys(self) -> KeysView[str]:
        """Names of the columns."""
        return self._columns.keys()

    def values(self) -> Iterator[Any]:
        """The columns."""
        return (read(column) for column in self._columns.values())

    def items(self) -> Iterator[tuple[str, Any]]:
        """Names and columns."""
        return ((name, read(column)) for name, column in self._columns.items())

    def get(self, name: str, default: Any = None) -> Any:
        """A column, or `default` where there is none."""
        return read(self._columns[name]) if name in self._columns else default

    def pop(self, name: str) -> Any:
        """Removes a column and returns it; raises KeyError where there is none."""
        return read(self._columns.pop(name))

    def update(self, columns: Mapping[str, Any]) -> None:
        """Sets several columns."""
        for name, value in columns.items():
            self[name] = value

    def columns(self, keys: Iterable[str]) -> list[Any]:
        """Several columns, in the order of `keys`."""
        return [self[key] for key in keys]

    def set_shared(self, name: str, storage: Any, index: Array) -> None:
        """Sets a column that is rows `index` (int [N]) of `storage` (array [M, ...]).

        Columns set with the same storage object share it: it is appended, copied and sent once.
        It must not be written to any more. Reading the column gathers read-only rows.
        """
        if index.ndim != 1 or index.dtype.kind not in "iu":
            raise ValueError(f"index of {name!r} must be int [N], not {index.dtype} {index.shape}")
        self._columns[name] = SharedColumn(storage, index)

    def shared(self, name: str) -> tuple[Any, Any] | None:
        """(storage, index) of a column set by `set_shared`, None for any other."""
        column = self._columns.get(name)
        return (read(column.storage), column.index) if isinstance(column, SharedColumn) else None

    # Counting

    @property
    def count(self) -> int:
        """Steps in the batch: sum of seq_lens, else the rows of the first countable column."""
        seq_lens = self._seq_lens()
        if seq_lens is not None:
            return int(seq_lens.sum())
        for name, column in self._columns.items():
            if names.is_countable(name):
                rows = num_rows(column)
                return rows * read(column).shape[1] if self.time_major and rows else rows
        return 0

    def __len__(self) -> int:
        return self.count

    def env_steps(self) -> int:
        """Env steps: `count`, since one agent acts in each."""
        return self.count

    def agent_steps(self) -> int:
        """Agent steps: `count`."""
        return self.count

    def size_bytes(self) -> int:
        """Bytes of all arrays, a shared storage counted once."""
        storages: dict[int, Any] = {}
        total = 0
        for column in self._columns.values():
            if isinstance(column, SharedColumn):
                storages[id(column.storage)] = column.storage
                total += int(column.index.nbytes)
            else:
                total += _stored_bytes(column)
        return total + sum(map(_stored_bytes, storages.values()))

    # Selecting rows

    def take(self, rows: Array) -> SampleBatch:
        """The rows at the indices `rows` (int [n]), copied; refused with seq_lens."""
        self._require_free_rows("take")
        return self._like({name: pick(column, rows) for name, column in self._columns.items()})

    def slice(
        self,
        start: int,
        end: int,
        state_start: int | None = None,
        state_end: int | None = None,
    ) -> SampleBatch:
        """Exactly the rows [start, end), cutting into sequences where need be.

        A negative start puts that many rows of zeros in front. Of `seq_lens` the first and last
        are adjusted; states are those of the sequences touched, or [state_start, state_end): a
        first sequence that is cut in its middle keeps the state of its own start.
        """
        self._require_rows("slice")
        if self.zero_padded:
            raise ValueError("a zero-padded batch has no exact slice: slice before padding")
        seq_lens = self._seq_lens()
        end = min(end, self.count)
        padding = max(-start, 0)
        begin = min(max(start, 0), end)
        sequences = slice(0, 0)
        if seq_lens is not None and state_start is not None:
            sequences = slice(state_start, state_end)
        elif seq_lens is not None and begin < end:
            sequences = slice(sequence_of(seq_lens, begin), sequence_of(seq_lens, end - 1) + 1)
        batch = self._cut(slice(begin, end), sequences)
        if padding:
            batch._pad_left(padding)
        if seq_lens is not None and len(seq_lens[sequences]):
            behind = max(int(sequence_offsets(seq_lens)[sequences.stop]) - end, 0)
            batch[names.SEQ_LENS] = trimmed_seq_lens(
                seq_lens[sequences], behind, end - begin + padding
            )
        return batch

    def rows(self) -> Iterator[dict[str, Any]]:
        """The steps one by one, as name -> value; `seq_lens` is 1 in each.

        A state per sequence is given for each step of it; a padded batch yields its real steps.
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
                if name == names.SEQ_LENS
                else pick(column, of_sequence[step] if name in per_sequence else positions[step])
                for name, column in columns.items()
            }

    def split_by_episode(self, key: str | None = None) -> list[SampleBatch]:
        """The pieces between the ends of episodes, in order, as views.

        `key` "eps_id": where the id changes (an id that returns starts a new piece).
        "terminateds": after rows that are terminated or truncated; an open tail is kept.
        None: by eps_id if there is one. Raises KeyError for a batch without that column.
        """
        self._require_rows("split_by_episode")
        if self.zero_padded:
            raise ValueError("split by episode before padding")
        key = key or (names.EPS_ID if names.EPS_ID in self else names.TERMINATEDS)
        if key not in (names.EPS_ID, names.TERMINATEDS):
            raise KeyError(f"key must be {names.EPS_ID!r} or {names.TERMINATEDS!r}, not {key!r}")
        if not self.count:
            return []
        if key == names.EPS_ID:
            cuts = change_points(self[key])
        else:
            cuts = (np.flatnonzero(self._ends()[:-1]) + 1).tolist()
        bounds = [0, *cuts, self.count]
        return [self.slice(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]

    def timeslices(
        self, size: int | None = None, num_slices: int | None = None
    ) -> list[SampleBatch]:
        """Consecutive slices (views): of `size` rows, the last shorter, or `num_slices` of them.

        With `num_slices` each takes (rows left) // (slices left): 7 rows in 3 slices are 2, 2, 3.
        With `seq_lens` bounds go back to the start of a sequence and slices without rows are
        dropped; every row is in exactly one slice.
        """
        self._require_rows("timeslices")
        bounds = slice_bounds(self.count, size, num_slices)
        slices = [self[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
        return slices if self._seq_lens() is None else [piece for piece in slices if len(piece)]

    def shuffle(self, rng: np.random.Generator | None = None) -> SampleBatch:
        """Reorders the rows in place, one permutation for all columns; refused with seq_lens.

        Without `rng` the order is different in every call, and no run can be repeated with it.
        """
        self._require_free_rows("shuffle")
        order = (rng or np.random.default_rng()).permutation(self.count)
        for name, column in self._columns.items():
            self._columns[name] = pick(column, order)
        return self

    def right_zero_pad(self, max_seq_len: int, exclude_states: bool = True) -> SampleBatch:
        """Pads every sequence to `max_seq_len` rows in place: zeros, None for objects and strings.

        States per sequence stay as they are; states per step are padded unless `exclude_states`.
        Raises ValueError without seq_lens and for sequences longer than `max_seq_len`.
        """
        self._require_rows("right_zero_pad")
        seq_lens = self._seq_lens()
        if seq_lens is None:
            raise ValueError("only a batch with seq_lens can be padded")
        if seq_lens.max() > max_seq_len:
            raise ValueError(f"a sequence has {seq_lens.max()} > max_seq_len={max_seq_len} steps")
        source = real_rows(seq_lens, self._padded_length()) if self.zero_padded else None
        target = real_rows(seq_lens, max_seq_len)
        total = len(seq_lens) * max_seq_len
        for name, column in list(self.items()):
            is_state = name.startswith(names.STATE_IN_PREFIX)
            if self._is_per_sequence(name) or (is_state and exclude_states):
                continue
            self._columns[name] = padded_column(column, source, target, total)
        self.zero_padded = True
        self.max_seq_len = max_seq_len
        return self

    # Copying, appending, sending

    def copy(self, shallow: bool = False) -> SampleBatch:
        """A copy with the same flags; deep (no memory in common) unless `shallow`."""
        if shallow:
            return self._like(dict(self._columns))
        shared = copy_shared(self._shared_columns())
        return self._like(
            {name: shared.get(name) or deep_copy(col) for name, col in self._columns.items()}
        )

    def concat(self, other: SampleBatch) -> SampleBatch:
        """A new batch: the rows of this one, then the other's."""
        joined = concat_samples([self, other])
        assert isinstance(joined, SampleBatch)
        return joined

    @staticmethod
    def concat_samples(
        batches: Iterable[SampleBatch | MultiAgentBatch],
    ) -> SampleBatch | MultiAgentBatch:
        """The function `concat_samples`."""
        return concat_samples(batches)

    def as_multi_agent(self, policy_id: str = DEFAULT_POLICY_ID) -> MultiAgentBatch:
        """A MultiAgentBatch in which this is the batch of `policy_id`."""
        return MultiAgentBatch({policy_id: self}, self.count)

    def __reduce__(self) -> tuple[Any, ...]:
        columns = {**self._columns, **compact(self._shared_columns())}
        # Only contiguous arrays leave the pickle as buffers of their own (protocol 5).
        contiguous = {
            name: col if isinstance(col, LazyColumn) else map_leaves(_contiguous, col)
            for name, col in columns.items()
        }
        return _restored, (type(self), contiguous, self._flags())

    def to_device(self, device: Any) -> SampleBatch:
        """A batch with torch tensors on `device`; shared storages are moved once, stay shared.

        Dtypes are kept; columns of objects and strings stay numpy. On the CPU writable arrays and
        their tensors are the same memory.
        """
        from rlrun.data.device import DeviceTransfer

        transfer = DeviceTransfer(device)
        return self._like({name: transfer.column(col) for name, col in self._columns.items()})

    def compress(
        self, bulk: bool = False, columns: Iterable[str] = (names.OBS, names.NEXT_OBS)
    ) -> SampleBatch:
        """Packs columns in place with LZ4: each row for itself, or with `bulk` the whole column.

        A row-wise packed column reads as an array of bytes objects, a bulk-packed one is unpacked
        whenever it is read. Of a shared storage every row is packed once.
        """
        return self._recode(columns, lambda coder, column: coder.packed(column, bulk=bulk))

    def decompress_if_needed(
        self, columns: Iterable[str] = (names.OBS, names.NEXT_OBS)
    ) -> SampleBatch:
        """Unpacks those of the columns that are packed, in place."""
        return self._recode(columns, lambda coder, column: coder.unpacked(column))

    # What the rows say

    def is_single_trajectory(self) -> bool:
        """Whether no episode ends before the last row, nor another one starts (eps_id)."""
        if names.EPS_ID in self and not self.zero_padded and change_points(self[names.EPS_ID]):
            return False
        return not self._ends()[:-1].any()

    def is_terminated_or_truncated(self) -> bool:
        """Whether the episode ends at the last row."""
        return bool(self._ends()[-1:].any())

    def get_single_step_input_dict(
        self, view_requirements: Mapping[str, View], index: int | str = "last"
    ) -> SampleBatch:
        """The model's input for one step: that of row `index`, or of the step after the last row.

        For "last", `obs` is new_obs[-1], `prev_actions` actions[-1], `prev_rewards` rewards[-1].
        The batch is one trajectory; the result has one row and seq_lens [1].
        """
        columns = single_step_columns(self, view_requirements, index)
        return SampleBatch.from_columns({**columns, names.SEQ_LENS: np.ones(1, dtype=np.int32)})

    def set_training(self, training: bool = True) -> SampleBatch:
        """Marks the batch as (not) being trained on."""
        self.is_training = training
        return self

    def check_valid(self) -> None:
        """Raises ValueError, with the reason, if the columns do not fit together."""
        self._check_rows(lambda name: True)
        seq_lens = self._seq_lens()
        if seq_lens is not None:
            if seq_lens.dtype.kind not in "iu" or (seq_lens < 0).any():
                raise ValueError("seq_lens must be whole numbers, none negative")
            if self.max_seq_len is not None and seq_lens.max() > self.max_seq_len:
                raise ValueError(f"a sequence is longer than max_seq_len={self.max_seq_len}")
        for name, column in self._shared_columns().items():
            inside = (column.index >= 0) & (column.index < len(column.storage))
            if not inside.all():
                raise ValueError(f"column {name!r}: an index points outside of its storage")

    # Helpers

    def _flags(self) -> dict[str, Any]:
        return {
            "zero_padded": self.zero_padded,
            "max_seq_len": self.max_seq_len,
            "time_major": self.time_major,
            "num_grad_updates": self.num_grad_updates,
            "is_training": self.is_training,
        }

    def _like(self, columns: dict[str, Any]) -> SampleBatch:
        return type(self).from_columns(columns, **self._flags())

    def _shared_columns(self) -> dict[str, SharedColumn]:
        return {name: c for name, c in self._columns.items() if isinstance(c, SharedColumn)}

    def _seq_lens(self) -> Any:
        seq_lens = self._columns.get(names.SEQ_LENS)
        return seq_lens if seq_lens is not None and len(seq_lens) else None

    def _padded_length(self) -> int:
        if self.max_seq_len is None:
            raise ValueError("a zero-padded batch needs its max_seq_len")
        return self.max_seq_len

    def _num_rows(self) -> int:
        """Rows of the columns: more than `count` in a padded batch."""
        seq_lens = self._seq_lens()
        padded = self.zero_padded and seq_lens is not None
        return len(seq_lens) * self._padded_length() if padded else self.count

    def _is_per_sequence(self, name: str) -> bool:
        seq_lens = self._seq_lens()
        if seq_lens is None:
            return False
        return name == names.SEQ_LENS or (
            name.startswith(names.STATE_IN_PREFIX)
            and num_rows(self._columns[name]) == len(seq_lens)
        )

    def _check_rows(self, concerns: Callable[[str], bool]) -> None:
        if self.time_major:
            return
        expected = self._num_rows()
        for name, column in self._columns.items():
            if not concerns(name) or name == names.SEQ_LENS or self._is_per_sequence(name):
                continue
            lengths = {len(column)} if isinstance(column, LazyColumn) else _leaf_lengths(column)
            if lengths - {expected}:
                raise ValueError(
                    f"column {name!r} has {sorted(lengths)} rows where others have {expected}"
                )

    def _require_rows(self, what: str) -> None:
        if self.time_major:
            raise ValueError(f"{what}: a time-major batch has no rows to select")

    def _require_free_rows(self, what: str) -> None:
        self._require_rows(what)
        if self._seq_lens() is not None:
            raise ValueError(f"{what}: the rows of a batch with seq_lens cannot be reordered")

    def _sliced(self, key: slice) -> SampleBatch:
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

    def _cut(self, rows: slice, sequences: slice) -> SampleBatch:
        return self._like(
            {
                name: pick(column, sequences if self._is_per_sequence(name) else rows)
                for name, column in self._columns.items()
            }
        )

    def _pad_left(self, padding: int) -> None:
        for name, column in list(self.items()):
            if not self._is_per_sequence(name):
                total = num_rows(column) + padding
                target = np.arange(padding, total)
                self._columns[name] = padded_column(column, None, target, total)

    def _ends(self) -> Array:
        """Terminated or truncated, for every real step [count]."""
        self._require_rows("ends of episodes")
        ends: Array = np.asarray(self[names.TERMINATEDS], dtype=bool)
        if names.TRUNCATEDS in self:
            ends = ends | np.asarray(self[names.TRUNCATEDS], dtype=bool)
        return (
            ends[real_rows(self._seq_lens(), self._padded_length())] if self.zero_padded else ends
        )

    def _recode(
        self, columns: Iterable[str], recode: Callable[[Compressor, Any], Any]
    ) -> SampleBatch:
        coder = Compressor()
        for name in columns:
            if name in self._columns:
                self._columns[name] = recode(coder, self._columns[name])
        return self


def concat_samples(
    batches: Iterable[SampleBatch | MultiAgentBatch],
) -> SampleBatch | MultiAgentBatch:
    """Appends batches; empty ones are skipped, and nothing at all gives an empty SampleBatch.

    The columns are those of the first batch; the others must have them too. Shared columns stay
    shared. If one batch is multi-agent, the result is: policy by policy, plain batches counting
    for the default policy. A single batch that is left comes back as a shallow copy.
    `max_seq_len` becomes the largest, `num_grad_updates` the mean weighted by steps.
    Raises ValueError for batches that differ in `zero_padded`, `time_major`, padded length,
    having seq_lens, columns or row shapes.
    """
    present = [batch for batch in batches if len(batch)]
    if any(isinstance(batch, MultiAgentBatch) for batch in present):
        return _concat_multi_agent([batch.as_multi_agent() for batch in present])
    plain = [batch for batch in present if isinstance(batch, SampleBatch)]
    if not plain:
        return SampleBatch()
    if len(plain) == 1:
        return plain[0].copy(shallow=True)
    _check_alike(plain)
    return type(plain[0]).from_columns(_concat_columns(plain), **_concat_flags(plain))


def _concat_multi_agent(batches: Sequence[MultiAgentBatch]) -> MultiAgentBatch:
    by_policy: dict[str, list[SampleBatch]] = {}
    for batch in batches:
        for policy_id in batch:
            by_policy.setdefault(policy_id, []).append(batch[policy_id])
    joined: dict[str, SampleBatch] = {}
    for policy_id, parts in by_policy.items():
        whole = concat_samples(parts)
        assert isinstance(whole, SampleBatch)
        joined[policy_id] = whole
    return MultiAgentBatch(joined, sum(batch.count for batch in batches))


def _check_alike(batches: Sequence[SampleBatch]) -> None:
    first = batches[0]
    for batch in batches[1:]:
        for flag in ("zero_padded", "time_major"):
            if getattr(batch, flag) != getattr(first, flag):
                raise ValueError(f"batches differ in {flag}")
        if first.zero_padded and batch.max_seq_len != first.max_seq_len:
            raise ValueError(
                f"padded batches differ in max_seq_len: {first.max_seq_len}, {batch.max_seq_len}"
            )
        if (names.SEQ_LENS in batch) != (names.SEQ_LENS in first):
            raise ValueError("some batches have seq_lens and some have not")
        missing = first.keys() - batch.keys()
        if missing:
            raise ValueError(f"a batch lacks columns that the first one has: {sorted(missing)}")


def _concat_columns(batches: Sequence[SampleBatch]) -> dict[str, Any]:
    parts = {name: [batch._columns[name] for batch in batches] for name in batches[0]}
    joined: dict[str, Any] = concat_shared(
        {
            name: columns
            for name, columns in parts.items()
            if all(isinstance(column, SharedColumn) for column in columns)
        }
    )
    for name, columns in parts.items():
        if name in joined:
            continue
        time_major = batches[0].time_major and not batches[0]._is_per_sequence(name)
        try:
            joined[name] = concat(columns, axis=1 if time_major else 0)
        except ValueError as error:
            raise ValueError(f"column {name!r} cannot be appended: {error}") from None
    return {name: joined[name] for name in parts}


def _concat_flags(batches: Sequence[SampleBatch]) -> dict[str, Any]:
    lengths = [batch.max_seq_len for batch in batches if batch.max_seq_len is not None]
    updates = [(b.num_grad_updates, b.count) for b in batches if b.num_grad_updates is not None]
    steps = sum(count for _, count in updates)
    return {
        "zero_padded": batches[0].zero_padded,
        "time_major": batches[0].time_major,
        "max_seq_len": max(lengths, default=None),
        "num_grad_updates": sum(u * count for u, count in updates) / steps if updates else None,
        "is_training": all(batch.is_training for batch in batches),
    }


def _refusal(name: str) -> str | None:
    successor = names.RETIRED_COLUMNS.get(name)
    return successor and f"{name!r} is retired: use {successor}"


def _restored(
    kind: type[SampleBatch], columns: dict[str, Any], flags: dict[str, Any]
) -> SampleBatch:
    return kind.from_columns(columns, **flags)


def _contiguous(leaf: Any) -> Any:
    return np.ascontiguousarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _leaf_lengths(column: Any) -> set[int]:
    return {len(leaf) for leaf in leaves(column)}


def _stored_bytes(column: Any) -> int:
    return column.nbytes if isinstance(column, PackedColumn) else size_bytes(column)
