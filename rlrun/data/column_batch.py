"""ColumnBatch: named columns with the same N rows, and flags that say how to read them.

Owns the columns, and how they are counted, appended, copied and sent; `column_data` owns what they
may consist of. Knows nothing of trajectories; `sample_batch` builds on it. A *row* is one step of
one agent. Time-major batches can be appended (along B), copied and sent, but no rows selected.

    [N, ...]     N rows
    [S, ...]     states of S sequences (`seq_lens`), for recurrent models
    [T, B, ...]  T steps of B slots, in time-major batches, for learners that need them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_data import (
    Array,
    SharedColumn,
    as_column,
    compact,
    concat,
    concat_shared,
    convert_columns,
    deep_copy,
    is_tensor,
    leaves,
    map_leaves,
    num_rows,
    pick,
    read,
    size_bytes,
)
from rlrun.data.column_reads import ColumnReads
from rlrun.data.nested import nest


class ColumnBatch:
    """Columns by name, all with the same N rows.

    | flag | meaning |
    |---|---|
    | zero_padded | each sequence has `max_seq_len` rows, with zeros after its real steps |
    | max_seq_len | longest sequence allowed; None without sequences |
    | time_major | columns are `[T, B, ...]` |
    | num_grad_updates | how often the acting policy had been updated; None if unknown |
    | is_training | set by `set_training`: a learner reads the batch |
    | reads | records which columns are read; None if nothing does |

    `columns` are arrays, lists, numbers, or dicts or tuples of them, by name
    (`column_data.as_column`). Raises ValueError if their numbers of rows differ, and for retired
    names (`dones`).
    """

    __slots__ = (
        "_columns",
        "is_training",
        "max_seq_len",
        "num_grad_updates",
        "reads",
        "time_major",
        "zero_padded",
    )

    def __init__(
        self,
        columns: Mapping[str, Any] | Iterable[tuple[str, Any]] | ColumnBatch = (),
        *,
        zero_padded: bool = False,
        max_seq_len: int | None = None,
        time_major: bool = False,
        num_grad_updates: float | None = None,
        is_training: bool = False,
    ):
        self._columns: dict[str, Any] = {}
        self.zero_padded = zero_padded
        self.max_seq_len = max_seq_len
        self.time_major = time_major
        self.num_grad_updates = num_grad_updates
        self.is_training = is_training
        self.reads: ColumnReads | None = None
        if isinstance(columns, ColumnBatch):
            columns._note_all()
        given = columns._columns if isinstance(columns, ColumnBatch) else dict(columns)
        for name, value in given.items():
            self[name] = value
        self._check_rows(col.is_countable)

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
    ) -> Self:
        """A constructor for hot paths, which converts and checks nothing.

        The values must be columns with equal numbers of rows. The batch keeps the dict itself.
        """
        batch = cls.__new__(cls)
        batch._columns = columns
        batch.zero_padded = zero_padded
        batch.max_seq_len = max_seq_len
        batch.time_major = time_major
        batch.num_grad_updates = num_grad_updates
        batch.is_training = is_training
        batch.reads = None
        return batch

    # The columns

    def column(self, name: str) -> Any:
        """The column; raises KeyError if there is none."""
        column = self._columns.get(name)
        if type(column) is np.ndarray and (self.reads is None or self.reads.decided):
            return column
        self._note(name)
        if name not in self._columns:
            raise KeyError(_refusal(name) or f"{name!r}; the batch has {', '.join(self._columns)}")
        return read(column)

    def __setitem__(self, name: str, value: Any) -> None:
        if name in col.RETIRED_COLUMNS:
            raise ValueError(_refusal(name))
        self._columns[name] = as_column(value)

    def __delitem__(self, name: str) -> None:
        self._note(name)
        del self._columns[name]

    def __contains__(self, name: object) -> bool:
        self._note(str(name))
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        self._note_all()
        return iter(self._columns)

    def __repr__(self) -> str:
        lines = [f"{name!r}: {_described(read(self._columns[name]))}" for name in sorted(self)]
        summary = "{ " + ",\n    ".join(lines) + " }" if lines else "{}"
        return f"{type(self).__name__}({self.count} rows, {summary})"

    def keys(self) -> KeysView[str]:
        """The names of the columns."""
        self._note_all()
        return self._columns.keys()

    def values(self) -> Iterator[Any]:
        """The columns."""
        self._note_all()
        return (read(column) for column in self._columns.values())

    def items(self) -> Iterator[tuple[str, Any]]:
        """Names and columns."""
        self._note_all()
        return ((name, read(column)) for name, column in self._columns.items())

    def get(self, name: str, default: Any = None) -> Any:
        """A column, or `default` if there is none."""
        self._note(name)
        return read(self._columns[name]) if name in self._columns else default

    def pop(self, name: str) -> Any:
        """Remove a column and return it; raises KeyError if there is none."""
        self._note(name)
        return read(self._columns.pop(name))

    def discard(self, name: str) -> None:
        """Remove a column if there is one, which does not count as reading it."""
        self._columns.pop(name, None)

    def update(self, columns: Mapping[str, Any]) -> None:
        """Set several columns."""
        for name, value in columns.items():
            self[name] = value

    def columns(self, keys: Iterable[str]) -> list[Any]:
        """Several columns, in the order of `keys`."""
        keys = tuple(keys)
        found = list(map(self._columns.get, keys))
        if (self.reads is None or self.reads.decided) and {*map(type, found)} == {np.ndarray}:
            return found
        return [self.column(key) for key in keys]

    def in_one_storage(self, first: str, second: str) -> tuple[Any, Array, Array]:
        """A storage `[M, ...]` with the rows of two columns, and their indices in it, `[N]` each.

        Columns that do not share a storage are appended to one another.
        """
        if self.reads is not None:
            self.reads.note((first, second), self._columns)
        one, other = self._columns.get(first), self._columns.get(second)
        if (
            isinstance(one, SharedColumn)
            and isinstance(other, SharedColumn)
            and one.storage is other.storage
        ):
            return one.storage, one.index, other.index
        rows = self.columns((first, second))
        index = np.arange(len(rows[0]))
        return np.concatenate(rows), index, index + len(index)

    def set_shared(self, name: str, storage: Any, index: Array) -> None:
        """Set a column to the rows `index` (int `[N]` or `[N, n]`) of `storage` (`[M, ...]`).

        Columns set with the same storage object share it: it is appended, copied and sent once. It
        must not be written to any more. Reading the column gathers its rows, which are read-only.
        """
        if index.ndim not in (1, 2) or index.dtype.kind not in "iu":
            raise ValueError(
                f"index of {name!r} must be int [N] or [N, n], not {index.dtype} {index.shape}"
            )
        self._columns[name] = SharedColumn(storage, index)

    def shared(self, name: str) -> tuple[Any, Any] | None:
        """(storage, index) of a column set by `set_shared`; None for other columns."""
        self._note(name)
        column = self._columns.get(name)
        if not isinstance(column, SharedColumn):
            return None
        return column.storage, column.index

    # Counting

    @property
    def count(self) -> int:
        """Steps: the sum of seq_lens, or else the rows of the first countable column."""
        return len(self)

    def __len__(self) -> int:
        # Short-lived batches of a few rows are counted often, so this makes few calls.
        columns = self._columns
        if col.SEQ_LENS in columns and (seq_lens := self._seq_lens()) is not None:
            return int(seq_lens.sum())
        for name, column in columns.items():
            if col.is_countable(name):
                if self.time_major:
                    return next((len(leaf) * leaf.shape[1] for leaf in leaves(read(column))), 0)
                return len(column) if type(column) is np.ndarray else num_rows(column)
        return 0

    def size_bytes(self) -> int:
        """Bytes of all arrays; a shared storage counts once."""
        storages = {id(c.storage): c.storage for c in self._shared_columns().values()}
        stored = [*self._columns.values(), *storages.values()]
        return sum(map(size_bytes, stored))

    # Copying, sending

    def flags(self) -> dict[str, Any]:
        """The flags as keyword arguments for the constructor and `from_columns`."""
        return {
            "zero_padded": self.zero_padded,
            "max_seq_len": self.max_seq_len,
            "time_major": self.time_major,
            "num_grad_updates": self.num_grad_updates,
            "is_training": self.is_training,
        }

    def copy(self, shallow: bool = False) -> Self:
        """A copy with the same flags; deep (no memory in common) unless `shallow`."""
        if shallow:
            return self._like(dict(self._columns))
        return self._like(convert_columns(self._columns, deep_copy, deep_copy))

    def to_device(self, device: Any) -> Self:
        """A batch with torch tensors on `device`; a shared storage is moved once and stays shared.

        Dtypes are kept; columns of objects and strings stay numpy arrays. On the CPU, tensors share
        the memory of writable arrays. Batches of tensors support reading, setting, `take`, and
        slicing without seq_lens; cut sequences and append batches before they are moved.
        """
        import torch

        target = torch.device(device)

        def tensor(leaf: Any) -> Any:
            if is_tensor(leaf):
                return leaf.to(target)
            if leaf.dtype.kind not in "biufc":
                return leaf
            # Torch would write through to read-only memory, as of Ray's object store.
            array = np.ascontiguousarray(leaf) if leaf.flags.writeable else leaf.copy()
            return torch.from_numpy(array).to(target)

        def index_tensor(index: Any) -> Any:  # torch gathers by int64 only, uint8 is a mask
            return tensor(index if is_tensor(index) else index.astype(np.int64, copy=False))

        def column_tensors(column: Any) -> Any:
            return map_leaves(tensor, nest(column))

        return self._like(convert_columns(self._columns, column_tensors, index_tensor))

    def __reduce__(self) -> tuple[Any, ...]:
        self._note_all()
        columns = {**self._columns, **compact(self._shared_columns())}
        # Only contiguous arrays leave the pickle as buffers of their own (protocol 5).
        contiguous = {
            name: column if isinstance(column, SharedColumn) else map_leaves(_contiguous, column)
            for name, column in columns.items()
        }
        return _restored, (type(self), contiguous, self.flags())

    def get_state(self) -> dict[str, Any]:
        """Columns and flags as plain values, for checkpoints, without columns of objects.

        Columns that share a storage share one again: which rows a learner computes together
        determines the last digits of the result.
        """
        shared = self._shared_columns()
        storages = {id(column.storage): column.storage for column in shared.values()}
        numbers = {key: number for number, key in enumerate(storages)}
        return {
            "order": list(self._columns),
            "plain": {
                name: column
                for name, column in self._columns.items()
                if name not in shared and not any(leaf.dtype.hasobject for leaf in leaves(column))
            },
            "storages": list(storages.values()),
            "shared": {name: [numbers[id(c.storage)], c.index] for name, c in shared.items()},
            "flags": self.flags(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The batch of a state from `get_state`."""
        columns = {name: as_column(column) for name, column in state["plain"].items()}
        for name, (number, index) in state["shared"].items():
            columns[name] = SharedColumn(state["storages"][number], index)
        in_order = {name: columns[name] for name in state["order"] if name in columns}
        return cls.from_columns(in_order, **state["flags"])

    def check_valid(self) -> None:
        """Raise ValueError if the columns do not fit together."""
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

    def _like(self, columns: dict[str, Any]) -> Self:
        batch = type(self).from_columns(columns, **self.flags())
        batch.reads = self.reads
        return batch

    def _note(self, name: str) -> None:
        if self.reads is not None:
            self.reads.note((name,), self._columns)

    def _note_all(self) -> None:
        if self.reads is not None:
            self.reads.note_all(self._columns)

    def _shared_columns(self) -> dict[str, SharedColumn]:
        return {name: c for name, c in self._columns.items() if type(c) is SharedColumn}

    def _seq_lens(self) -> Any:
        seq_lens = self._columns.get(col.SEQ_LENS)
        return seq_lens if seq_lens is not None and len(seq_lens) else None

    def _padded_length(self) -> int:
        if self.max_seq_len is None:
            raise ValueError("a zero-padded batch needs its max_seq_len")
        return self.max_seq_len

    def _num_rows(self) -> int:
        """Rows of the columns; more than `count` in a padded batch."""
        seq_lens = self._seq_lens()
        padded = self.zero_padded and seq_lens is not None
        return len(seq_lens) * self._padded_length() if padded else self.count

    def _is_per_sequence(self, name: str) -> bool:
        seq_lens = self._seq_lens()
        if seq_lens is None:
            return False
        return name == col.SEQ_LENS or (
            name.startswith(col.STATE_IN_PREFIX) and num_rows(self._columns[name]) == len(seq_lens)
        )

    def _check_rows(self, concerns: Callable[[str], bool]) -> None:
        if self.time_major:
            return
        expected = self._num_rows()
        for name, column in self._columns.items():
            if type(column) is np.ndarray and len(column) == expected:
                continue
            if not concerns(name) or self._is_per_sequence(name):
                continue
            parts = [column] if isinstance(column, SharedColumn) else leaves(column)
            lengths = {len(part) for part in parts}
            if lengths - {expected}:
                raise ValueError(
                    f"column {name!r} has {sorted(lengths)} rows where others have {expected}"
                )

    def _cut(self, rows: slice, sequences: slice) -> Self:
        return self._like(
            {
                name: pick(column, sequences if self._is_per_sequence(name) else rows)
                for name, column in self._columns.items()
            }
        )


Batch = TypeVar("Batch", bound=ColumnBatch)


def append(batches: Sequence[Batch]) -> Batch:
    """A batch with the rows of several batches, none of them empty, of the class of the first.

    Shared columns stay shared. Columns that `reads` leaves out of one batch are left out.
    `max_seq_len` is the largest, `num_grad_updates` the mean weighted by steps. Raises ValueError
    if the batches differ in `zero_padded`, `time_major`, padded length, columns or row shapes.
    """
    _check_alike(batches)
    joined = type(batches[0]).from_columns(_joined_columns(batches), **_joined_flags(batches))
    joined.reads = batches[0].reads
    return joined


def _check_alike(batches: Sequence[ColumnBatch]) -> None:
    first = batches[0]
    for batch in batches[1:]:
        for flag in ("zero_padded", "time_major"):
            if getattr(batch, flag) != getattr(first, flag):
                raise ValueError(f"batches differ in {flag}")
        if first.zero_padded and batch.max_seq_len != first.max_seq_len:
            raise ValueError(
                f"padded batches differ in max_seq_len: {first.max_seq_len}, {batch.max_seq_len}"
            )
        if (col.SEQ_LENS in batch) != (col.SEQ_LENS in first):
            raise ValueError("some batches have seq_lens and some do not")
        left_out = frozenset() if batch.reads is None else batch.reads.left_out
        missing = first._columns.keys() - batch._columns.keys() - left_out
        if missing:
            raise ValueError(f"a batch lacks columns that the first one has: {sorted(missing)}")


def _joined_columns(batches: Sequence[ColumnBatch]) -> dict[str, Any]:
    parts = {
        name: [batch._columns[name] for batch in batches]
        for name in batches[0]._columns
        if all(name in batch._columns for batch in batches)
    }
    joined: dict[str, Any] = concat_shared(
        {
            name: columns
            for name, columns in parts.items()
            if all(type(column) is SharedColumn for column in columns)
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


def _joined_flags(batches: Sequence[ColumnBatch]) -> dict[str, Any]:
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
    successor = col.RETIRED_COLUMNS.get(name)
    return successor and f"{name!r} is retired: use {successor}"


def _restored(
    kind: type[ColumnBatch], columns: dict[str, Any], flags: dict[str, Any]
) -> ColumnBatch:
    return kind.from_columns(columns, **flags)


def _contiguous(leaf: Any) -> Any:
    return np.ascontiguousarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _described(column: Any) -> str:
    if isinstance(column, dict):
        inner = (f"{key!r}: {_described(child)}" for key, child in column.items())
        return "{" + ", ".join(inner) + "}"
    if isinstance(column, tuple):
        return "(" + ", ".join(_described(child) for child in column) + ")"
    if is_tensor(column):
        return f"torch.Tensor({tuple(column.shape)}, dtype={column.dtype}, device={column.device})"
    return f"np.ndarray({column.shape}, dtype={column.dtype}{_values(column)})"


def _values(array: Any) -> str:
    if not array.size:
        return ""
    if array.dtype.kind not in "biuf":
        return f", head={array[0]}"
    numbers = {"min": array.min(), "max": array.max(), "mean": np.mean(array, dtype=np.float64)}
    return "".join(f", {name}={round(float(value), 3)}" for name, value in numbers.items())
