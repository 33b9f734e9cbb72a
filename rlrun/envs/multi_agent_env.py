"""MultiAgentEnv: the interface of environments with several agents, and where they come from.

Owns the dict interface, `make_multi_agent` and how an `EnvSpec` becomes such an environment;
PettingZoo's two interfaces are adapted in `pettingzoo_envs`. Knows nothing of policies or batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import gymnasium as gym

from rlrun.config.registry import takes_a_config
from rlrun.config.schema import EnvSpec
from rlrun.data.seeding import drawn_from
from rlrun.envs import pettingzoo_envs
from rlrun.envs.env import (
    EnvContext,
    call_creator,
    find_creator,
    observation_problem,
    random_action,
    refuse_own_statistics,
    reward_problem,
)
from rlrun.envs.env_state import give_state, offers_state, take_state
from rlrun.envs.errors import RAISED, EnvError, EnvPhase
from rlrun.envs.horizon import ALL
from rlrun.envs.watchdog import close_all
from rlrun.envs.wrappers import EnvWrapper

Agent = Hashable
FirstDicts = tuple[dict[Agent, Any], dict[Agent, Any]]
Dicts = tuple[
    dict[Agent, Any], dict[Agent, float], dict[Agent, bool], dict[Agent, bool], dict[Agent, Any]
]


class MultiAgentEnv:
    """Base of environments whose agents may join and leave during an episode.

    Agents with an observation act: the next `step` receives actions of exactly these agents, in
    the order in which they joined. An agent joins with its first observation. While it gets no
    observation it does not act, and its rewards belong to its last action. It leaves when it is
    terminated or truncated, and does not come back in the episode.

    Attributes:
        possible_agents: all agents that may take part in an episode.
        observation_spaces, action_spaces: spaces by possible agent.
        metadata: as in gymnasium, for example ``render_fps``.
    """

    possible_agents: Sequence[Agent] = ()
    observation_spaces: Mapping[Agent, gym.Space[Any]] = {}
    action_spaces: Mapping[Agent, gym.Space[Any]] = {}
    metadata: Mapping[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> FirstDicts:
        """Start an episode; returns observations and infos of the agents that act first."""
        raise TypeError(f"{type(self).__name__} must define reset() without the base class's")

    def step(self, actions: dict[Agent, Any]) -> Dicts:
        """Step; returns observations, rewards, terminateds, truncateds and infos, each by agent.

        The two dicts of flags also have the key ``__all__``; agents missing in them continue.
        """
        raise TypeError(f"{type(self).__name__} must define step() without the base class's")

    def render(self) -> Any:
        """A frame, or None, for gymnasium's render modes."""
        return None

    def close(self) -> None:
        """Release the environment's resources."""


class Copies(MultiAgentEnv):
    """N agents, each in its own copy of a single-agent environment; see `make_multi_agent`.

    Attributes:
        copies: environments by agent.
    """

    def __init__(self, make: Callable[[], gym.Env[Any, Any]], num_agents: int) -> None:
        if num_agents < 1:
            raise ValueError(f"num_agents must be at least 1, not {num_agents}")
        self.copies: dict[Agent, Any] = {f"agent_{i}": make() for i in range(num_agents)}
        self.possible_agents = list(self.copies)
        self.observation_spaces = {name: env.observation_space for name, env in self.copies.items()}
        self.action_spaces = {name: env.action_space for name, env in self.copies.items()}
        self.metadata = next(iter(self.copies.values())).metadata
        self._playing: set[Agent] = set()

    def reset(self, *, seed: int | None = None, options: Any = None) -> FirstDicts:
        self._playing = set(self.copies)
        first = {
            name: env.reset(seed=None if seed is None else seed + i, options=options)
            for i, (name, env) in enumerate(self.copies.items())
        }
        return {name: part[0] for name, part in first.items()}, {}

    def step(self, actions: dict[Agent, Any]) -> Dicts:
        observations: dict[Agent, Any] = {}
        rewards: dict[Agent, float] = {}
        terminateds: dict[Agent, bool] = {}
        truncateds: dict[Agent, bool] = {}
        infos: dict[Agent, Any] = {}
        for name, action in actions.items():
            stepped = self.copies[name].step(action)
            observations[name], rewards[name], terminated, truncated, infos[name] = stepped
            terminateds[name], truncateds[name] = terminated, truncated
            if terminated or truncated:
                self._playing.discard(name)
        over = not self._playing
        cut = over and not any(terminateds.values())
        terminateds[ALL], truncateds[ALL] = over and not cut, cut
        return observations, rewards, terminateds, truncateds, infos

    @property
    def offers_state(self) -> bool:
        """Whether all copies offer their states."""
        return all(map(offers_state, self.copies.values()))

    def get_state(self) -> dict[Agent, Any]:
        """The state of each copy, and the agents whose episodes are running."""
        states: dict[Agent, Any] = {name: take_state(env) for name, env in self.copies.items()}
        return {"copies": states, "playing": sorted(self._playing, key=str)}

    def set_state(self, state: Mapping[Agent, Any]) -> None:
        """Go on from `get_state`."""
        self._playing = set(state["playing"])
        for name, env in self.copies.items():
            give_state(env, state["copies"][name])

    def render(self) -> Any:
        return next(iter(self.copies.values())).render()

    def close(self) -> None:
        close_all(self.copies.values())


def make_multi_agent(env: str | Callable[..., gym.Env[Any, Any]]) -> Callable[..., MultiAgentEnv]:
    """A multi-agent environment of independent copies of a single-agent one.

    Args:
        env: a gymnasium id, or a function that makes the environment.

    Returns:
        ``make(num_agents=2, **kwargs)``, with agents agent_0, agent_1, ...; ``kwargs`` go to each
        copy. An agent leaves when its copy's episode ends; the episode ends with the last of them.
    """

    def make(num_agents: int = 2, **kwargs: Any) -> MultiAgentEnv:
        """One copy of a single-agent environment for each of ``num_agents`` agents."""
        if isinstance(env, str):
            return Copies(lambda: gym.make(env, disable_env_checker=True, **kwargs), num_agents)
        return Copies(lambda: env(**kwargs), num_agents)

    return make


def make_multi_agent_env(
    spec: EnvSpec,
    context: EnvContext | None = None,
    render_mode: str | None = None,
    wrappers: Sequence[EnvWrapper] = (),
) -> Any:
    """Build the multi-agent environment that ``spec`` names; PettingZoo's are adapted.

    Wrappers get PettingZoo's environments before they are adapted.

    Raises:
        EnvError: for every failure, with phase "constructor".
        ConfigError: a wrapper keeps statistics of its own.
    """
    place = EnvContext(spec.kwargs) if context is None else copy.copy(context)
    optional = {} if render_mode is None else {"render_mode": render_mode}
    try:
        if pettingzoo_envs.is_id(spec.use):
            env = pettingzoo_envs.make(spec.use, {**place, **optional})
        else:
            creator = find_creator(spec.use)
            if creator is None:
                raise TypeError(f"{spec.use} has one agent; make_multi_agent() gives it several")
            env = call_creator(creator, place, optional, any_name=takes_a_config(spec.use, creator))
        for wrap in wrappers:
            env = wrap(env)
    except EnvError:
        raise
    except RAISED as error:
        raise EnvError.from_exception(
            error, spec.use, "constructor", env_index=place.vector_index
        ) from None
    for copied in env.copies.values() if isinstance(env, Copies) else ():
        refuse_own_statistics(copied)
    env = pettingzoo_envs.adapted(env)
    problem = _missing(env)
    if problem is not None:
        raise EnvError(spec.use, "constructor", problem, env_index=place.vector_index)
    return env


def _missing(env: Any) -> str | None:
    """The reason that an environment is not a multi-agent one; None if it is one."""
    kind = f"{type(env).__module__}.{type(env).__qualname__}"
    for name in ("possible_agents", "observation_spaces", "action_spaces", "reset", "step"):
        if not hasattr(env, name):
            return f"{kind} is not a MultiAgentEnv: it has no {name}"
    for name in ("observation_spaces", "action_spaces"):
        known = dict(getattr(env, name).items())  # `in` of a Dict space asks for values
        lacking = [agent for agent in env.possible_agents if agent not in known]
        if lacking:
            return f"{name} has no space for agent {lacking[0]!r}"
    return None if env.possible_agents else f"possible_agents of {kind} is empty"


def check_multi_agent_env(env: Any, env_id: str) -> bool:
    """Reset and step ``env`` once, and check what it returns against its spaces.

    Returns:
        Whether it drew from a global generator or from its own spaces.

    Raises:
        EnvError: the environment raised, or returned something wrong.
    """

    def answered(phase: EnvPhase, call: Callable[[], Any], length: int) -> Any:
        step = -1 if phase == "reset" else 0
        try:
            answer = call()
        except RAISED as error:
            raise EnvError.from_exception(error, env_id, phase, env_step=step) from None
        problem = _answer_problem(env, answer, length)
        if problem is not None:
            raise EnvError(env_id, phase, f"{phase}() {problem}", env_step=step)
        return answer

    before = drawn_from(env)
    observations = answered("reset", lambda: env.reset(seed=0), 2)[0]
    actions = {}
    for agent in observations:
        actions[agent] = random_action(env.action_spaces[agent], observations[agent], seed=0)
    answered("step", lambda: env.step(actions), 5)
    return drawn_from(env) != before


def _answer_problem(env: Any, answer: Any, length: int) -> str | None:
    """What is wrong with the result of `reset` (2 dicts) or `step` (5 dicts); None for nothing."""
    names = ["observations", "rewards", "terminateds", "truncateds", "infos"]
    if length == 2:
        del names[1:4]
    if not (isinstance(answer, tuple | list) and len(answer) == length):
        return f"must return {length} dicts by agent: {', '.join(names)}"
    for name, part in zip(names, answer, strict=True):
        if not isinstance(part, Mapping):
            return f"must return dicts by agent, but its {name} are a {type(part).__name__}"
        known = (
            (*env.possible_agents, ALL, "__common__") if name != names[0] else env.possible_agents
        )
        strange = [agent for agent in part if agent not in known]
        if strange:
            return f"has {name} of {strange[0]!r}, which is not in possible_agents"
    for agent, observation in answer[0].items():
        problem = observation_problem(env.observation_spaces[agent], observation)
        if problem is not None:
            return f"returned a wrong observation for agent {agent!r}: {problem}"
    return None if length == 2 else _numbers_problem(*answer[1:4])


def _numbers_problem(rewards: Mapping[Agent, Any], *flags: Mapping[Agent, Any]) -> str | None:
    for agent, reward in rewards.items():
        if reward_problem(reward) is not None:
            return f"rewarded agent {agent!r} with {reward!r}, which is not a finite number"
    for name, by_agent in zip(("terminateds", "truncateds"), flags, strict=True):
        for agent, flag in by_agent.items():
            if reward_problem(flag) is not None:
                return f"has {name} of {agent!r} that are neither true nor false: {flag!r}"
    return None


class SubEnvs:
    """The sub-environments of an env runner.

    Args:
        rebuild: rebuilds the environment of the sub-environment with an index.
        offers_state: whether the environments offer their states.

    Attributes:
        parallel: whether they are in other processes, and step at the same time.
        waits: whether each step waits for all sub-environments.
    """

    parallel = False
    waits = True

    def __init__(
        self, envs: Sequence[Any], rebuild: Callable[[int], Any], *, offers_state: bool = False
    ) -> None:
        self.envs, self.rebuild, self.offers_state = list(envs), rebuild, offers_state

    def get_states(self) -> list[dict[str, Any] | None]:
        """The state of each environment; None if it is not offered."""
        return [take_state(env) if self.offers_state else None for env in self.envs]

    def set_state(self, env_index: int, state: dict[str, Any]) -> None:
        """Restore the state of an environment that has been reset."""
        give_state(self.envs[env_index], state)

    @property
    def busy(self) -> Sequence[int]:
        """Sub-environments in other processes with a step or reset under way."""
        return ()

    def begin(self, env_index: int, method: str, *arguments: Any) -> None:
        """Begin a step or reset of a sub-environment in another process, without waiting."""

    def ready(self) -> Sequence[int]:
        """The busy sub-environments whose results are to be taken now."""
        return ()

    def render(self) -> list[Any]:
        """The frames of all sub-environments."""
        return [env.render() for env in self.envs]

    def close(self) -> None:
        """Close them."""
        close_all(self.envs)
