"""SimpleListCollector: steps in Python lists, episode by episode. The readable twin.

What the columnar collector does with whole arrays is spelled out here row by row, so either can be
held against the other. Slow, and indifferent to how ragged the lanes are. Numpy alone.

A *piece* is what has been seen of one episode and not been delivered yet:

    step in the episode      first_step - p .. first_step - 1     first_step .. first_step + n - 1
    lists                    past (delivered, views need it)      columns; obs has one more

    B  lanes      n  steps of a piece      N  rows of the finished batch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlrun.data import columns as names
from rlrun.data.column_data import Array
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sample_collector import (
    FurtherColumns,
    SampleCollector,
    step_columns,
)
from rlrun.data.sequences import sequence_lengths, sequence_offsets
from rlrun.data.trajectory_views import TrajectoryViews, View


@dataclass
class _Piece:
    """See the module; `obs` and each of `columns` are lists of rows."""

    episode_id: int
    first_step: int
    obs: list[Any]
    columns: dict[str, list[Any]] = field(default_factory=dict)
    past: dict[str, list[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.obs) - 1

    def split(self, num_steps: int, lookback: int) -> tuple[_Piece, _Piece]:
        """The first steps, to be delivered, and the rest with the past that views need."""
        rows = {names.OBS: self.obs, **self.columns}
        whole = {name: [*self.past.get(name, []), *kept] for name, kept in rows.items()}
        end = len(self.past.get(names.OBS, [])) + num_steps
        done = _Piece(
            self.episode_id,
            self.first_step,
            self.obs[: num_steps + 1],
            {name: kept[:num_steps] for name, kept in self.columns.items()},
            self.past,
        )
        rest = _Piece(
            self.episode_id,
            self.first_step + num_steps,
            self.obs[num_steps:],
            {name: kept[num_steps:] for name, kept in self.columns.items()},
            {name: kept[max(end - lookback, 0) : end] for name, kept in whole.items()},
        )
        return done, rest

    def row(self, view: View, step: int, like: Array) -> Array:
        """The view at step `step` of the piece, of which n is the one after the last.

        Args:
            like: a row of the viewed column, for shape and dtype.
        """
        is_obs = view.source == names.OBS
        past = self.past.get(view.source, [])
        known = [*past, *(self.obs if is_obs else self.columns.get(view.source, []))]
        seen = np.empty((len(view.steps), *like.shape), like.dtype)
        for k, relative in enumerate(view.steps.tolist()):
            at = len(past) + step + relative
            if at < 0:
                seen[k] = known[0] if view.fill is None else view.fill
            elif at >= len(known):
                seen[k] = view.nothing
            else:
                seen[k] = known[at]
        return seen if view.time_axis else seen[0]


class SimpleListCollector(SampleCollector):
    """See the module, and `SampleCollector` for what each method is asked for."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._views: TrajectoryViews | None = None
        self._like: dict[str, Array] = {}  # a row of each viewed column
        self._ended: list[list[_Piece]] = [[] for _ in range(self.num_lanes)]
        self._running = [_Piece(0, 0, [row]) for row in self.obs]
        self._stepped = np.zeros(0, np.int64)  # lanes of the last step that count

    def set_views(self, views: TrajectoryViews | None, rows: Mapping[str, Array]) -> None:
        like = {name: row[0:1].reshape(row.shape[1:]) for name, row in rows.items()}
        if not self._like.keys() >= like.keys():  # the past of what nobody kept is not known
            for piece in self._running:
                piece.past = {}
        self._views, self._like = views, {names.OBS: self.obs[0], **like}

    def begin_fragment(self, length: int | None, unroll_ids: Array) -> None:
        self._unroll_ids = unroll_ids
        self._wanted = None if length is None else length * self.num_lanes
        self._rewards: list[Array] = []
        self._actions: list[Array] = []
        waiting = [piece for pieces in self._ended for piece in pieces] + self._running
        self.num_collected = 0 if self.whole_episodes else sum(map(len, waiting))

    def add_init_obs(self, lanes: Array, episode_ids: Array, obs: Array) -> None:
        for lane, episode_id, row in zip(lanes.tolist(), episode_ids.tolist(), obs, strict=True):
            self.obs[lane] = row
            self._running[lane] = _Piece(episode_id, 0, [np.array(self.obs[lane])])

    def get_inference_input_dict(self) -> dict[str, Array]:
        assert self._views is not None
        return {
            view.name: np.stack(
                [piece.row(view, len(piece), self._like[view.source]) for piece in self._running]
            )
            for view in self._views.acting_views
        }

    def add_step(  # noqa: PLR0913 - one parameter for each thing a step brings
        self,
        actions: Array,
        extras: Mapping[str, Array],
        rewards: Array,
        terminateds: Array,
        truncateds: Array,
        obs: Array,
        *,
        learned_rewards: Array | None = None,
        valid: Array | None = None,
        infos: Mapping[int, dict[str, Any]] | None = None,
    ) -> None:
        self._rewards.append(np.array(rewards))
        self._actions.append(np.array(actions))
        learned = rewards if learned_rewards is None else learned_rewards
        ids = np.array([piece.episode_id for piece in self._running])
        steps = np.array([piece.first_step + len(piece) for piece in self._running])
        flags = np.array(terminateds), np.array(truncateds)
        rows = step_columns(learned, *flags, ids, steps, self._unroll_ids, infos)
        if names.INFOS not in self._like:  # nobody asked
            del rows[names.INFOS]
        kept = {name: values for name, values in extras.items() if name not in self.ignored}
        policy = {names.ACTIONS: actions, **kept}
        rows |= {name: np.array(values) for name, values in policy.items()}
        self.obs = np.array(obs, self.obs_dtype)
        self._stepped = np.arange(self.num_lanes) if valid is None else np.flatnonzero(valid)
        for lane in self._stepped.tolist():
            piece = self._running[lane]
            piece.obs.append(self.obs[lane].copy())
            for name, values in rows.items():
                piece.columns.setdefault(name, []).append(values[lane])
        if self.whole_episodes:
            self.warn_if_large(max(map(len, self._running)))
        else:
            self.num_collected += len(self._stepped)

    def end_episodes(self, lanes: Array) -> None:
        for lane in lanes.tolist():
            piece = self._running[lane]
            self._ended[lane].append(piece)
            if self.whole_episodes:
                self.num_collected += len(piece)
            self._running[lane] = _Piece(piece.episode_id, 0, [self.obs[lane].copy()])

    def drop_episode(self, lane: int) -> None:
        piece = self._running[lane]
        if not self.whole_episodes:
            self.num_collected -= len(piece)
        self._stepped = self._stepped[self._stepped != lane]
        self._running[lane] = _Piece(piece.episode_id, 0, [self.obs[lane].copy()])

    @property
    def rewards(self) -> Array:
        return np.stack(self._rewards)

    @property
    def actions(self) -> Array:
        return np.stack(self._actions)

    def build(
        self,
        leave_out: frozenset[str] = frozenset(),
        further_columns: FurtherColumns | None = None,
    ) -> SampleBatch:
        surplus = 0
        if not self.whole_episodes and self._wanted is not None:
            surplus = self.num_collected - self._wanted
        held = set(self._stepped[len(self._stepped) - surplus :].tolist())
        delivered: list[tuple[int, _Piece]] = []
        for lane in range(self.num_lanes):
            ended, self._ended[lane] = self._ended[lane], []
            running = self._running[lane]
            # Of the last step, what is too much comes in the next fragment.
            last_ended = lane in held and not len(running)
            if last_ended:
                done, rest = ended[-1].split(len(ended[-1]) - 1, self._lookback)
                ended[-1] = done
                self._ended[lane] = [rest]
            if not self.whole_episodes:
                end = len(running) - (lane in held and not last_ended)
                done, self._running[lane] = running.split(end, self._lookback)
                ended = [*ended, done]
            delivered += [(lane, piece) for piece in ended if len(piece)]
        batch = self._batch(delivered, further_columns)
        for name in [name for name in batch if name in leave_out]:
            del batch[name]
        return batch

    @property
    def _lookback(self) -> int:
        return 0 if self._views is None else self._views.lookback

    def _batch(
        self, delivered: Sequence[tuple[int, _Piece]], further_columns: FurtherColumns | None
    ) -> SampleBatch:
        pieces = [piece for _, piece in delivered]
        if not pieces:
            return SampleBatch()
        columns = {
            name: _stacked([row for piece in pieces for row in piece.columns[name]])
            for name in pieces[0].columns
        }
        lengths = [len(piece) for piece in pieces]
        unroll_ids = self._unroll_ids[[lane for lane, _ in delivered]]
        columns[names.UNROLL_ID] = np.repeat(unroll_ids, lengths)
        if further_columns is not None:
            columns |= further_columns(columns)
        batch = SampleBatch(columns)
        storage = np.stack([row for piece in pieces for row in piece.obs])
        # Every piece has one observation more than it has steps.
        index = np.arange(len(batch)) + np.repeat(np.arange(len(pieces)), lengths)
        batch.set_shared(names.OBS, storage, index)
        batch.set_shared(names.NEXT_OBS, storage, index + 1)
        if self._views is not None:
            self._add_views(batch, self._views, pieces)
        return batch

    def _add_views(
        self, batch: SampleBatch, views: TrajectoryViews, pieces: Sequence[_Piece]
    ) -> None:
        rows = [(piece, step) for piece in pieces for step in range(len(piece))]
        seq_lens = np.zeros(0, np.int64)
        if views.max_seq_len is not None:
            seq_lens = sequence_lengths(batch, views.max_seq_len)
        for view in views.views:
            like = self._like[view.source]
            if view.per_sequence:
                starts = [rows[i] for i in sequence_offsets(seq_lens)[:-1].tolist()]
                batch[view.name] = _stacked([p.row(view, step, like) for p, step in starts])
            elif not view.is_plain:
                batch[view.name] = _stacked([p.row(view, step, like) for p, step in rows])
                if view.acting:
                    after = [p.row(view, step + 1, like) for p, step in rows]
                    batch[f"{names.NEXT_PREFIX}{view.name}"] = _stacked(after)
        if views.max_seq_len is not None:
            for name in [name for name in batch if name.startswith(names.STATE_OUT_PREFIX)]:
                del batch[name]
            batch[names.SEQ_LENS] = seq_lens
            batch.max_seq_len = views.max_seq_len

    def get_state(self) -> dict[str, Any]:
        return {
            "obs": self.obs.copy(),
            "running": [_piece_state(piece) for piece in self._running],
            "ended": [[_piece_state(piece) for piece in pieces] for pieces in self._ended],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.obs = np.array(state["obs"])
        self._running = [_restored(piece) for piece in state["running"]]
        self._ended = [[_restored(piece) for piece in pieces] for pieces in state["ended"]]


def _stacked(rows: Sequence[Any]) -> Array:
    """One column of these rows; info dicts stay objects."""
    if not isinstance(rows[0], dict):
        return np.array(rows)
    column = np.empty(len(rows), np.object_)
    column[:] = rows
    return column


def _piece_state(piece: _Piece) -> dict[str, Any]:
    return {
        "episode_id": piece.episode_id,
        "first_step": piece.first_step,
        "obs": np.stack(piece.obs),
        "columns": {name: _storable(rows) for name, rows in piece.columns.items()},
        "past": {name: _storable(rows) for name, rows in piece.past.items()},
    }


def _storable(rows: list[Any]) -> Any:
    return list(rows) if not rows or isinstance(rows[0], dict) else np.stack(rows)


def _restored(state: Mapping[str, Any]) -> _Piece:
    columns, past = (
        {name: list(rows) for name, rows in state[key].items()} for key in ("columns", "past")
    )
    return _Piece(
        int(state["episode_id"]), int(state["first_step"]), list(state["obs"]), columns, past
    )
