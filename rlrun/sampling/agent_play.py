"""One agent in one episode, and what its policy is told about it from step to step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    lane: Any
    """The `Lane` that it plays in."""
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
