"""Postprocessing: a fragment's batches go through the user's hands, episode by episode.

A *trajectory* is what a fragment holds of one agent in one episode: the policy's
`postprocess_trajectory` and the callbacks' `on_postprocess_trajectory` see trajectories, hence
never two episodes, once at the end of each episode and of each fragment. Rewards are as learning
sees them; views that are not for training are there. Knows nothing of losses; a callback is
any object with the method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch, concat_samples
from rlrun.data.sequences import change_points
from rlrun.policies.policy import Policy

ONLY_AGENT = "agent0"
"""What the agent of an environment without names for agents is called."""


AgentName = Callable[[int, int], Any]
"""The name of an agent, by episode id and index in the episode."""


def only_agent(episode_id: int, index: int) -> str:
    """The `AgentName` where there is one agent."""
    return ONLY_AGENT


@dataclass
class _Trajectory:
    policy_id: str
    agent: Any
    episode: int
    batch: SampleBatch
    original: SampleBatch


class Postprocessing:
    """What is done to each trajectory.

    Args:
        callbacks: each with an `on_postprocess_trajectory`, called in this order.
        worker: the env runner, an argument of callbacks; None in a dummy pass.

    Attributes:
        policies: by id.
        does_nothing: whether neither a policy nor a callback wants to see the trajectories.
    """

    def __init__(
        self, policies: Mapping[str, Policy], callbacks: Sequence[Any], worker: Any = None
    ) -> None:
        self._callbacks, self._worker = callbacks, worker
        self.set_policies(policies)

    def set_policies(self, policies: Mapping[str, Policy]) -> None:
        """From now on, trajectories are of these policies."""
        self.policies, none = policies, Policy.postprocess_trajectory
        own = any(type(each).postprocess_trajectory is not none for each in policies.values())
        self.does_nothing = not own and not self._callbacks

    def __call__(
        self, batches: Mapping[str, SampleBatch], agent_name: AgentName = only_agent
    ) -> dict[str, SampleBatch]:
        """The policies' batches after postprocessing, each with the same columns throughout."""
        trajectories = [
            trajectory
            for policy_id, batch in batches.items()
            for trajectory in _trajectories(policy_id, batch, agent_name)
        ]
        by_episode: dict[int, list[_Trajectory]] = {}
        for trajectory in trajectories:
            by_episode.setdefault(trajectory.episode, []).append(trajectory)
        originals = {
            episode: {p.agent: (p.policy_id, self.policies[p.policy_id], p.original) for p in them}
            for episode, them in by_episode.items()
        }
        for trajectory in trajectories:
            them = originals[trajectory.episode]
            others = {agent: them[agent] for agent in them if agent != trajectory.agent}
            policy = self.policies[trajectory.policy_id]
            trajectory.batch = policy.postprocess_trajectory(
                trajectory.batch, others, trajectory.episode
            )
        for trajectory in trajectories:
            self._call_back(trajectory, originals[trajectory.episode])
        joined = {
            policy_id: concat_samples([p.batch for p in trajectories if p.policy_id == policy_id])
            for policy_id in batches
        }
        return {name: batch for name, batch in joined.items() if isinstance(batch, SampleBatch)}

    def _call_back(self, trajectory: _Trajectory, originals: Mapping[Any, Any]) -> None:
        for callbacks in self._callbacks:
            callbacks.on_postprocess_trajectory(
                worker=self._worker,
                episode=trajectory.episode,
                agent_id=trajectory.agent,
                policy_id=trajectory.policy_id,
                policies=dict(self.policies),
                postprocessed_batch=trajectory.batch,
                original_batches=dict(originals),
            )


def _trajectories(
    policy_id: str, batch: SampleBatch, agent_name: AgentName
) -> Iterator[_Trajectory]:
    cuts = {*change_points(batch[col.EPS_ID]), *change_points(batch[col.UNROLL_ID])}
    for start, end in pairwise([0, *sorted(cuts), len(batch)]):
        trajectory = batch.slice(start, end)
        episode, index = int(trajectory[col.EPS_ID][0]), int(trajectory[col.AGENT_INDEX][0])
        agent = agent_name(episode, index)
        yield _Trajectory(policy_id, agent, episode, trajectory, trajectory.copy(shallow=True))
