"""Batches, and rows of batches, that remember what of them somebody read, wrote or deleted.

Dummies of these kinds go through acting, postprocessing and learning before a run starts, and tell
which columns nobody needs. Reading is asking for a column, and asking whether there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlrun.data.column_data import Array
from rlrun.data.sample_batch import SampleBatch


@dataclass
class Touched:
    """Names of columns, by what was done to them; all batches made of a tracked one share it."""

    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    """Added or overwritten."""
    deleted: set[str] = field(default_factory=set)


class _TrackedBatch(SampleBatch):
    """Base of the classes that `tracked` makes, one for each record."""

    __slots__ = ()

    touched: Touched

    def column(self, name: str) -> Any:
        self.touched.read.add(name)
        return super().column(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.touched.read.add(name)
        return super().get(name, default)

    def shared(self, name: str) -> tuple[Any, Any] | None:
        self.touched.read.add(name)
        return super().shared(name)

    def __contains__(self, name: object) -> bool:
        self.touched.read.add(str(name))
        return super().__contains__(name)

    def values(self) -> Iterator[Any]:
        self.touched.read.update(self._columns)
        return super().values()

    def items(self) -> Iterator[tuple[str, Any]]:
        self.touched.read.update(self._columns)
        return super().items()

    def pop(self, name: str) -> Any:
        self.touched.read.add(name)
        self.touched.deleted.add(name)
        return super().pop(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.touched.written.add(name)
        super().__setitem__(name, value)

    def set_shared(self, name: str, storage: Any, index: Array) -> None:
        self.touched.written.add(name)
        super().set_shared(name, storage, index)

    def __delitem__(self, name: str) -> None:
        self.touched.deleted.add(name)
        super().__delitem__(name)


class TrackedRows(dict[str, Any]):
    """What a module or a loss is given, by name; remembers which of it was read.

    Whoever goes through all of it, or makes a plain dict of it, has read everything. What `|` and
    `copy` make of it goes on remembering in the same place.

    Args:
        rows: as they are given to whom nobody watches.
        read: where names are added when they are read.
    """

    def __init__(self, rows: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(rows)
        self.read = read

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """One column, or the default."""
        self.read.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """Take a column out."""
        self.read.add(name)
        return super().pop(name, *default)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    # Without an `__iter__` of its own, dict(rows) and {**rows} would pass by all of this.
    def __iter__(self) -> Iterator[str]:
        self.read.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        """All names, as read."""
        self.read.update(super().keys())
        return super().keys()

    def values(self) -> Any:
        """All columns, as read."""
        self.read.update(super().keys())
        return super().values()

    def items(self) -> Any:
        """All names and columns, as read."""
        self.read.update(super().keys())
        return super().items()

    def copy(self) -> TrackedRows:
        """The same, remembering in the same place."""
        return TrackedRows(dict(super().items()), self.read)

    def __or__(self, more: Any) -> Any:
        return TrackedRows(dict(super().items()) | more, self.read)


def tracked(batch: SampleBatch) -> tuple[SampleBatch, Touched]:
    """The same columns as a batch that remembers, and what it remembers.

    What is made of it (slices, copies, several of them appended) goes on remembering there.
    """
    touched = Touched()
    kind: type[SampleBatch] = type(
        "TrackedBatch", (_TrackedBatch,), {"__slots__": (), "touched": touched}
    )
    return kind.from_columns(dict(batch._columns), **batch._flags()), touched


def untracked(batch: SampleBatch) -> SampleBatch:
    """The same columns as a batch of which nobody remembers anything."""
    return SampleBatch.from_columns(dict(batch._columns), **batch._flags())
