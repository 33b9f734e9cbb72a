"""What a policy sees besides the present observation: its states, and views of the past.

Owns the past that views need, while a fragment is sampled and from one fragment to the next. A
policy that sees the present observation alone needs none of this and pays nothing for it.

States are views like others: ``state_in_k`` is ``state_out_k`` of the step before, or the initial
state in an episode's first step, so that nothing has to be reset when an episode ends.

    T  steps of a fragment    B  lanes    P  rows of the past that views reach back to
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlrun.data import columns as col
from rlrun.data.trajectory_views import TrajectoryViews
from rlrun.policies.action_sampling import action_sampler
from rlrun.policies.policy import Policy
from rlrun.sampling.episodes import LaneEpisodes
from rlrun.sampling.fragment import FragmentBuffer

Array = NDArray[Any]

_WINDOW = 128  # steps of evaluation that are kept before the oldest are dropped


class PolicyInputs:
    """Serves the views of one policy to B lanes.

    Attributes:
        views: the policy's views; None where it sees the present observation alone.
        sees_rewards: whether rewards must be ready step by step.
    """

    def __init__(self, policy: Policy, lanes: int) -> None:
        self._policy, self._lanes = policy, lanes
        self._requirements: Mapping[str, Any] | None = None
        self._past: dict[str, Array] = {}
        self.views: TrajectoryViews | None = None
        self.sees_rewards = False
        self._rows: dict[str, Array] = {}
        self.resolve()

    @property
    def lookback(self) -> int:
        """P."""
        return 0 if self.views is None else self.views.lookback

    def resolve(self) -> None:
        """Look at the policy's requirements, again if they have been edited."""
        policy = self._policy
        if policy.view_requirements == self._requirements:
            return
        self._requirements = dict(policy.view_requirements)
        self._sources_checked = False
        states = policy.get_initial_state()
        views = TrajectoryViews(self._requirements, states)
        self.views = None if views.trivial else views
        self.sees_rewards = col.REWARDS in views.sources
        sources = sorted(views.sources)
        self._rows = {name: self._row_of(name, states) for name in sources}
        # Columns that nobody has kept so far begin now: the past of a fragment is all or nothing.
        if not self._past.keys() >= {col.OBS, *sources}:
            self._past = {}

    def _row_of(self, name: str, states: list[Array]) -> Array:
        """A row ``[B, ...]`` that has the column's shape and dtype."""
        if name == col.ACTIONS:
            sampler = action_sampler(self._policy.action_space)
            return np.zeros((self._lanes, *sampler.shape), sampler.dtype)
        if name.startswith(col.STATE_OUT_PREFIX):
            state = states[int(name.removeprefix(col.STATE_OUT_PREFIX))]
            return np.repeat(state[None], self._lanes, axis=0)
        assert self._requirements is not None
        space = next(
            view.space
            for view_name, view in self._requirements.items()
            if (view.data_col or view_name) == name
        )
        if isinstance(space, gym.spaces.Box):
            return np.zeros((self._lanes, *space.shape), space.dtype)
        return np.zeros(self._lanes, np.float32)

    def begin(self, buffer: FragmentBuffer) -> None:
        """Make room for what views need of this fragment, behind what they need of the past."""
        for name, row in self._rows.items():
            buffer.add_column(name, row)
        buffer.recall(self._past)

    def end(self, buffer: FragmentBuffer, num_steps: int) -> None:
        """Keep what the next fragment's views need of the first ``num_steps`` rows of this one."""
        if self.lookback:
            self._past = buffer.remember([col.OBS, *self._rows], num_steps)

    def act(
        self,
        buffer: FragmentBuffer,
        t: int,
        episodes: LaneEpisodes,
        *,
        explore: bool,
        noise: Array | None,
    ) -> tuple[Array, dict[str, Array]]:
        """Actions ``[B, ...]`` of step t, and the further columns that come with them."""
        first = np.maximum(episodes.start - episodes.length, -buffer.num_past)
        return self._act(buffer.history, t, first, explore=explore, noise=noise)

    def _act(
        self,
        history: Mapping[str, Array],
        t: int,
        first: Array,
        *,
        explore: bool,
        noise: Array | None,
    ) -> tuple[Array, dict[str, Array]]:
        assert self.views is not None
        past = self.views.lookback
        inputs = self.views.acting(history, past + t, past + first)
        actions, states, extras = self._policy.compute_actions_from_input_dict(
            inputs, explore=explore, noise=noise
        )
        outs = {f"{col.STATE_OUT_PREFIX}{k}": state for k, state in enumerate(states)}
        columns = {**extras, **outs}
        if not self._sources_checked:
            self._check_sources(columns)
        return actions, columns

    def _check_sources(self, columns: Mapping[str, Array]) -> None:
        """Raise KeyError for views of columns that nobody collects."""
        assert self.views is not None
        there = [col.OBS, col.ACTIONS, col.REWARDS, *columns]
        for view in self.views.views:
            if view.source not in there:
                raise KeyError(
                    f"view {view.name!r}: there is no column {view.source!r} to view, there is "
                    f"{', '.join(there)}"
                )
        self._sources_checked = True

    def get_state(self) -> dict[str, Any]:
        """The past that the running episodes' views reach back to."""
        return dict(self._past)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self._past = {name: np.asarray(rows) for name, rows in state.items()}


class PlayedInputs(PolicyInputs):
    """The same for play without fragments, as in evaluation: step after step without an end."""

    def __init__(self, policy: Policy, lanes: int) -> None:
        super().__init__(policy, lanes)
        self._t = 0
        self._first = np.zeros(lanes, np.int64)
        self._history: dict[str, Array] = {}

    def act_on(
        self, obs: Array, *, explore: bool, noise: Array | None
    ) -> tuple[Array, dict[str, Array]]:
        """Actions ``[B, ...]`` for the observations ``[B, ...]`` of this step."""
        if self._t == _WINDOW:
            self._drop_oldest()
        if not self._history:
            rows = self.lookback + _WINDOW
            for name, row in {col.OBS: obs, **self._rows}.items():
                self._history[name] = np.empty((rows, *row.shape), row.dtype)
        here = self.lookback + self._t
        self._history[col.OBS][here] = obs
        actions, extras = self._act(
            self._history, self._t, self._first, explore=explore, noise=noise
        )
        for name, values in {col.ACTIONS: actions, **extras}.items():
            if name in self._history:
                self._history[name][here] = values
        return actions, extras

    def stepped(self, rewards: Array, done: Array) -> None:
        """The step led to these rewards ``[B]``; lanes that are done begin another episode."""
        if self.sees_rewards:
            self._history[col.REWARDS][self.lookback + self._t] = rewards
        self._t += 1
        self._first[done] = self._t

    def _drop_oldest(self) -> None:
        past = self.lookback
        for column in self._history.values():
            column[:past] = column[_WINDOW : _WINDOW + past].copy()
        self._t = 0
        self._first = np.maximum(self._first - _WINDOW, -past)
