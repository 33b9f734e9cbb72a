"""MeanStdFilter: normalises rows by their running mean and standard deviation.

The statistics are updated batch by batch and merged exactly between processes (Chan, Golub and
LeVeque 1979), in float64. Must not know of spaces or environments.

    n  rows
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.connectors.connector import Connector, State

Array = NDArray[np.floating]

# Added to the standard deviation, as in RLlib's MeanStdFilter.
STD_OFFSET = 1e-6


class RunningStat:
    """Count, mean and sum of squared deviations (M2) of all rows seen, each row once.

    Args:
        shape: of one row.
    """

    __slots__ = ("count", "m2", "mean")

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.count = 0
        self.mean = np.zeros(shape)
        self.m2 = np.zeros(shape)

    def update(self, rows: Array) -> None:
        """Add rows [n, ...]."""
        self.merge(self.batch(rows))

    def batch(self, rows: Array) -> "RunningStat":
        """The statistics of rows [n, ...] alone, to be merged into this object."""
        stat = RunningStat(rows.shape[1:])
        count = len(rows)
        if count:
            # Shifted by the mean so far, or by a row: the mean of a feature that never changes is
            # then exactly its value, and M2 exactly zero.
            shift = self.mean if self.count else rows[0].astype(np.float64)
            deviations = rows - shift
            offset = np.add.reduce(deviations) / count
            deviations -= offset
            stat.count = count
            stat.mean = shift + offset
            stat.m2 = np.add.reduce(np.square(deviations))
        return stat

    def merge(self, other: "RunningStat") -> None:
        """Add all rows that ``other`` has seen."""
        if other.count == 0:
            return
        if self.count == 0:
            self.count, self.mean, self.m2 = other.count, other.mean.copy(), other.m2.copy()
            return
        total = self.count + other.count
        weight = other.count / total
        delta = other.mean - self.mean
        self.mean += delta * weight
        delta *= delta
        delta *= self.count * weight
        delta += other.m2
        self.m2 += delta
        self.count = total

    def variance(self) -> Array:
        """Sample variance M2 / (n - 1); the squared mean after one row, 1 before the first."""
        if self.count > 1:
            return self.m2 / (self.count - 1)
        return np.square(self.mean) if self.count else np.ones_like(self.mean)

    def get_state(self) -> State:
        """Copies of count, mean and M2."""
        return {"count": self.count, "mean": self.mean.copy(), "m2": self.m2.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`.

        Raises:
            ValueError: the shapes differ.
        """
        other = RunningStat.from_state(state)
        if other.mean.shape != self.mean.shape:
            raise ValueError(
                f"these statistics are of rows {other.mean.shape}, not {self.mean.shape}"
            )
        self.count, self.mean, self.m2 = other.count, other.mean, other.m2

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "RunningStat":
        """An object with the state that `get_state` returned."""
        stat = cls()
        stat.count = int(state["count"])
        stat.mean = np.array(state["mean"], dtype=np.float64)
        stat.m2 = np.array(state["m2"], dtype=np.float64)
        return stat


class MeanStdFilter(Connector):
    """Normalises rows to mean 0 and standard deviation 1 over all rows seen so far.

    ``y = clip((x - mean) / (std + 1e-6), -clip, clip)``. A batch is added to the statistics before
    it is normalised. RLlib's observation filter does not clip; without clipping, the first rows of
    a feature that hardly varies reach the network as thousands.

    Args:
        shape: of one row.
        normalized: bool array of that shape: which features to normalise; others pass unchanged.
            None normalises all.
        clip: bound on the absolute value of the result.

    Attributes:
        columns: index of the normalised features in rows ``[n, ...]``; None if all are.
        scale: 1 / (std + 1e-6) of those features, float64.
        clip: see above.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        normalized: NDArray[np.bool_] | None = None,
        clip: float = 10.0,
    ) -> None:
        self.columns: tuple[Any, ...] | None = None
        learned = shape
        if normalized is not None and not normalized.all():
            indices = np.nonzero(normalized)
            self.columns = (slice(None), *indices)
            learned = (len(indices[0]),)
        self._stat = RunningStat(learned)
        self._deltas = RunningStat(learned)
        self.clip = clip
        self._refresh()

    def __call__(self, rows: Array, *, update: bool | Array = True) -> Array:
        """Rows [n, ...] -> normalised rows of the same floating-point type.

        Args:
            rows: float32 or float64.
            update: whether to add the rows to the statistics first, for all or for each, bool [n];
                False in evaluation.
        """
        if self.columns is None:
            return self._normalize(rows, update)
        result = rows.copy()
        result[self.columns] = self._normalize(rows[self.columns], update)
        return result

    def _normalize(self, rows: Array, update: bool | Array) -> Array:
        values = rows.astype(np.float64)  # once: arithmetic of mixed types takes numpy far longer
        if update is not False:
            batch = self._stat.batch(values if update is True else values[update])
            self._stat.merge(batch)
            self._deltas.merge(batch)
            self._refresh()
        values -= self._stat.mean
        values *= self.scale
        np.maximum(values, -self.clip, out=values)
        np.minimum(values, self.clip, out=values)
        return values.astype(rows.dtype, copy=False)

    @property
    def mean(self) -> Array:
        """The mean of the normalised features, float64."""
        return self._stat.mean

    def _refresh(self) -> None:
        self.scale = 1.0 / (np.sqrt(self._stat.variance()) + STD_OFFSET)

    def get_state(self) -> State:
        """The statistics, and those since the last flush."""
        return {"stat": self._stat.get_state(), "deltas": self._deltas.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._stat.set_state(state["stat"])
        self._deltas.set_state(state["deltas"])
        self._refresh()

    def flush_deltas(self) -> State:
        deltas = self._deltas.get_state()
        self._deltas = RunningStat(self._deltas.mean.shape)
        return deltas

    def apply_deltas(self, deltas: Iterable[Mapping[str, Any]]) -> None:
        for delta in deltas:
            self._stat.merge(RunningStat.from_state(delta))
        self._refresh()
