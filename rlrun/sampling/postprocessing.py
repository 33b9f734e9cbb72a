"""Postprocessing: a fragment's batches go through the user's hands, episode by episode.

A *piece* is what a fragment holds of one agent in one episode: the policy's
`postprocess_trajectory` and the callbacks' `on_postprocess_trajectory` see pieces, hence never two
episodes, once at the end of each episode and of each fragment. Rewards are as learning sees them;
views that are not for training are there. Knows nothing of losses; callbacks are whatever has the
method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rlrun.config.registry import import_object
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch, concat_samples
from rlrun.data.sequences import change_points
from rlrun.policies.policy import Policy

if TYPE_CHECKING:
    from rlrun.config.schema import UseSpec

ONLY_AGENT = "agent0"
"""What the agent of an environment without names for agents is called."""


AgentName = Callable[[int, int], Any]
"""The name of an agent, by episode id and index in the episode."""


def only_agent(episode_id: int, index: int) -> str:
    """The `AgentName` where there is one agent."""
    return ONLY_AGENT


@dataclass
class _Piece:
    policy_id: str
    agent: Any
    episode: int
    batch: SampleBatch
    original: SampleBatch


class Postprocessing:
    """What is done to each piece.

    Args:
        callbacks: each with an `on_postprocess_trajectory`, called in this order.
        worker: the env runner that callbacks are told of; None in a dummy pass.

    Attributes:
        policies: by id; they may change between calls.
    """

    def __init__(
        self, policies: Mapping[str, Policy], callbacks: Sequence[Any], worker: Any = None
    ) -> None:
        self.policies, self._callbacks, self._worker = policies, callbacks, worker

    @property
    def does_nothing(self) -> bool:
        """Whether neither a policy nor a callback wants to see the pieces."""
        none = Policy.postprocess_trajectory
        own = any(type(each).postprocess_trajectory is not none for each in self.policies.values())
        return not own and not self._callbacks

    def __call__(
        self, batches: Mapping[str, SampleBatch], agent_name: AgentName = only_agent
    ) -> dict[str, SampleBatch]:
        """The policies' batches of postprocessed pieces, each with the same columns throughout."""
        pieces = [
            piece
            for policy_id, batch in batches.items()
            for piece in _pieces(policy_id, batch, agent_name)
        ]
        by_episode: dict[int, list[_Piece]] = {}
        for piece in pieces:
            by_episode.setdefault(piece.episode, []).append(piece)
        originals = {
            episode: {p.agent: (p.policy_id, self.policies[p.policy_id], p.original) for p in them}
            for episode, them in by_episode.items()
        }
        for piece in pieces:
            them = originals[piece.episode]
            others = {agent: them[agent] for agent in them if agent != piece.agent}
            policy = self.policies[piece.policy_id]
            piece.batch = policy.postprocess_trajectory(piece.batch, others, piece.episode)
        for piece in pieces:
            self._call_back(piece, originals[piece.episode])
        joined = {
            policy_id: concat_samples([p.batch for p in pieces if p.policy_id == policy_id])
            for policy_id in batches
        }
        return {name: batch for name, batch in joined.items() if isinstance(batch, SampleBatch)}

    def _call_back(self, piece: _Piece, originals: Mapping[Any, Any]) -> None:
        for callbacks in self._callbacks:
            callbacks.on_postprocess_trajectory(
                worker=self._worker,
                episode=piece.episode,
                agent_id=piece.agent,
                policy_id=piece.policy_id,
                policies=dict(self.policies),
                postprocessed_batch=piece.batch,
                original_batches=dict(originals),
            )


def _pieces(policy_id: str, batch: SampleBatch, agent_name: AgentName) -> Iterator[_Piece]:
    cuts = {*change_points(batch[col.EPS_ID]), *change_points(batch[col.UNROLL_ID])}
    for start, end in pairwise([0, *sorted(cuts), len(batch)]):
        piece = batch.slice(start, end)
        episode, index = int(piece[col.EPS_ID][0]), int(piece[col.AGENT_INDEX][0])
        agent = agent_name(episode, index)
        yield _Piece(policy_id, agent, episode, piece, piece.copy(shallow=True))


def make_postprocessors(specs: Sequence[UseSpec]) -> list[Any]:
    """The callbacks that these name, for one process."""
    return [import_object(spec.use)(**spec.kwargs) for spec in specs]
