"""Batches and columns as plain values, for checkpoints, and back.

Rows of a SampleBatch that come out of one storage do so again: which rows a learner computes
together decides the last digits of what it computes. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlrun.data.column_data import Array, leaves
from rlrun.data.sample_batch import SampleBatch

_FLAGS = ("zero_padded", "max_seq_len", "time_major", "num_grad_updates", "is_training")


def batch_state(batch: SampleBatch) -> dict[str, Any]:
    """The columns of numbers as arrays; columns of objects, such as infos, are left out."""
    batch = batch.copy(shallow=True)
    batch.reads = None  # to be saved is not to be read
    storages: list[Any] = []
    plain: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for name in batch:
        of_storage = batch.shared(name)
        if of_storage is None:
            column = batch.column(name)
            if not any(leaf.dtype.hasobject for leaf in leaves(column)):
                plain[name] = column
            continue
        storage, index = of_storage
        number = next((i for i, known in enumerate(storages) if known is storage), len(storages))
        if number == len(storages):
            storages.append(storage)
        shared[name] = [number, index]
    return {
        "order": list(batch),
        "plain": plain,
        "storages": storages,
        "shared": shared,
        "flags": {name: getattr(batch, name) for name in _FLAGS},
    }


def batch_from_state(state: Mapping[str, Any]) -> SampleBatch:
    """What `batch_state` was given, less its columns of objects."""
    batch = SampleBatch.from_columns({}, **state["flags"])
    for name in state["order"]:
        if name in state["plain"]:
            batch[name] = state["plain"][name]
        elif name in state["shared"]:
            number, index = state["shared"][name]
            batch.set_shared(name, state["storages"][number], index)
    return batch


def columns_state(columns: Mapping[str, Array]) -> dict[str, Any]:
    """Columns as a checkpoint takes them: objects as shape and list, others as they are."""
    return {
        name: {"shape": list(rows.shape), "objects": rows.ravel().tolist()}
        if rows.dtype == np.object_
        else rows
        for name, rows in columns.items()
    }


def columns_from_state(state: Mapping[str, Any]) -> dict[str, Array]:
    """The columns of such a state."""
    return {
        name: _objects(rows["objects"], rows["shape"])
        if isinstance(rows, dict)
        else np.asarray(rows)
        for name, rows in state.items()
    }


def _objects(objects: list[Any], shape: list[int]) -> Array:
    column = np.empty(len(objects), np.object_)
    for i, value in enumerate(objects):  # one by one: numpy would look into lists
        column[i] = value
    return column.reshape(shape)
