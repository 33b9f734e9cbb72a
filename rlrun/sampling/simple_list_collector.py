"""SimpleListCollector: steps in Python lists, trajectory by trajectory. The readable collector.

It does row by row what the fast collectors do with whole arrays, so that tests can compare them. It
is slow, and takes slots that act together as well as slots that come and go.

A trajectory holds the steps of one agent's episode that are not delivered yet, after past ones:

    step in the episode    first_step - p .. first_step - 1      first_step .. first_step + n - 1
    stored in              past (delivered, kept for views)      columns; obs has one more

    B  slots that act together    n  steps of a trajectory    N  rows of the batch
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_data import Array, object_array
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sequences import sequence_lengths, sequence_offsets
from rlrun.data.trajectory_views import TrajectoryViews, View
from rlrun.envs.agent_slots import SlotStep
from rlrun.sampling.sample_collector import (
    NO_EXTRAS,
    FurtherColumns,
    SampleCollector,
    number_unrolls,
    step_columns,
)


@dataclass
class _Trajectory:
    """Rows of one agent in one episode; `obs` and each of `columns` and `past` are lists."""

    place: tuple[int, int, int]
    """Sub-environment, agent index, episode id."""
    first_step: int
    obs: list[Any]
    columns: dict[str, list[Any]] = field(default_factory=dict)
    past: dict[str, list[Any]] = field(default_factory=dict)
    acted: dict[str, Any] = field(default_factory=dict)
    """The action that the environment has not answered, and the policy's other outputs."""

    def __len__(self) -> int:
        return len(self.obs) - 1

    def split(self, num_steps: int, lookback: int) -> tuple[_Trajectory, _Trajectory]:
        """The first ``num_steps``, to be delivered, and the rest with the past that views need."""
        rows = {col.OBS: self.obs, **self.columns}
        whole = {name: [*self.past.get(name, []), *kept] for name, kept in rows.items()}
        end = len(self.past.get(col.OBS, [])) + num_steps
        done = _Trajectory(
            self.place,
            self.first_step,
            self.obs[: num_steps + 1],
            {name: kept[:num_steps] for name, kept in self.columns.items()},
            self.past,
        )
        rest = _Trajectory(
            self.place,
            self.first_step + num_steps,
            self.obs[num_steps:],
            {name: kept[num_steps:] for name, kept in self.columns.items()},
            {name: kept[max(end - lookback, 0) : end] for name, kept in whole.items()},
            self.acted,
        )
        return done, rest

    def row(self, view: View, step: int, template: Array) -> Array:
        """The view at ``step`` of the n steps, or at n, the step after the last.

        Args:
            template: an array of the shape and dtype of a row of the viewed column.
        """
        is_obs = view.source == col.OBS
        past = self.past.get(view.source, [])
        known = [*past, *(self.obs if is_obs else self.columns.get(view.source, []))]
        seen = np.empty((len(view.steps), *template.shape), template.dtype)
        for k, relative in enumerate(view.steps.tolist()):
            at = len(past) + step + relative
            if at < 0:
                seen[k] = known[0] if view.fill is None else view.fill
            elif at >= len(known):
                seen[k] = view.nothing
            else:
                seen[k] = known[at]
        return seen if view.time_axis else seen[0]

    def get_state(self) -> dict[str, Any]:
        return {
            "place": list(self.place),
            "first_step": self.first_step,
            "obs": np.stack(self.obs),
            "columns": {name: _storable(rows) for name, rows in self.columns.items()},
            "past": {name: _storable(rows) for name, rows in self.past.items()},
            "acted": {name: np.asarray(value) for name, value in self.acted.items()},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> _Trajectory:
        env_index, agent, episode_id = map(int, state["place"])
        columns, past = (
            {name: list(rows) for name, rows in state[key].items()} for key in ("columns", "past")
        )
        place, first_step = (env_index, agent, episode_id), int(state["first_step"])
        return cls(place, first_step, list(state["obs"]), columns, past, dict(state["acted"]))


class SimpleListCollector(SampleCollector):
    """Collects steps in Python lists; see `SampleCollector` for the methods."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._views: TrajectoryViews | None = None
        self._templates: dict[str, Array] = {}  # a row of each viewed column, for shape and dtype
        self._ended: list[_Trajectory] = []
        self._running = {
            slot: _Trajectory((slot, 0, 0), 0, [row]) for slot, row in enumerate(self.obs)
        }
        self._policy_columns: list[str] = []  # names of the policy's outputs
        self._stepped = np.zeros(0, np.int64)  # slots of the last step that count

    def set_views(self, views: TrajectoryViews | None, rows: Mapping[str, Array]) -> None:
        super().set_views(views, rows)
        templates = {name: row.reshape(row.shape[1:]) for name, row in rows.items()}
        if not self._templates.keys() >= templates.keys():  # the past of new columns is not known
            for trajectory in self._running.values():
                trajectory.past = {}
        self._views = views
        self._templates = {col.OBS: np.zeros(self.obs_shape, self.obs_dtype), **templates}

    def begin_fragment(self, length: int | None, first_unroll_id: int = 0) -> None:
        self._first_unroll_id = first_unroll_id
        self._wanted = None if length is None else length * len(self.places)
        self._rewards: list[Array] = []
        self._actions: list[Array] = []
        held = [*self._ended, *self._running.values()]
        self.num_collected = 0 if self.whole_episodes else sum(map(len, held))

    def begin_episodes(
        self, slots: Array, episode_ids: Array, obs: Array, places: Array | None = None
    ) -> None:
        more = max(0, int(slots.max()) + 1 - len(self.places))
        self.places = np.append(self.places, np.zeros((more, 3), np.int64), axis=0)
        self.places[slots, 2] = episode_ids
        if places is not None:
            self.places[slots, :2] = places
        if self.num_slots is not None:
            self.obs[slots] = obs
        for slot, row in zip(slots.tolist(), np.array(obs, self.obs_dtype), strict=True):
            env_index, agent, episode_id = self.places[slot].tolist()
            self._running[slot] = _Trajectory((env_index, agent, episode_id), 0, [row])

    def inputs(self, slots: Array | None = None) -> Any:
        running = [self._running[slot] for slot in self._all(slots).tolist()]
        if self._views is None:
            return np.stack([trajectory.obs[-1] for trajectory in running])
        return {
            view.name: np.stack(
                [t.row(view, len(t), self._templates[view.source]) for t in running]
            )
            for view in self._views.acting_views
        }

    def _all(self, slots: Array | None) -> Array:
        return np.arange(len(self.places)) if slots is None else slots

    def act(self, slots: Array, actions: Array, extras: Mapping[str, Array]) -> None:
        rows = {col.ACTIONS: actions, **extras}
        self._policy_columns = list(rows)
        columns = {name: np.array(values) for name, values in rows.items()}
        for i, slot in enumerate(slots.tolist()):
            self._running[slot].acted = {name: column[i] for name, column in columns.items()}

    def add_step(
        self,
        step: SlotStep,
        obs: Array,
        learned_rewards: Array | None = None,
        actions: Array | None = None,
        extras: Mapping[str, Array] = NO_EXTRAS,
    ) -> None:
        slots, steps, observed = self._all(step.slots), step.steps, step.observed
        if actions is not None:
            self._rewards.append(np.array(step.rewards))
            self._actions.append(np.array(actions))
            self.act(slots, actions, extras)
        running = [self._running[slot] for slot in slots.tolist()]
        if steps is None:
            steps = np.array([t.first_step + len(t) + 1 for t in running])
        viewed = col.INFOS in self._templates
        rows = step_columns(
            self.places[slots],
            step.rewards if learned_rewards is None else learned_rewards,
            np.array(step.terminateds),
            np.array(step.truncateds),
            steps - 1,
            self._first_unroll_id + slots,
            step.infos if viewed else None,
        )
        if not viewed:
            del rows[col.INFOS]
        seen = iter(np.array(obs, self.obs_dtype))
        counts = np.ones(len(slots), np.bool_) if step.valid is None else step.valid
        for i, trajectory in enumerate(running):
            row = next(seen) if observed is None or observed[i] else trajectory.obs[-1]
            if self.num_slots is not None:
                self.obs[slots[i]] = row
            if counts[i]:
                trajectory.obs.append(row)
                kept = {**{name: values[i] for name, values in rows.items()}, **trajectory.acted}
                for name, value in kept.items():
                    trajectory.columns.setdefault(name, []).append(value)
            trajectory.acted = {}
        self._stepped = slots[counts]
        if self.whole_episodes:
            self.warn_if_large(max(map(len, running), default=0))
        else:
            self.num_collected += len(self._stepped)

    def end_episodes(self, slots: Array) -> None:
        for slot in slots.tolist():
            trajectory = self._running[slot]
            self._ended.append(trajectory)
            if self.whole_episodes:
                self.num_collected += len(trajectory)
            self._leave(slot)

    def _leave(self, slot: int) -> None:
        trajectory = self._running.pop(slot)
        if self.num_slots is not None:  # the next episode may begin with the environment's reset
            last = [self.obs[slot].copy()]
            self._running[slot] = _Trajectory(trajectory.place, 0, last)

    def drop(self, slots: Array, episode_id: int) -> None:
        for slot in slots.tolist():
            if not self.whole_episodes:
                self.num_collected -= len(self._running[slot])
            self._leave(slot)
        self._ended = [t for t in self._ended if t.place[2] != episode_id]
        self._stepped = np.setdiff1d(self._stepped, slots)

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
        running: Collection[int] = (),
    ) -> SampleBatch:
        ended, self._ended = self._ended, []
        if self.whole_episodes:
            self._ended = [t for t in ended if t.place[2] in running]
            delivered = [t for t in ended if t.place[2] not in running]
        else:
            delivered = self._all_steps(ended)
        # The sort is stable: trajectories of an agent stay in their order.
        delivered = sorted(filter(len, delivered), key=lambda t: t.place[:2])
        batch = self._batch(delivered, further_columns)
        for name in [name for name in batch if name in leave_out]:
            del batch[name]
        return batch

    def _all_steps(self, ended: list[_Trajectory]) -> list[_Trajectory]:
        """All steps of the fragment, but for the surplus of the last vector step."""
        surplus = 0 if self._wanted is None else max(self.num_collected - self._wanted, 0)
        held = set(self._stepped[len(self._stepped) - surplus :].tolist())
        lookback = 0 if self._views is None else self._views.lookback
        delivered = []
        last_of = {t.place[0]: i for i, t in enumerate(ended)}  # slots are sub-environments here
        for slot in [slot for slot in held if not len(self._running[slot])]:
            held.remove(slot)
            i = last_of[slot]
            ended[i], rest = ended[i].split(len(ended[i]) - 1, lookback)
            self._ended.append(rest)
        for slot, trajectory in self._running.items():
            end = len(trajectory) - (slot in held)
            done, self._running[slot] = trajectory.split(end, lookback)
            delivered.append(done)
        return [*ended, *delivered]

    def _batch(
        self, delivered: Sequence[_Trajectory], further_columns: FurtherColumns | None
    ) -> SampleBatch:
        if not delivered:
            return SampleBatch()
        columns = {
            name: _stacked([row for trajectory in delivered for row in trajectory.columns[name]])
            for name in delivered[0].columns
        }
        if self.num_slots is None:
            columns[col.UNROLL_ID] = number_unrolls(columns, self._first_unroll_id)
        else:
            columns[col.UNROLL_ID] = self._first_unroll_id + columns[col.ENV_ID]
        if further_columns is not None:
            columns |= further_columns({name: columns[name] for name in self._policy_columns})
        batch = SampleBatch(columns)
        storage = np.stack([row for trajectory in delivered for row in trajectory.obs])
        # Every trajectory has one observation more than steps.
        lengths = [len(trajectory) for trajectory in delivered]
        index = np.arange(len(batch)) + np.repeat(np.arange(len(delivered)), lengths)
        batch.set_shared(col.OBS, storage, index)
        batch.set_shared(col.NEXT_OBS, storage, index + 1)
        if self._views is not None:
            self._add_views(batch, self._views, delivered)
        return batch

    def _add_views(
        self, batch: SampleBatch, views: TrajectoryViews, delivered: Sequence[_Trajectory]
    ) -> None:
        rows = [(trajectory, step) for trajectory in delivered for step in range(len(trajectory))]
        seq_lens = np.zeros(0, np.int64)
        if views.max_seq_len is not None:
            seq_lens = sequence_lengths(batch, views.max_seq_len)
        for view in views.views:
            template = self._templates[view.source]
            if view.per_sequence:
                starts = [rows[i] for i in sequence_offsets(seq_lens)[:-1].tolist()]
                batch[view.name] = _stacked([t.row(view, step, template) for t, step in starts])
            elif not view.is_plain:
                batch[view.name] = _stacked([t.row(view, step, template) for t, step in rows])
                if view.acting:
                    after = [t.row(view, step + 1, template) for t, step in rows]
                    batch[f"{col.NEXT_PREFIX}{view.name}"] = _stacked(after)
        if views.max_seq_len is not None:
            asked_for = {view.name for view in views.views}
            for name in [name for name in batch if name.startswith(col.STATE_OUT_PREFIX)]:
                if name not in asked_for:
                    del batch[name]
            batch[col.SEQ_LENS] = seq_lens
            batch.max_seq_len = views.max_seq_len

    def get_state(self) -> dict[str, Any]:
        return {
            "obs": self.obs.copy(),
            "slots": list(self._running),
            "running": [trajectory.get_state() for trajectory in self._running.values()],
            "ended": [trajectory.get_state() for trajectory in self._ended],
            "put_out": self._policy_columns,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.obs = np.array(state["obs"])
        running = map(_Trajectory.from_state, state["running"])
        self._running = dict(zip(map(int, state["slots"]), running, strict=True))
        self._ended = [_Trajectory.from_state(trajectory) for trajectory in state["ended"]]
        self._policy_columns = [str(name) for name in state["put_out"]]
        self.places = np.zeros((max(self._running, default=-1) + 1, 3), np.int64)
        for slot, trajectory in self._running.items():
            self.places[slot] = trajectory.place


def _stacked(rows: Sequence[Any]) -> Array:
    """One column of these rows; info dicts stay objects."""
    return object_array(rows) if isinstance(rows[0], dict) else np.array(rows)


def _storable(rows: list[Any]) -> Any:
    return list(rows) if not rows or isinstance(rows[0], dict) else np.stack(rows)
