"""Which policy an agent has, and which spaces a policy has because of it.

The mapping is asked when an agent joins an episode, and holds to the episode's end. Owns its three
forms: a table of names and patterns, a function of the user's, and none at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.config.policies import PolicySettings
from rlrun.config.problems import misfit
from rlrun.config.registry import import_object, suggestion
from rlrun.config.yaml_tree import with_keys
from rlrun.data.sample_batch import DEFAULT_POLICY_ID

Spaces = tuple["gym.Space[Any]", "gym.Space[Any]"]
"""Observation and action space."""


class MappingError(ValueError):
    """An agent without a policy, or with one that does not fit it; one line."""


@dataclass(frozen=True)
class EpisodeStart:
    """What a mapping function knows about the episode.

    ``def choose(agent, episode): return episode.policies[episode.rng.integers(2)]``
    """

    seed: int
    """What the environment is reset with."""
    policies: tuple[str, ...]
    """Ids of the policies that there were when the episode began, and that are not removed."""
    rng: np.random.Generator
    """The only randomness that keeps runs reproducible; one generator for the whole episode."""


class AgentMapping:
    """Finds the policy of an agent.

    Args:
        agents: agent or pattern (``player_*``) -> policy id, where the first match counts; or a
            function ``choose(agent, episode, **kwargs)``, named by an import path or by
            ``{use: path, key: value}``. None: each agent has the policy of its own name, or the
            only one of `policies`.
        policies: ids of the policies that the run begins with.

    Attributes:
        in_training: in evaluation with other `agents`, the mapping of training.
    """

    def __init__(
        self,
        agents: Mapping[str, Any] | str | None,
        policies: Collection[str] = (DEFAULT_POLICY_ID,),
        in_training: AgentMapping | None = None,
    ) -> None:
        self.in_training = in_training
        self._only = next(iter(policies)) if len(policies) == 1 else None
        self._table: Mapping[str, Any] | None = None
        self._choose: Any = None
        self._kwargs: dict[str, Any] = {}
        if isinstance(agents, str):
            self._choose = import_object(agents)
        elif agents is not None and "use" in agents:
            self._kwargs = {key: with_keys(item) for key, item in agents.items() if key != "use"}
            self._choose = import_object(agents["use"])
        else:
            self._table = agents

    def policy_of(self, agent: Any, episode: EpisodeStart) -> str:
        """The id of the agent's policy; raises MappingError if there is none."""
        policies = episode.policies
        found: Any = None
        if self._choose is not None:
            found = self._choose(agent, episode, **self._kwargs)
        elif self._table is not None:
            table, name = self._table.items(), str(agent)
            found = next((policy for key, policy in table if fnmatchcase(name, key)), None)
        elif str(agent) in policies:
            found = str(agent)
        else:
            found = self._only
        if found is None:
            raise MappingError(
                f"agent {agent!r} has no policy; name one of {', '.join(policies)} for it"
            )
        if found not in policies:
            raise MappingError(
                f"agent {agent!r} is mapped to the policy {found!r}, which does not exist; "
                f"choose from {', '.join(policies)}{suggestion(str(found), policies)}"
            )
        return str(found)


def policy_spaces(
    env: Any,
    mapping: AgentMapping,
    policies: Mapping[str, PolicySettings],
    key: str = "multi_agent.agents",
) -> dict[str, Spaces]:
    """The spaces of each policy: its agents' spaces.

    A policy without an agent in a first episode has the spaces of the agent that its ``spaces_of``
    names, of its agents in training, or of all agents if these are equal; one that was added has
    the spaces of the policy that it was copied from.

    Args:
        key: address of the setting that the mapping is made of.

    Raises:
        ConfigError: an agent has no policy, a policy has no agent, or one whose spaces differ from
            another's.
    """
    try:
        return _policy_spaces(env, mapping, policies)
    except MappingError as error:
        raise misfit(key, str(error)) from None


def _policy_spaces(
    env: Any, mapping: AgentMapping, policies: Mapping[str, PolicySettings]
) -> dict[str, Spaces]:
    found: dict[str, Spaces] = {}
    episode = EpisodeStart(0, tuple(policies), np.random.default_rng(0))
    for policy_id, settings in policies.items():
        if settings.spaces_of is not None:
            found[policy_id] = _spaces_of(env, settings.spaces_of, policy_id)
    for agent in env.possible_agents:
        policy_id = mapping.policy_of(agent, episode)
        spaces = env.observation_spaces[agent], env.action_spaces[agent]
        require_spaces(agent, policy_id, spaces, found.setdefault(policy_id, spaces))
    if (in_training := mapping.in_training) is not None:
        for agent in env.possible_agents:
            spaces = env.observation_spaces[agent], env.action_spaces[agent]
            with suppress(Exception):  # the user's mapping of training need not know this agent
                found.setdefault(in_training.policy_of(agent, episode), spaces)
    for policy_id, settings in policies.items():
        if settings.like is not None:
            found[policy_id] = found[settings.like]
        elif policy_id not in found:
            found[policy_id] = _common_spaces(env, policy_id)
    return found


def require_spaces(agent: Any, policy_id: str, spaces: Spaces, expected: Spaces) -> None:
    """Raise MappingError unless the agent has the spaces of its policy."""
    for kind, own, wanted in zip(("observation", "action"), spaces, expected, strict=True):
        if own != wanted:
            raise MappingError(
                f"agent {agent!r} cannot have policy {policy_id!r}: its {kind} space is {own}, "
                f"the policy's is {wanted}; agents that differ need policies of their own"
            )


def _spaces_of(env: Any, agent: Any, policy_id: str) -> Spaces:
    if agent not in env.possible_agents:
        names: Iterable[str] = [str(name) for name in env.possible_agents]
        raise MappingError(
            f"policy {policy_id!r}: spaces_of names no possible agent: {agent!r}; choose "
            f"from {', '.join(names)}"
        )
    return env.observation_spaces[agent], env.action_spaces[agent]


def _common_spaces(env: Any, policy_id: str) -> Spaces:
    first, *others = env.possible_agents
    spaces = _spaces_of(env, first, policy_id)
    if any(_spaces_of(env, agent, policy_id) != spaces for agent in others):
        raise MappingError(
            f"policy {policy_id!r} has no agent at first, and agents differ in their spaces; "
            f"add spaces_of to the policy, an agent with its spaces, such as spaces_of: {first}"
        )
    return spaces
