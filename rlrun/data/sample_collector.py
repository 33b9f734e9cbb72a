"""SampleCollector: keeps what lanes live through, shows the policy its views, makes the batch.

The interface between the loop of an env runner, which owns environments and policy, and whoever
stores the steps. Numpy alone; knows nothing of environments, policies, rewards' normalisation or
metrics. `env_runners.sample_collector` names the class; there are two with identical batches:

| class | stores | for |
|---|---|---|
| `ColumnarCollector` (room `sampling`) | arrays ``[T, B, ...]``, written in place | speed |
| `SimpleListCollector` | Python lists, episode by episode | reading, and as a start for others |

A vector step, as the runner makes it; B lanes step together, rows of lanes stand side by side:

1. `obs`, or `get_inference_input_dict` if the policy has views: what it sees
2. `add_step`: what it did, and what the environments answered
3. `add_init_obs` for lanes whose step was their environment's own reset; `drop_episode` for those
   that failed
4. `end_episodes` for lanes whose episodes ended, and `add_init_obs` where they go on at once

    B  lanes: the runner's sub-environments      N  rows of the finished batch
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlrun.data import columns as names
from rlrun.data.column_data import Array
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.trajectory_views import TrajectoryViews

MOST_HELD = 5000  # steps of an unfinished episode, before a warning

_log = logging.getLogger(__name__)

STEP_COLUMNS: dict[str, type] = {
    names.REWARDS: np.float32,
    names.TERMINATEDS: np.bool_,
    names.TRUNCATEDS: np.bool_,
    names.EPS_ID: np.int64,
    names.T: np.int64,
    names.UNROLL_ID: np.int64,
    names.ENV_ID: np.int64,
    names.AGENT_INDEX: np.int64,
    names.INFOS: np.object_,
}
"""Columns that a collector itself has of every step, if it is asked for them -> their dtype."""


def step_columns(
    rewards: Array,
    terminateds: Array,
    truncateds: Array,
    episode_ids: Array,
    steps: Array,
    unroll_ids: Array,
    infos: Mapping[int, dict[str, Any]] | None,
) -> dict[str, Array]:
    """A row ``[B]`` of each of `STEP_COLUMNS`, from what a collector knows of a vector step.

    Args:
        rewards: as learning sees them.
        steps: which step of its episode each lane took.
        infos: of the lanes that have any; others get an empty dict.
    """
    lanes = np.arange(len(rewards))
    rows = np.empty(len(rewards), np.object_)
    for lane in lanes.tolist():
        rows[lane] = {} if infos is None else infos.get(lane, {})
    return {
        names.REWARDS: rewards.astype(np.float32),
        names.TERMINATEDS: terminateds,
        names.TRUNCATEDS: truncateds,
        names.EPS_ID: episode_ids,
        names.T: steps,
        names.UNROLL_ID: unroll_ids,
        names.ENV_ID: lanes,
        names.AGENT_INDEX: np.zeros_like(lanes),
        names.INFOS: rows,
    }


FurtherColumns = Callable[[dict[str, Array]], dict[str, Array]]
"""Makes columns ``[N, ...]`` from those that the policy put out."""


class SampleCollector(ABC):
    """What an env runner writes its steps into.

    Fragments are as long as asked for, or hold whole episodes only, at least as many steps; what is
    not delivered comes first in the next one. Views see what happened in fragments before.

    Args:
        num_lanes: B.
        obs_shape, obs_dtype: of one preprocessed observation.
        whole_episodes: `batch_mode: complete_episodes`.
        every_step_counts: False where a step may be no transition, so that lanes fill up unevenly.

    Attributes:
        obs: what the policy sees next, ``[B, ...]``; of no meaning before the first episodes began.
        ignored: columns of the policy that need not be kept; set before a fragment begins.
        num_collected: transitions that the batch has so far; of whole episodes those that ended.
    """

    obs: Array
    num_collected: int

    def __init__(
        self,
        num_lanes: int,
        obs_shape: tuple[int, ...],
        obs_dtype: Any,
        *,
        whole_episodes: bool = False,
        every_step_counts: bool = True,
    ) -> None:
        self.num_lanes, self.obs_shape, self.obs_dtype = num_lanes, obs_shape, np.dtype(obs_dtype)
        self.whole_episodes, self.every_step_counts = whole_episodes, every_step_counts
        self.obs = np.zeros((num_lanes, *obs_shape), self.obs_dtype)
        self.num_collected = 0
        self.ignored: frozenset[str] = frozenset()
        self._warned = False

    @abstractmethod
    def set_views(self, views: TrajectoryViews | None, rows: Mapping[str, Array]) -> None:
        """What the policy sees, from the next fragment on; None: the present observation alone.

        Args:
            rows: for each column that is viewed, besides observations, a row ``[B, ...]`` of its
                shape and dtype; views need it before the column's first step.
        """

    @abstractmethod
    def begin_fragment(self, length: int | None, unroll_ids: Array) -> None:
        """A fragment of ``length * B`` transitions begins; `unroll_ids` int ``[B]`` name it.

        None: of as many as come, of which there may be none. So it is with several agents, each of
        which is the one lane of a collector.
        """

    @abstractmethod
    def add_init_obs(self, lanes: Array, episode_ids: Array, obs: Array) -> None:
        """Episodes begin: int ``[k]`` lanes, int ``[k]`` ids, first observations ``[k, ...]``."""

    @abstractmethod
    def get_inference_input_dict(self) -> dict[str, Array]:
        """What the policy sees at this step: its views, ``[B, ...]`` or ``[B, n, ...]``."""

    @abstractmethod
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
        """All lanes took a step.

        Args:
            actions, extras: what the policy put out, each ``[B, ...]``; the same names always.
            rewards: as the environments gave them, float64 ``[B]``.
            obs: what the step led to, ``[B, ...]``, final observations included. May be a buffer.
            learned_rewards: clipped or normalised, float32 ``[B]``; None: the rewards as they are.
            valid: bool ``[B]``, False where the step was no transition; None: all were.
            infos: the info dicts of the lanes that have any, by lane; None: nobody has.
        """

    @abstractmethod
    def end_episodes(self, lanes: Array) -> None:
        """The episodes of these lanes, int ``[k]``, ended with the last step."""

    @abstractmethod
    def drop_episode(self, lane: int) -> None:
        """Forget the lane's running episode, as far as it has not been delivered."""

    @property
    @abstractmethod
    def rewards(self) -> Array:
        """The rewards of this fragment's vector steps as they came, float64 ``[t, B]``."""

    @property
    @abstractmethod
    def actions(self) -> Array:
        """The actions of this fragment's vector steps, ``[t, B, ...]``."""

    @abstractmethod
    def build(
        self,
        leave_out: frozenset[str] = frozenset(),
        further_columns: FurtherColumns | None = None,
    ) -> SampleBatch:
        """The fragment ends: its transitions, lane after lane, each lane's in their order.

        Args:
            leave_out: columns and views that nobody wants.
            further_columns: of the policy's columns; None: there are none.
        """

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """What the next fragment needs of the past, between fragments; arrays, numbers, dicts."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""

    def warn_if_large(self, steps: int) -> None:
        """Say once, where episodes must be complete, that this many steps wait for it."""
        if self.whole_episodes and not self._warned and steps > MOST_HELD:
            self._warned = True
            _log.warning(
                "%d steps of each environment are held back until an episode ends; "
                "env_runners.batch_mode: truncate_episodes does not wait for that",
                steps,
            )
