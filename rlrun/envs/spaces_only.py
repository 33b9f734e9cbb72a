"""Environments that have spaces and nothing else, by which a policy is built where it only acts.

A checkpoint holds the spaces of its policies, so that loading a policy needs no environment. The
spaces come as the plain values of `rlrun.data.space_codec`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import gymnasium as gym

from rlrun.data.space_codec import space_from_dict, space_to_dict
from rlrun.envs.multi_agent_env import MultiAgentEnv

Spaces = tuple[gym.Space[Any], gym.Space[Any]]
Plain = Sequence[Mapping[str, Any]]
"""Observation and action space as plain values."""

_UNABLE = "there are spaces only, and no environment"


class SpacesOnly(gym.Env[Any, Any]):
    """An environment with one agent that can be neither reset nor stepped."""

    def __init__(self, spaces: Plain) -> None:
        self.observation_space, self.action_space = map(space_from_dict, spaces)

    def reset(self, **_: Any) -> NoReturn:
        """Raise RuntimeError."""
        raise RuntimeError(_UNABLE)

    def step(self, action: Any) -> NoReturn:
        """Raise RuntimeError."""
        raise RuntimeError(_UNABLE)


class AgentSpacesOnly(MultiAgentEnv):
    """An environment with one agent for each policy, of the same name."""

    def __init__(self, spaces: Mapping[str, Plain]) -> None:
        found = spaces_of(spaces)
        self.possible_agents = list(found)
        self.observation_spaces = {name: observed for name, (observed, _) in found.items()}
        self.action_spaces = {name: acted for name, (_, acted) in found.items()}


def plain_spaces(spaces: Mapping[str, Spaces]) -> dict[str, Plain] | None:
    """Spaces by policy as plain values; None if one of them has no such form."""
    try:
        return {name: [*map(space_to_dict, pair)] for name, pair in spaces.items()}
    except TypeError:
        return None


def spaces_of(plain: Mapping[str, Plain]) -> dict[str, Spaces]:
    """The inverse of `plain_spaces`."""
    pairs = {name: [*map(space_from_dict, pair)] for name, pair in plain.items()}
    return {name: (observed, acted) for name, (observed, acted) in pairs.items()}


def spaces_only(plain: Mapping[str, Plain], *, several: bool) -> dict[str, Any]:
    """The section `env` of an experiment with these spaces, for one agent or several."""
    if several:
        return {"use": f"{__name__}:{AgentSpacesOnly.__name__}", "spaces": dict(plain)}
    (only,) = plain.values()
    return {"use": f"{__name__}:{SpacesOnly.__name__}", "spaces": list(only)}
