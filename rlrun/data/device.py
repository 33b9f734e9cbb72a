"""Arrays of a batch as torch tensors on a device.

Owns the one place of this room where torch appears, imported when it is used. A storage that
several columns share is transferred once and gathered on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlrun.data.column_data import is_tensor, map_leaves, read
from rlrun.data.shared_column import SharedColumn


class DeviceTransfer:
    """Turns the columns of one batch into tensors on `device`.

    On the CPU tensors use the arrays' memory, except where it is read-only (a batch out of Ray's
    object store): torch would write through to it, so those are copied. Object and string arrays
    stay numpy.
    """

    def __init__(self, device: Any):
        import torch

        self._torch = torch
        self._device = torch.device(device)
        # id of a storage -> (the storage, kept alive so that its id stays its own; its tensor)
        self._storages: dict[int, tuple[Any, Any]] = {}

    def column(self, column: Any) -> Any:
        """The column on the device, shared columns still shared."""
        if isinstance(column, SharedColumn):
            storage = column.storage
            if id(storage) not in self._storages:
                self._storages[id(storage)] = (storage, self._tensor(read(storage)))
            index = column.index  # torch gathers by int64 only, and takes uint8 for a mask
            if not is_tensor(index):
                index = index.astype(np.int64, copy=False)
            return SharedColumn(self._storages[id(storage)][1], self._tensor(index))
        return map_leaves(self._tensor, read(column))

    def _tensor(self, leaf: Any) -> Any:
        if is_tensor(leaf):
            return leaf.to(self._device)
        if leaf.dtype.kind not in "biufc":
            return leaf
        array = np.ascontiguousarray(leaf) if leaf.flags.writeable else leaf.copy()
        return self._torch.from_numpy(array).to(self._device)
