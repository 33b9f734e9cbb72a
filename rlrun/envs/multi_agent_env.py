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
    reward_problem,
)
from rlrun.envs.env_state import give_state, offers_state, take_state
from rlrun.envs.errors import RAISED, EnvError, EnvPhase
from rlrun.envs.horizon import ALL
from rlrun.envs.wrappers import EnvWrapper

Agent = Hashable
Dicts = tuple[
    dict[Agent, Any], dict[Agent, float], dict[Agent, bool], dict[Agent, bool], dict[Agent, Any]
]


class MultiAgentEnv:
    """An environment in which agents come and go; subclass it.

    Agents with an observation act: the next `step` receives actions of exactly these agents, in
    the order in which they joined. An agent joins with its first observation. It is silent while
    it gets none, and what it is rewarded with meanwhile belongs to its last action. It leaves when
    it is terminated or truncated, and does not come back in the episode.

    Attributes:
        possible_agents: all agents that may take part in an episode.
        observation_spaces, action_spaces: space of each possible agent.
        metadata: ``render_fps`` and what else gymnasium's environments have there.
    """

    possible_agents: Sequence[Agent] = ()
    observation_spaces: Mapping[Agent, gym.Space[Any]] = {}
    action_spaces: Mapping[Agent, gym.Space[Any]] = {}
    metadata: Mapping[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Agent, Any], dict[Agent, Any]]:
        """Start an episode; observations and infos of the agents that act first."""
        raise TypeError(f"{type(self).__name__} must define reset() without the base class's")

    def step(self, actions: dict[Agent, Any]) -> Dicts:
        """Observations, rewards, terminateds, truncateds and infos, each by agent.

        The two flags also have the key ``__all__``; an agent that is not named in them goes on.
        """
        raise TypeError(f"{type(self).__name__} must define step() without the base class's")

    def render(self) -> Any:
        """A frame, or None; gymnasium's render modes."""
        return None

    def close(self) -> None:
        """Give back what the environment holds."""


class Copies(MultiAgentEnv):
    """N agents, each in a copy of a single-agent environment of its own; see `make_multi_agent`.

    Attributes:
        copies: environment of each agent.
    """

    def __init__(self, make: Callable[[], gym.Env[Any, Any]], num_agents: int) -> None:
        self.copies: dict[Agent, Any] = {f"agent_{i}": make() for i in range(num_agents)}
        self.possible_agents = list(self.copies)
        self.observation_spaces = {name: env.observation_space for name, env in self.copies.items()}
        self.action_spaces = {name: env.action_space for name, env in self.copies.items()}
        self.metadata = next(iter(self.copies.values())).metadata
        self._playing: set[Agent] = set()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Agent, Any], dict[Agent, Any]]:
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
        """Whether each copy hands out its state."""
        return all(map(offers_state, self.copies.values()))

    def get_state(self) -> dict[Agent, Any]:
        """The state of each copy, and whose episodes go on."""
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
        for env in self.copies.values():
            env.close()


def make_multi_agent(env: str | Callable[..., gym.Env[Any, Any]]) -> Callable[..., MultiAgentEnv]:
    """A multi-agent environment of independent copies of a single-agent one.

    Args:
        env: a gymnasium id, or a function that makes the environment.

    Returns:
        ``make(num_agents=2, **kwargs)``, with agents agent_0, agent_1, ...; ``kwargs`` go to each
        copy. An agent leaves when its copy's episode ends; the episode ends with the last of them.
    """

    def make(num_agents: int = 2, **kwargs: Any) -> MultiAgentEnv:
        """Copies of an environment for one agent, one for each of ``num_agents`` agents."""
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

    Wrappers are called with the environment as it was made.

    Raises:
        EnvError: phase "constructor", for every failure.
    """
    place = EnvContext(spec.kwargs) if context is None else copy.copy(context)
    where: dict[str, Any] = {"runner_index": place.worker_index, "env_index": place.vector_index}
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
        raise EnvError.from_exception(error, spec.use, "constructor", **where) from None
    env = pettingzoo_envs.adapted(env)
    problem = _missing(env)
    if problem is not None:
        raise EnvError(spec.use, "constructor", problem, **where)
    return env


def _missing(env: Any) -> str | None:
    """The reason that an environment is not a multi-agent one; None if it is one."""
    kind = f"{type(env).__module__}.{type(env).__qualname__}"
    for name in ("possible_agents", "observation_spaces", "action_spaces", "reset", "step"):
        if not hasattr(env, name):
            return f"{kind} is no MultiAgentEnv: it has no {name}"
    for name in ("observation_spaces", "action_spaces"):
        lacking = [agent for agent in env.possible_agents if agent not in getattr(env, name)]
        if lacking:
            return f"{name} has no space for agent {lacking[0]!r}"
    return None if env.possible_agents else f"possible_agents of {kind} is empty"


def check_multi_agent_env(env: Any, env_id: str, *, runner_index: int = 0) -> bool:
    """Reset and step ``env`` once; what it returns must be what it promised.

    Returns:
        Whether it drew from a global generator or from its own spaces.

    Raises:
        EnvError: naming the environment, what it was doing and what is wrong.
    """

    def answered(phase: EnvPhase, call: Callable[[], Any], length: int) -> Any:
        place: dict[str, Any] = {
            "runner_index": runner_index,
            "env_step": -1 if phase == "reset" else 0,
        }
        try:
            answer = call()
        except RAISED as error:
            raise EnvError.from_exception(error, env_id, phase, **place) from None
        problem = _answer_problem(env, answer, length)
        if problem is not None:
            raise EnvError(env_id, phase, f"{phase}() {problem}", **place)
        return answer

    before = drawn_from(env)
    observations = answered("reset", lambda: env.reset(seed=0), 2)[0]
    actions = {}
    for agent in observations:
        actions[agent] = random_action(env.action_spaces[agent], observations[agent], seed=0)
    answered("step", lambda: env.step(actions), 5)
    return drawn_from(env) != before


def _answer_problem(env: Any, answer: Any, length: int) -> str | None:
    """The fault of the return value of `reset` (2 dicts) or `step` (5); None if there is none."""
    names = ["observations", "rewards", "terminateds", "truncateds", "infos"]
    if length == 2:
        del names[1:4]
    if not (isinstance(answer, tuple | list) and len(answer) == length):
        return f"must return {length} dicts by agent: {', '.join(names)}"
    for name, part in zip(names, answer, strict=True):
        if not isinstance(part, Mapping):
            return f"must return dicts by agent, its {name} are of type {type(part).__name__}"
        known = (
            (*env.possible_agents, ALL, "__common__") if name != names[0] else env.possible_agents
        )
        strange = [agent for agent in part if agent not in known]
        if strange:
            return f"has {name} of {strange[0]!r}, who is none of possible_agents"
    for agent, observation in answer[0].items():
        problem = observation_problem(env.observation_spaces[agent], observation)
        if problem is not None:
            return f"gave agent {agent!r} something wrong: {problem}"
    return None if length == 2 else _reward_problem(answer[1])


def _reward_problem(rewards: Mapping[Agent, Any]) -> str | None:
    for agent, reward in rewards.items():
        if reward_problem(reward) is not None:
            return f"rewarded agent {agent!r} with {reward!r}, which is not a finite number"
    return None


class SubEnvs:
    """The runner's environments, as recorders of a rollout see them.

    Args:
        rebuild: makes the environment of a sub-environment again.
        offers_state: whether they hand out their states.

    Attributes:
        parallel: whether they are elsewhere, and step at the same time.
        waits: whether a step lasts until all sub-environments have made it.
    """

    parallel = False
    waits = True

    def __init__(
        self, envs: Sequence[Any], rebuild: Callable[[int], Any], *, offers_state: bool = False
    ) -> None:
        self.envs, self.rebuild, self.offers_state = list(envs), rebuild, offers_state

    def get_states(self) -> list[dict[str, Any] | None]:
        """The state of each environment, None where they do not offer it."""
        return [take_state(env) if self.offers_state else None for env in self.envs]

    def set_state(self, env_index: int, state: dict[str, Any]) -> None:
        """Have an environment, which was reset before, go on from its state."""
        give_state(self.envs[env_index], state)

    @property
    def busy(self) -> Sequence[int]:
        """Sub-environments elsewhere whose step or reset has begun and not ended."""
        return ()

    def begin(self, env_index: int, method: str, *arguments: Any) -> None:
        """Let a sub-environment that is elsewhere begin to step or to reset."""

    def ready(self) -> Sequence[int]:
        """The busy sub-environments whose results are to be taken now."""
        return ()

    def render(self) -> list[Any]:
        """The frames of all sub-environments."""
        return [env.render() for env in self.envs]

    def close(self) -> None:
        """Close them."""
        for env in self.envs:
            env.close()
