"""Who plays where: lanes and their agents, and what a policy is told about these step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlrun.sampling.episodes import EpisodeRecord

if TYPE_CHECKING:
    from rlrun.policies.policy_mapping import EpisodeStart
    from rlrun.sampling.policy_actor import PolicyActor


class AgentFault(Exception):  # noqa: N818 - it becomes an EnvError, with its place, in the loop
    """What an environment gave an agent is wrong."""

    def __init__(self, agent: AgentPlay, reason: str, step: int) -> None:
        super().__init__(agent, reason, step)
        self.agent, self.reason, self.step = agent, reason, step


@dataclass(slots=True, eq=False)
class AgentPlay:
    """One agent in one episode."""

    id: Any
    index: int
    """By order of appearance in the episode."""
    lane: Lane
    actor: PolicyActor
    policy_id: str
    seat: int = -1
    """-1 once it has left."""
    credit: float = 0.0
    """Rewards since its last action."""
    total: float = 0.0
    """Rewards of all its transitions, and `credit`."""
    taken: int = 0
    """Actions it had taken when it left."""


@dataclass(slots=True, eq=False)
class Lane:
    """One sub-environment and the episode that it plays."""

    index: int
    env: Any
    seed: int = 0
    """Of the episode's random numbers."""
    reset_seed: int = 0
    """What the environment is reset with: the same, unless a soft horizon began the episode."""
    episode_id: int = 0
    step: int = 0
    """Env steps of the episode."""
    agents: dict[Any, AgentPlay] = field(default_factory=dict)
    """All who have joined, in their order; also those who have left."""
    actions: dict[Any, Any] = field(default_factory=dict)
    """What the next step of the environment receives."""
    total: float = 0.0
    """Rewards of the episode, of all agents that had acted."""
    silent: int = 0
    """Env steps since somebody acted."""
    terminated: bool = False
    """Whether the episode that has just ended did so by itself."""
    goes_on: bool = False
    """Whether the episode begins, or has just ended, at a soft horizon: without a reset."""
    start: EpisodeStart | None = None

    def record(self) -> EpisodeRecord:
        """The episode, which has just ended."""
        return EpisodeRecord(
            episode_id=self.episode_id,
            lane=self.index,
            seed=self.reset_seed,
            episode_return=self.total,
            length=self.step,
            agents=tuple((str(a.id), a.policy_id, a.total) for a in self.agents.values()),
        )


@dataclass(slots=True)
class News:
    """What a step brought to the agents of one policy, until `PolicyActor.hear` takes it in."""

    staying: list[AgentPlay] = field(default_factory=list)
    seats: list[int] = field(default_factory=list)
    observations: list[Any] = field(default_factory=list)
    """Raw, of those who stay, in their order."""
    steps: list[int] = field(default_factory=list)
    """Env steps of the episode up to here, of those who stay."""
    infos: list[Any] = field(default_factory=list)
    """Of those who stay; empty where the policy has no view of infos, as `last_infos` is."""
    leaving: list[AgentPlay] = field(default_factory=list)
    last_observations: list[Any] = field(default_factory=list)
    """Raw, of those who leave; None for those who get none."""
    flags: list[tuple[bool, bool]] = field(default_factory=list)
    """Whether they are terminated, and truncated."""
    last_steps: list[int] = field(default_factory=list)
    """Env steps of the episode up to here, of those who leave."""
    last_infos: list[Any] = field(default_factory=list)
    """Of those who leave."""
