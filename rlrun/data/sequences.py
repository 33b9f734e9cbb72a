"""Where sequences, episodes and fragments begin and end in the rows of a batch.

Pure functions over arrays. Glossary: a *sequence* is a run of rows that a recurrent model is
unrolled over (`seq_lens` holds their lengths); an *episode* is what the env calls one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_data import Array, map_leaves


def change_points(values: Array) -> list[int]:
    """Rows at which a value differs from the row before; [] for fewer than two rows."""
    return (np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()


def sequence_lengths(batch: Mapping[str, Any] | Any, max_seq_len: int | None = None) -> Array:
    """Lengths [S] of the sequences that a recurrent model is unrolled over, in the rows' order.

    A sequence ends where its fragment, episode or agent does, and after `max_seq_len` steps if
    that is given.
    """
    unroll_ids = batch[col.UNROLL_ID]
    cuts: set[int] = set()
    for name in (col.UNROLL_ID, col.EPS_ID, col.AGENT_INDEX):
        cuts.update(change_points(batch[name]) if name in batch else [])
    bounds = [0, *sorted(cuts), len(unroll_ids)]
    lengths: list[int] = []
    for start, end in pairwise(bounds):
        whole, rest = divmod(end - start, max_seq_len or len(unroll_ids))
        lengths += [max_seq_len or end - start] * whole + [rest] * (rest > 0)
    return np.array(lengths, dtype=np.int64)


def sequence_offsets(seq_lens: Array) -> Array:
    """First real step of every sequence, and the number of steps at the end [num_sequences + 1]."""
    return np.concatenate([[0], np.cumsum(seq_lens, dtype=np.int64)])


def sequence_of(seq_lens: Array, step: int) -> int:
    """Index of the sequence that holds the real step; num_sequences for the end of the batch."""
    return int(np.searchsorted(sequence_offsets(seq_lens), step, side="right")) - 1


def real_rows(seq_lens: Array, max_seq_len: int) -> Array:
    """Rows [num_steps] of a zero-padded batch that hold real steps, in order."""
    return np.flatnonzero((np.arange(max_seq_len) < np.asarray(seq_lens)[:, None]).ravel())


def padded_column(column: Any, source_rows: Array | None, target_rows: Array, total: int) -> Any:
    """The column's real rows spread over `total` rows, zeros (objects and strings: None) between.

    `source_rows` None: all rows of the column are real.
    """

    def pad(leaf: Array) -> Array:
        fill_with_none = leaf.dtype.kind in "OUS"
        dtype = object if fill_with_none else leaf.dtype
        padded = np.full((total, *leaf.shape[1:]), None if fill_with_none else 0, dtype=dtype)
        padded[target_rows] = leaf if source_rows is None else leaf[source_rows]
        return padded

    return map_leaves(pad, column)


def trimmed_seq_lens(
    seq_lens: Array, sequences: slice, begin: int, end: int, padding: int
) -> Array:
    """Lengths of the `sequences` after a cut to the steps [begin, end), `padding` rows in front.

    Steps after `end` are removed from the last sequence, steps before `begin` from the first, which
    the padding lengthens. Raises ValueError if the sequences do not hold the steps.
    """
    trimmed = np.array(seq_lens[sequences])
    offsets = sequence_offsets(seq_lens)
    if len(trimmed):
        trimmed[-1] -= max(int(offsets[sequences.indices(len(seq_lens))[1]]) - end, 0)
    surplus = trimmed.sum() - (end - begin)
    if not len(trimmed) or surplus < 0 or trimmed[-1] < 0 or surplus > trimmed[0]:
        raise ValueError(f"sequences {sequences.start}:{sequences.stop} do not hold these rows")
    trimmed[0] += padding - surplus
    return trimmed


def slice_bounds(count: int, size: int | None, num_slices: int | None) -> list[int]:
    """Bounds of time slices: of `size` rows (the last may be shorter), or `num_slices` of them.

    With `num_slices` each takes (rows left) // (slices left): 7 rows in 3 slices are 2, 2, 3.
    Raises ValueError unless exactly one is given and positive.
    """
    if (size is None) == (num_slices is None):
        raise ValueError("give either size or num_slices")
    if size is not None:
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size}")
        return [*range(0, count, size), count]
    if num_slices is None or num_slices < 1:
        raise ValueError(f"num_slices must be at least 1, not {num_slices}")
    bounds = [0]
    for remaining in range(num_slices, 0, -1):
        bounds.append(bounds[-1] + (count - bounds[-1]) // remaining)
    return bounds
