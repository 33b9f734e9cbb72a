"""FragmentViews: what a columnar collector keeps because its policy sees more than an observation.

Owns which columns are viewed, and the rows of earlier fragments that views reach back to. Must not
know steps or lanes' episodes; a policy that sees the present observation alone needs none of this.

    P  rows of earlier fragments that views reach back to      B  lanes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sample_collector import STEP_COLUMNS
from rlrun.data.trajectory_views import TrainingRows, TrajectoryViews, add_views
from rlrun.sampling.carried import from_storable, storable

if TYPE_CHECKING:
    from rlrun.sampling.columnar_collector import FragmentBuffer


class FragmentViews:
    """The views of a policy, over fragments.

    Attributes:
        views: None while the policy sees the present observation alone.
        further: viewed columns that a collector has of its own, besides rewards.
        lookback: P.
    """

    def __init__(self) -> None:
        self.views: TrajectoryViews | None = None
        self.further: list[str] = []
        self.lookback = 0
        self._rows: dict[str, Array] = {}
        self._past: dict[str, Array] = {}

    def resolve(self, views: TrajectoryViews | None, rows: Mapping[str, Array]) -> None:
        """See `SampleCollector.set_views`."""
        self.views, self._rows = views, dict(rows)
        self.lookback = 0 if views is None else views.lookback
        self.further = [name for name in rows if name in STEP_COLUMNS and name != col.REWARDS]
        seen = {col.OBS, *rows}
        # Columns that nobody has kept so far begin now: the past of a fragment is all or nothing.
        if self.lookback and self._past.keys() >= seen:
            self._past = {name: self._past[name][-self.lookback :] for name in seen}
        else:
            self._past = {}

    def begin(self, buffer: FragmentBuffer) -> None:
        """Make the viewed columns of a fragment, with the past in front of them."""
        for name, row in self._rows.items():
            buffer.add_column(name, row)
        for name, rows in self._past.items():
            buffer.num_past = len(rows)
            buffer.history[name][buffer.past - len(rows) : buffer.past] = rows

    def end(self, buffer: FragmentBuffer, end: int) -> None:
        """Keep the last P rows before row ``end`` of a fragment, as many as there are."""
        stop = buffer.past + end
        start = stop - min(buffer.past, buffer.num_past + end)
        viewed = (col.OBS, *self._rows) if buffer.past else ()
        self._past = {name: buffer.history[name][start:stop].copy() for name in viewed}

    def add_to(
        self,
        batch: SampleBatch,
        buffer: FragmentBuffer,
        keep: Callable[[Array], Array],
        storage: Array,
        next_index: Array,
        leave_out: frozenset[str],
    ) -> None:
        """Add the views to the batch of a fragment of t steps.

        Args:
            keep: from ``[t, B, ...]`` to the batch's rows ``[N, ...]``.
            storage, next_index: of the observations; see `add_views`.
            leave_out: views that nobody wants.
        """
        assert self.views is not None
        num_steps = len(next_index)
        ids = buffer.episode_id[:num_steps]
        # Rows after which the lane's episode does not go on in this fragment.
        ends = np.ones(ids.shape, np.bool_)
        ends[:-1] = ids[1:] != ids[:-1]
        if buffer.valid is not None:
            ends[:-1] |= ~buffer.valid[1:num_steps]
        seen = TrainingRows(buffer.episode_step[:num_steps], ends, -buffer.num_past, keep)
        add_views(batch, self.views, seen, buffer.history, storage, next_index, leave_out)

    def get_state(self) -> dict[str, Any]:
        """The past."""
        return storable(self._past)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self._past = from_storable(state)
