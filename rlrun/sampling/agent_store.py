"""AgentStore: keeps what the agents of one policy live through, and makes the policy's batch of it.

What a `SampleCollector` is for lanes that step together, for agents that come and go. There are two
with identical batches:

| class | stores | for |
|---|---|---|
| `LoggedAgents` | one log of rows for all agents, the counterpart of `ColumnarCollector` | speed |
| `CollectedAgents` | each agent in a `SampleCollector` of its own | any collector |

A step, as `PolicyActor` makes it: `act` for those whose action is due, then `hear` for all those to
whom something happened. Knows nothing of environments, policies or seeds.

    S  seats    k  agents of a step, by seat    N  rows of the finished batch
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.sampling.policy_inputs import PolicyInputs

Array = NDArray[Any]

_OF_ITS_OWN = (col.T, col.UNROLL_ID, col.ENV_ID, col.AGENT_INDEX)


@dataclass(frozen=True)
class Heard:
    """What a step brought to some agents."""

    seats: Array
    """int ``[k]``; those who stay come first."""
    staying: int
    """How many stay: they see something, and act on it next."""
    observed: Array
    """Which of the k see something, int ``[m]``; who leaves need not."""
    observations: Array
    """What they see, ``[m, ...]``, for the policy."""
    rewards: Array
    """Of their last actions, float64 ``[k]``."""
    learned: Array
    """The same as learning sees them, ``[k]``."""
    flags: Array
    """Terminated and truncated, bool ``[k, 2]``."""
    steps: Array
    """Env steps of the episodes, this one included, int ``[k]``."""
    infos: Sequence[Mapping[str, Any]] | None
    """Of each of the k; None where nobody asks for them."""


@dataclass(frozen=True)
class Delivery:
    """What a batch is to be made of, and how."""

    running: Collection[int]
    """Ids of the episodes that have not ended."""
    whole_episodes: bool
    """Hold back transitions of those."""
    runner_index: int
    fragment: int
    leave_out: frozenset[str] = frozenset()
    """Columns that nobody wants."""
    further_columns: Callable[[dict[str, Array]], dict[str, Array]] | None = None
    """Makes columns ``[N, ...]`` from those that the policy put out."""


class AgentStore(ABC):
    """See the module.

    Attributes:
        places: lane, agent index and episode id of each seat, int ``[S, 3]``.
        ignored: columns of the policy that need not be kept; set before a fragment begins.
    """

    def __init__(self, inputs: PolicyInputs) -> None:
        self.inputs = inputs
        self.places = np.empty((0, 3), np.int64)
        self.ignored: frozenset[str] = frozenset()

    def resize(self, seats: int) -> None:
        """There are so many seats now, more than before."""
        more = np.zeros((seats - len(self.places), 3), np.int64)
        self.places = np.append(self.places, more, axis=0)

    def begin(self, seat: int, lane: int, agent: int, episode_id: int) -> None:
        """An agent takes a seat."""
        self.places[seat] = lane, agent, episode_id

    def begin_fragment(self) -> None:  # noqa: B027 - not all of them care
        """A fragment begins."""

    def set_views(self) -> None:
        """Look at what `inputs` has resolved; raises ValueError for a view that cannot be."""
        views = self.inputs.views
        for view in () if views is None else views.views:
            if view.source in _OF_ITS_OWN:
                raise ValueError(
                    f"view {view.name!r}: with several agents there is no view of {view.source!r}"
                )

    @abstractmethod
    def seen(self, seats: Array) -> Any:
        """What the policy sees: observations ``[k, ...]``, or its views by name if it has some."""

    @abstractmethod
    def act(self, seats: Array, actions: Array, extras: Mapping[str, Array]) -> None:
        """These agents act on what they have seen last: actions and extras, each ``[k, ...]``."""

    @abstractmethod
    def hear(self, heard: Heard) -> None:
        """Something happened to agents; who has acted has a transition that is complete now."""

    @abstractmethod
    def leave(self, seat: int) -> None:
        """An agent left; its transitions are complete."""

    @abstractmethod
    def drop(self, seats: Collection[int], lane: int, episode_id: int) -> None:
        """An episode is given up: forget it as far as it has not been delivered.

        Args:
            seats: of its agents, who leave then.
        """

    @abstractmethod
    def deliver(self, delivery: Delivery) -> SampleBatch | None:
        """The complete transitions, agent after agent and each in its order; None for none."""

    def forget(self) -> None:
        """Deliver to nobody, as a play does that is not learned from."""
        self.deliver(Delivery(running=(), whole_episodes=False, runner_index=0, fragment=0))

    @abstractmethod
    def get_state(self, seats: Sequence[int]) -> dict[str, Any]:
        """What the next fragments need of the past, between fragments; seats are those taken."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any], seats: Sequence[int]) -> None:
        """Take over what `get_state` returned, for the same agents, who have taken these seats."""


def name_pieces(columns: Mapping[str, Array] | SampleBatch, delivery: Delivery) -> Array:
    """Unroll ids of the rows, int ``[N]``: one for each piece that returns may be summed up along.

    That is an agent's rows, with the flags that end episodes. Without a flag the next episode, at a
    soft horizon, is another piece: there its rows may be another agent's.

    Args:
        columns: `env_id`, `agent_index`, `eps_id` and the flags are read.
    """
    ends = columns[col.TERMINATEDS] | columns[col.TRUNCATEDS]
    lanes, agents, episodes = (columns[name] for name in (col.ENV_ID, col.AGENT_INDEX, col.EPS_ID))
    new = np.ones(len(lanes), np.bool_)
    new[1:] = (lanes[1:] != lanes[:-1]) | (agents[1:] != agents[:-1])
    new[1:] |= (episodes[1:] != episodes[:-1]) & ~ends[:-1]
    first = (delivery.runner_index << 48) | (delivery.fragment << 16)
    return np.cumsum(new) - 1 + first
