"""Batches and columns as plain values, for checkpoints, and back.

Columns of a SampleBatch that share a storage share one again: which rows a learner computes
together determines the last digits of the result. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlrun.data.column_data import Array, leaves, object_array
from rlrun.data.sample_batch import SampleBatch


def batch_state(batch: SampleBatch) -> dict[str, Any]:
    """The columns of numbers as arrays; columns of objects, such as infos, are left out."""
    batch = batch.copy(shallow=True)
    batch.reads = None  # to be saved is not to be read
    shared = {name: found for name in batch if (found := batch.shared(name)) is not None}
    storages = {id(storage): storage for storage, _ in shared.values()}
    numbers = {key: number for number, key in enumerate(storages)}
    plain = {name: batch.column(name) for name in batch if name not in shared}
    return {
        "order": list(batch),
        "plain": {
            name: column
            for name, column in plain.items()
            if not any(leaf.dtype.hasobject for leaf in leaves(column))
        },
        "storages": list(storages.values()),
        "shared": {
            name: [numbers[id(storage)], index] for name, (storage, index) in shared.items()
        },
        "flags": batch.flags(),
    }


def batch_from_state(state: Mapping[str, Any]) -> SampleBatch:
    """The batch of `batch_state`, without its columns of objects."""
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
        name: object_array(rows["objects"]).reshape(rows["shape"])
        if isinstance(rows, dict)
        else np.asarray(rows)
        for name, rows in state.items()
    }
