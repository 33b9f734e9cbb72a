"""What a policy sees besides the present observation: its states, and views of the past.

Owns what the policy's requirements resolve to; the columns and their past are a collector's. A
policy that sees the present observation alone needs none of this and pays nothing for it.

States are views like others: ``state_in_k`` is ``state_out_k`` of the step before, or the initial
state in an episode's first step, so that nothing has to be reset when an episode ends.

    B  slots that act
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.trajectory_views import TrajectoryViews, source_rows
from rlrun.policies.action_sampling import action_sampler
from rlrun.policies.policy import Policy


class PolicyInputs:
    """The views of one policy.

    Attributes:
        views: the policy's views; None where it sees the present observation alone.
        requirements: what the policy asked for when they were resolved.
        unsent: columns that learning does not read from a policy like this one, as it was built.
        leave_out: columns that a train batch does not have; postprocessing sees them.
        rows: a row ``[1, ...]`` of each viewed column, besides observations, in shape and dtype.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._as_built = dict(policy.view_requirements)
        self.resolve()

    def resolve(self, unsent: frozenset[str] = frozenset()) -> None:
        """Take over the policy's requirements; views edited since it was built are all sent."""
        self.requirements, self.unsent = dict(self._policy.view_requirements), unsent
        self._sources_checked = False
        states = self._policy.get_initial_state()
        asked_for, as_built = self.requirements.items(), self._as_built
        edited = {name for name, view in asked_for if as_built.get(name) != view}
        views = TrajectoryViews(self.requirements, states, self._policy.unread_views - edited)
        self.views = None if views.trivial else views
        unwanted = [view.name for view in views.views if not view.training]
        insisted = [name for name, view in asked_for if view.used_for_compute_actions]
        self.leave_out = (unsent - with_next([*edited, *insisted])) | with_next(unwanted)
        sampler = action_sampler(self._policy.action_space)
        action = np.zeros(sampler.shape, sampler.dtype)
        spaces = {view.data_col or name: view.space for name, view in asked_for}
        self.rows = {
            name: source_rows(name, 1, spaces[name], action, states)
            for name in sorted(views.sources)
        }

    def act(
        self, input_dict: Mapping[str, Array], *, explore: bool, noise: Array | None
    ) -> tuple[Array, dict[str, Array]]:
        """Actions ``[B, ...]`` for these views, and the further columns that come with them."""
        actions, states, extras = self._policy.compute_actions_from_input_dict(
            input_dict, explore=explore, noise=noise
        )
        for k, state in enumerate(states):
            extras = {**extras, f"{col.STATE_OUT_PREFIX}{k}": state}
        if not self._sources_checked:
            self._check_sources(extras)
        return actions, extras

    def _check_sources(self, columns: Mapping[str, Array]) -> None:
        """Raise for views of columns that are not collected, or have another shape than said."""
        assert self.views is not None
        there = [col.OBS, col.ACTIONS, *col.STEP_COLUMNS, *columns]
        for view in self.views.views:
            if view.source not in there:
                raise KeyError(
                    f"view {view.name!r}: there is no column {view.source!r} to view; choose "
                    f"from {', '.join(there)}"
                )
            if view.source not in columns:
                continue
            found, said = np.shape(columns[view.source])[1:], self.rows[view.source].shape[1:]
            if found != said:
                raise ValueError(
                    f"view {view.name!r}: a row of {view.source!r} has the shape {found}, not "
                    f"{said} as its space or the initial state says"
                )
        self._sources_checked = True


def with_next(views: Iterable[str]) -> frozenset[str]:
    """The names of these views in a train batch: as they are in each step, and one step later."""
    return frozenset(name for view in views for name in (view, f"{col.NEXT_PREFIX}{view}"))
