"""SampleCollector: stores the steps of slots, and makes a policy's inputs and batches of them.

The interface between the sampling loop and the storage of its steps. Must not know environments,
policies, metrics or the normalisation of rewards. `env_runners.sample_collector` names the class;
all classes make equal batches:

| class | slots | stores |
|---|---|---|
| `ColumnarCollector` | act together | arrays ``[T, B, ...]``, written in place |
| `LogCollector` | come and go | one log of rows, in the order of their arrival |
| `SimpleListCollector` | either | Python lists; easy to read, and a start for your own class |

A *slot* is one agent of one sub-environment. With one agent each, slots are the sub-environments
and all of them act together. With several, an agent has a slot while it takes part in an episode.

In a step of the loop:

1. `inputs` returns the observations or views that the policy acts on.
2. `add_step` stores actions and the environments' answers. Where slots come and go, `act` stores
   the actions, and `add_step` completes their transitions, perhaps several steps later.
3. `end_episodes` ends episodes, and `begin_episodes` begins the next ones.

    B  slots that act together    S  all slots    k  slots of a call    N  rows of the batch
    m  slots of a call that have an observation
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.config.registry import COLLECTORS, DEFAULT_COLLECTOR, LOG_COLLECTOR, import_object
from rlrun.config.schema import EnvRunnersConfig
from rlrun.data import columns as col
from rlrun.data.column_data import Array, object_array
from rlrun.data.nested import row_form
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.trajectory_views import TrajectoryViews
from rlrun.envs.agent_slots import SlotStep

MOST_HELD = 5000  # steps of an unfinished episode, before a warning

_log = logging.getLogger(__name__)

Infos = Mapping[int, Mapping[str, Any]]
"""Info dicts of a step, by position among the slots of the step."""

NO_EXTRAS: Mapping[str, Array] = MappingProxyType({})

FurtherColumns = Callable[[dict[str, Array]], dict[str, Array]]
"""Computes columns ``[N, ...]`` from the policy's outputs."""


def rows_error(name: str, values: Any, num_rows: int) -> ValueError:
    """The error of a policy's column of this name that has another number of rows."""
    shape = np.shape(values)
    return ValueError(
        f"compute_actions() was given {num_rows} rows and returned {name!r} of shape {shape}"
    )


class SampleCollector(ABC):
    """Storage of the steps of one policy in an env runner.

    A fragment has the requested length, or consists of whole episodes with at least as many steps.
    Steps that it does not deliver are the first ones of the next fragment. Views may look back to
    earlier fragments.

    Args:
        num_slots: B if slots act together; None if they come and go.
        obs_shape, obs_dtype: of one preprocessed observation.
        whole_episodes: whether fragments consist of whole episodes (`batch_mode`).
        every_step_counts: False if some steps are no transitions, so that slots fill up unevenly.

    Attributes:
        places: sub-environment, agent index and episode id of each slot, int ``[S, 3]``.
        obs: the next observations ``[B, ...]``; only where slots act together.
        num_collected: transitions that the fragment will deliver so far; with whole episodes, those
            of ended episodes. Only where slots act together.
    """

    obs: Array
    num_collected: int

    def __init__(
        self,
        num_slots: int | None,
        obs_shape: tuple[int, ...],
        obs_dtype: Any,
        *,
        whole_episodes: bool = False,
        every_step_counts: bool = True,
    ) -> None:
        self.num_slots, self.obs_shape, self.obs_dtype = num_slots, obs_shape, np.dtype(obs_dtype)
        self.whole_episodes, self.every_step_counts = whole_episodes, every_step_counts
        self.obs = np.zeros((num_slots or 0, *obs_shape), self.obs_dtype)
        self.places = np.zeros((num_slots or 0, 3), np.int64)
        self.places[:, 0] = np.arange(len(self.places))
        self.num_collected = 0
        self._warned = False

    @abstractmethod
    def set_views(self, views: TrajectoryViews | None, rows: Mapping[str, Array]) -> None:
        """Set the policy's views from the next fragment on; None for the present observation alone.

        Args:
            rows: for each viewed column except observations, a row ``[1, ...]`` of its shape and
                dtype; views need them before the first step.

        Raises:
            ValueError: a view is of `unroll_id`, and slots come and go.
        """
        for view in () if views is None or self.num_slots is not None else views.views:
            if view.source == col.UNROLL_ID:
                raise ValueError(
                    f"view {view.name!r}: with several agents there is no view of {view.source!r}"
                )

    @abstractmethod
    def begin_fragment(self, length: int | None, first_unroll_id: int = 0) -> None:
        """Begin a fragment of ``length * B`` transitions, or with None, of any number or none.

        Args:
            first_unroll_id: the first of the fragment's unroll ids.
        """

    @abstractmethod
    def begin_episodes(
        self, slots: Array, episode_ids: Array, obs: Array, places: Array | None = None
    ) -> None:
        """Begin episodes in slots, int ``[k]``, with their first observations ``[k, ...]``.

        Args:
            places: sub-environment and agent index, int ``[k, 2]``; None if they stay the same.
        """

    @abstractmethod
    def inputs(self, slots: Array | None = None) -> Any:
        """The policy's inputs: observations ``[k, ...]``, or views by name if `set_views` set any.

        Args:
            slots: int ``[k]``, with known next observations; None for all such slots.
        """

    def act(self, slots: Array, actions: Array, extras: Mapping[str, Array]) -> None:
        """Store actions and the policy's other outputs ``[k, ...]``; where slots come and go."""
        raise NotImplementedError("only for slots that come and go")

    @abstractmethod
    def add_step(
        self,
        step: SlotStep,
        obs: Array,
        learned_rewards: Array | None = None,
        actions: Array | None = None,
        extras: Mapping[str, Array] = NO_EXTRAS,
    ) -> None:
        """Complete a transition of each slot of a step.

        Args:
            step: rewards as the environments returned them, and flags. No slots join in it.
            obs: preprocessed next observations, final ones included, ``[m, ...]``. The caller may
                write over them later. A slot whose episode ends without one keeps its last one.
            learned_rewards: clipped or normalised, float32 ``[k]``; None for the ones in ``step``.
            actions, extras: the policy's outputs, each ``[B, ...]``, with the same names in every
                step, if slots act together. Where slots come and go, `act` has stored them.
        """

    @abstractmethod
    def end_episodes(self, slots: Array) -> None:
        """End the episodes of these slots, int ``[k]``, with their last step.

        Where slots come and go, they are free for other agents then.
        """

    @abstractmethod
    def drop(self, slots: Array, episode_id: int) -> None:
        """Drop the steps of an episode that are not delivered yet; these slots took part in it."""

    @property
    def rewards(self) -> Array:
        """This fragment's raw rewards, float64 ``[t, B]``; only where slots act together."""
        raise NotImplementedError("only for slots that act together")

    @property
    def actions(self) -> Array:
        """This fragment's actions, ``[t, B, ...]``; only where slots act together."""
        raise NotImplementedError("only for slots that act together")

    @abstractmethod
    def build(
        self,
        leave_out: frozenset[str] = frozenset(),
        further_columns: FurtherColumns | None = None,
        running: Collection[int] = (),
    ) -> SampleBatch:
        """End the fragment; returns its transitions, sorted by sub-environment, agent and time.

        Args:
            leave_out: names of columns and views that are not needed.
            further_columns: computes more columns from the policy's outputs; None for none.
            running: ids of the episodes that have not ended; empty if slots act together.
        """

    def discard(self) -> None:
        """End the fragment without a batch, as evaluation does; past rows of views are kept."""
        self.build()

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """The state between fragments, as numbers, arrays, lists and dicts."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state` of a collector with the same slots."""

    def warn_if_large(self, steps: int) -> None:
        """Warn once if this many steps are held back until their episodes are complete."""
        if self.whole_episodes and not self._warned and steps > MOST_HELD:
            self._warned = True
            _log.warning(
                "%d steps of each environment are held back until an episode ends; "
                "env_runners.batch_mode: truncate_episodes does not wait for that",
                steps,
            )


def make_collector(
    settings: EnvRunnersConfig,
    observation_space: gym.Space[Any],
    num_slots: int | None,
    *,
    every_step_counts: bool,
    collects: bool,
) -> SampleCollector:
    """A collector of the class that `env_runners.sample_collector` names.

    Args:
        observation_space: of preprocessed observations.
        num_slots, every_step_counts: see `SampleCollector`.
        collects: False if no batches are made, for which the default class is used.
    """
    name = (settings.sample_collector if collects else None) or DEFAULT_COLLECTOR
    path = COLLECTORS.get(name, name)
    if num_slots is None and name == DEFAULT_COLLECTOR:
        path = LOG_COLLECTOR
    made: SampleCollector = import_object(path)(
        num_slots,
        *row_form(observation_space),
        whole_episodes=collects and settings.batch_mode == "complete_episodes",
        every_step_counts=every_step_counts,
    )
    return made


def step_columns(
    places: Array,
    rewards: Array,
    terminateds: Array,
    truncateds: Array,
    steps: Array,
    unroll_ids: Array,
    infos: Infos | None,
) -> dict[str, Array]:
    """Rows ``[k]`` of each of `columns.STEP_COLUMNS`.

    Args:
        places: as in `SampleCollector`, ``[k, 3]``.
        rewards: clipped or normalised, like all others ``[k]``.
        steps: numbers of the steps in their episodes.
        infos: copied; None if no view reads them.
    """
    # An environment may hand out the same dict in every step.
    copies = [deepcopy((infos or {}).get(i, {})) for i in range(len(rewards))]
    return {
        col.REWARDS: rewards.astype(np.float32),
        col.TERMINATEDS: terminateds,
        col.TRUNCATEDS: truncateds,
        col.EPS_ID: places[:, 2],
        col.T: steps,
        col.UNROLL_ID: unroll_ids,
        col.ENV_ID: places[:, 0],
        col.AGENT_INDEX: places[:, 1],
        col.INFOS: object_array(copies),
    }


def make_batch(
    policy_columns: dict[str, Array],
    own: Mapping[str, Array],
    observations: tuple[Array, Array, Array],
    leave_out: frozenset[str],
    further_columns: FurtherColumns | None,
) -> SampleBatch:
    """A batch without views.

    Args:
        policy_columns, own: columns ``[N, ...]`` of the policy, and of the collector.
        observations: a storage ``[M, ...]``, and the rows of `obs` and of `new_obs` in it, ``[N]``.
        leave_out, further_columns: see `SampleCollector.build`.
    """
    further = {} if further_columns is None else further_columns(policy_columns)
    columns = {**policy_columns, **further, **own}
    for name in leave_out & columns.keys():
        del columns[name]
    batch = SampleBatch.from_columns(columns)
    storage, *indices = observations
    for name, index in zip((col.OBS, col.NEXT_OBS), indices, strict=True):
        if name not in leave_out:
            batch.set_shared(name, storage, index)
    return batch


def number_unrolls(columns: Mapping[str, Array], first: int) -> Array:
    """Unroll ids of the rows of slots that come and go, int ``[N]``.

    An unroll is consecutive rows of one agent index, and may contain episodes that end with a flag.
    An episode that ends without one, at a soft horizon, ends the unroll: in the next episode, the
    index may belong to another agent.

    Args:
        columns: must contain `env_id`, `agent_index`, `eps_id` and the flags.
    """
    ends = columns[col.TERMINATEDS] | columns[col.TRUNCATEDS]
    envs, agents = columns[col.ENV_ID], columns[col.AGENT_INDEX]
    episodes = columns[col.EPS_ID]
    new = np.ones(len(envs), np.bool_)
    new[1:] = (envs[1:] != envs[:-1]) | (agents[1:] != agents[:-1])
    new[1:] |= (episodes[1:] != episodes[:-1]) & ~ends[:-1]
    return np.cumsum(new) - 1 + first
