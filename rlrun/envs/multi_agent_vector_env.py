"""MultiAgentVectorEnv: steps multi-agent environments, and turns their dicts into arrays by slot.

Owns which agents take part in which episode, which action each reward belongs to, the horizon, and
the errors of dicts that contradict each other. Must not know connectors, batches or how actions are
chosen.

Rewards of an agent without observations add up; they are credited to its last action once it has an
observation again or leaves. A reward with or before an agent's first observation belongs to no
action of its own, and is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from math import ldexp
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.data.column_data import Array
from rlrun.envs.agent_slots import (
    AgentProblem,
    AgentSlot,
    Due,
    EpisodeSource,
    PlannedEpisode,
    PolicySlots,
    SlotStep,
    SubEnv,
)
from rlrun.envs.env import info_numbers, time_limits
from rlrun.envs.errors import RAISED, EnvError, EnvPhase, TooManyFailures
from rlrun.envs.horizon import ALL, Flags, Horizon, time_limit
from rlrun.envs.multi_agent_env import Dicts, SubEnvs
from rlrun.envs.rebuilder import Rebuilder
from rlrun.envs.recorded_step import AgentTransition, RecordedStep, Recorder
from rlrun.policies.policy_mapping import AgentMapping, EpisodeStart, MappingError, require_spaces

if TYPE_CHECKING:
    from rlrun.config.schema import EnvRunnersConfig

Ended = dict[int, tuple[bool, float]]
"""Episodes that ended in a step, by sub-environment: whether they terminated, and their returns."""

_MOST_SILENT_STEPS = 1000  # env steps in a row in which no agent acts
_FIVE_DICTS = (dict,) * 5
_LEFT = "after it has left; only the flag __all__ ends an episode"
_BACK = f"it has an observation {_LEFT}"


def raise_time_limits(env: Any, settings: EnvRunnersConfig) -> None:
    """Raise the time limits of an environment, or of the copies in `Copies`, to the horizon.

    Time limits within other multi-agent environments are not known.
    """
    for part in getattr(env, "copies", {"": env}).values():
        for limit in time_limits(part):
            limit._max_episode_steps = time_limit(limit._max_episode_steps, settings)


class MultiAgentVectorEnv:
    """The sub-environments of an env runner; see the module's docstring.

    Args:
        envs: the sub-environments.
        horizon: changes the flags of each step; None leaves them alone.
        rebuilder: rebuilds an environment that raised.
        recorder: called with each step.
        info_keys: keys of numbers in an agent's last info to put into its metrics.

    Attributes:
        source: plans their episodes; to be set before `begin`.
        policies: slots by policy id; may change between steps.
        failed: sub-environments that raised in the last step, which ended their episodes.
        stopped: whether the recorder has ended the rollout.
        num_steps: env steps of the last step, of all sub-environments together.
        recorded: whether there is a recorder, which receives infos as well.
    """

    def __init__(
        self,
        envs: SubEnvs,
        mapping: AgentMapping,
        env_id: str,
        *,
        horizon: Horizon | None,
        rebuilder: Rebuilder,
        recorder: Recorder | None,
        info_keys: tuple[str, ...],
    ) -> None:
        self.envs, self.mapping = envs, mapping
        self.source: EpisodeSource
        self.subs = [SubEnv(index) for index in range(len(envs.envs))]
        self.policies: dict[str, PolicySlots] = {}
        self.failed: list[int] = []
        self.stopped = False
        self.num_steps = 0
        self._idle = False  # whether a sub-environment has run all its episodes
        self._resetting: list[SubEnv] = []  # elsewhere
        self._horizon, self._recorder = horizon, recorder
        self.recorded = recorder is not None
        self._rebuilder = rebuilder
        self._env_id, self._info_keys = env_id, info_keys

    def begin(self, subs: Iterable[SubEnv]) -> dict[str, SlotStep]:
        """Begin the first episode of each sub-environment, or the next after a dropped one."""
        for sub in subs:
            self._start(sub)
        self._finish_resets()
        return self._take_steps()

    def give_up(self, sub: SubEnv) -> dict[str, list[int]]:
        """Drop the sub-environment's episode; returns the slots that took part, by policy.

        `begin` begins the next one.
        """
        slots: dict[str, list[int]] = {}
        for agent in sub.agents.values():
            if agent.slot >= 0:
                slots.setdefault(agent.policy_id, []).append(agent.slot)
                self.policies[agent.policy_id].free(agent)
        for policy_id, gone in slots.items():
            self.policies[policy_id].not_due(gone)
        self.source.given_up(sub.index)
        return slots

    def _start(self, sub: SubEnv, observations: Mapping[Any, Any] | None = None) -> None:
        """Begin the next episode, with a reset or with the observations of the one before.

        `_finish_resets` takes the observations of resets in other processes.
        """
        sub.agents, sub.actions = {}, {}
        sub.goes_on = observations is not None
        sub.episode = self.source.planned(sub.index)
        if sub.episode is None:
            self._idle = True
            return
        self.set_start(sub, sub.episode, tuple(self.policies))
        sub.step, sub.transitions, sub.total = 0, 0, 0.0
        if not sub.goes_on:  # no soft horizon makes agents act that have left
            sub.silent = 0
        if observations is None and self.envs.parallel:
            self.envs.begin(sub.index, "reset", sub.episode.reset_seed)
            self._resetting.append(sub)
        else:
            self._join_all(sub, self.reset(sub) if observations is None else observations)

    def _finish_resets(self, ready: Sequence[int] | None = None) -> None:
        """Wait for resets, of these sub-environments or of all, and let their agents join."""
        resetting, self._resetting = self._resetting, []
        for sub in resetting:
            if ready is None or sub.index in ready:
                self._join_all(sub, self.reset(sub))
            else:
                self._resetting.append(sub)

    def _join_all(self, sub: SubEnv, observations: Mapping[Any, Any]) -> None:
        for agent_id, observation in observations.items():
            self._join(sub, agent_id, observation)

    @staticmethod
    def set_start(sub: SubEnv, episode: PlannedEpisode, policies: tuple[str, ...]) -> None:
        """Prepare the policy mapping for an episode, with its own random numbers."""
        sub.start = EpisodeStart(episode.seed, policies, episode.mapping_rng)

    def reset(self, sub: SubEnv) -> Mapping[Any, Any]:
        """Reset the environment for its episode; returns the first observations, by agent."""
        assert sub.episode is not None
        while True:
            for _ in range(2):  # the second time in a new environment
                try:
                    answer = self.envs.envs[sub.index].reset(seed=sub.episode.reset_seed)
                except RAISED as error:
                    self.build_again_or_raise(sub, error, "reset")
                    continue
                if (
                    isinstance(answer, tuple | list)
                    and len(answer) == 2
                    and isinstance(answer[0], Mapping)
                ):
                    return answer[0]
                reason = "reset() must return two dicts by agent: observations and infos"
                raise self._error(sub, "reset", reason)
            sub.episode = replace(sub.episode, reset_seed=self.source.reseeded(sub.index))

    def build_again_or_raise(self, sub: SubEnv, error: BaseException, phase: EnvPhase) -> None:
        """Rebuild an environment that raised, or raise its error with its place."""
        envs, index = self.envs, sub.index
        try:
            envs.envs[index] = self._rebuilder.build(envs.rebuild, envs.envs[index], index, error)
        except TooManyFailures as why:
            raise self.raised(error, sub, phase, str(why)) from None

    @property
    def num_begun(self) -> int:
        """Env steps that are under way."""
        return len(self.envs.busy) - len(self._resetting)

    def due(self, envs: Sequence[int] | None = None) -> dict[str, Due]:
        """Slots that act next, by policy; in these sub-environments only, or in all."""
        found = {}
        for policy_id, slots in self.policies.items():
            due = slots.due if envs is None else slots.due_in(envs)
            if due.slots is not None and len(due.slots):
                found[policy_id] = due
        return found

    def step(
        self, actions: Mapping[str, tuple[Array, Any]], envs: Sequence[int] | None = None
    ) -> dict[str, SlotStep]:
        """Step these sub-environments, or all that run an episode.

        Args:
            actions: the slots that were due and their actions, as the environment takes them, by
                policy.
        """
        running = self.subs if envs is None else [self.subs[index] for index in envs]
        if self._idle and envs is None:
            running = [sub for sub in running if sub.episode is not None]
        self._take(actions)
        before = {}
        if self._recorder is not None:
            before = {sub.index: (sub.episode, sub.total) for sub in running}
        results = self._step_envs(running)
        self._credit(results)
        ended = self._update(results)
        transitions: list[AgentTransition] = []
        steps = self._take_steps(transitions if self._recorder is not None else None)
        if self._recorder is not None:
            stepped = [sub for sub, _ in results]
            shown = self._recorded(before, stepped, ended, transitions)
            self.stopped = bool(self._recorder(shown))
        return steps

    def _take(self, actions: Mapping[str, tuple[Array, Any]]) -> None:
        for policy_id, (acting, batch) in actions.items():
            slots = self.policies[policy_id]
            slots.not_due(acting)
            agents: list[Any] = slots.agents
            each = batch if slots.plain_actions else slots.each(batch, len(acting))
            for slot, action in zip(acting.tolist(), each, strict=True):
                agent = agents[slot]
                sub = self.subs[agent.env_index]
                sub.actions[agent.id] = action
                agent.taken += 1
                if self._recorder is not None:
                    # An environment may write its next observation into the same array.
                    agent.unanswered = sub.step, deepcopy(agent.observation), action

    def _step_envs(self, subs: Sequence[SubEnv]) -> list[tuple[SubEnv, Dicts]]:
        """Step the environments; returns the results of those that did not raise and are ready."""
        results: list[tuple[SubEnv, Dicts]] = []
        self.failed = []
        for sub in subs:
            # In the order of joining, as in a replay of the episode: an environment that iterates
            # over them may draw a random number for each.
            sub.actions = {name: sub.actions[name] for name in sub.agents if name in sub.actions}
            if self.envs.parallel:
                self.envs.begin(sub.index, "step", sub.actions)
        if self.envs.parallel:
            subs = self._ready()
        self.num_steps = len(subs)
        self._rebuilder.env_steps += len(subs)
        for sub in subs:
            actions, sub.actions = sub.actions, {}
            sub.silent = 0 if actions else sub.silent + 1
            try:
                dicts = self.envs.envs[sub.index].step(actions)
            except RAISED as error:
                self.build_again_or_raise(sub, error, "step")
                self.failed.append(sub.index)
                continue
            results.append((sub, dicts))
        return results

    def _ready(self) -> list[SubEnv]:
        """Sub-environments whose steps are done; agents join in those whose resets are."""
        ready, resetting = self.envs.ready(), [sub.index for sub in self._resetting]
        self._finish_resets(ready)
        return [self.subs[index] for index in ready if index not in resetting]

    def _take_steps(self, transitions: list[AgentTransition] | None = None) -> dict[str, SlotStep]:
        """The step as arrays, by policy, of those whose agents were updated."""
        steps = {}
        for policy_id, slots in self.policies.items():
            try:
                taken = slots.take_step()
            except AgentProblem as problem:
                raise self.fault(problem.agent, problem.reason, problem.step) from None
            if taken is None:
                continue
            steps[policy_id] = taken[0]
            if transitions is not None:
                transitions += self._completed(*taken)
        return steps

    def _credit(self, results: list[tuple[SubEnv, Dicts]]) -> None:
        """Credit rewards to the agents that have acted."""
        for sub, dicts in results:
            # This runs in every step of a sub-environment, so it calls no functions of rlrun.
            if not (
                isinstance(dicts, tuple | list)
                and len(dicts) == 5
                and all(map(isinstance, dicts, _FIVE_DICTS))
            ):
                five = "observations, rewards, terminateds, truncateds and infos"
                reason = f"step() must return five dicts by agent: {five}"
                raise self._error(sub, "step", reason)
            for agent_id, reward in dicts[1].items():
                agent = sub.agents.get(agent_id)
                if agent is None:
                    continue  # it has not acted yet
                if agent.slot >= 0:
                    try:
                        # The sum of many float32 is off; `float` would read text.
                        exact = ldexp(reward, 0)
                    except (TypeError, ValueError):
                        reason = f"its reward is {reward!r}, which is not a number"
                        raise self.fault(agent, reason) from None
                    agent.credit += exact
                    agent.total += exact
                    sub.total += exact
                elif reward:
                    raise self.fault(agent, f"it is rewarded with {reward} {_LEFT}")

    def _update(self, results: list[tuple[SubEnv, Dicts]]) -> Ended:
        """Update agents by observations and flags; returns the episodes that ended."""
        ended: Ended = {}
        for sub, dicts in results:
            sub.step += 1
            agents = sub.agents
            terminateds: Flags = dicts[2]
            truncateds: Flags = dicts[3]
            staying: Mapping[Any, Any] = dicts[0]
            passed = False
            if self._horizon is not None:
                terminateds, truncateds, passed = self._horizon.flags_by_agent(
                    sub.step, terminateds, truncateds
                )
            if passed or True in terminateds.values() or True in truncateds.values():
                flagged = dicts[0], dicts[1], terminateds, truncateds, dicts[4]
                staying = self._let_go(sub, flagged, ended, passed=passed)
            num_agents = len(agents)
            for agent_id, observation in staying.items():
                agent = agents.get(agent_id)
                if agent is None:
                    self._join(sub, agent_id, observation)
                    continue
                if agent.slot < 0:
                    raise self.fault(agent, _BACK, sub.step - 1)
                slots = self.policies[agent.policy_id]
                info = dicts[4].get(agent_id, {}) if slots.wants_infos else None
                slots.staying.append((agent, agent.slot, agent.credit, sub.step, observation, info))
                agent.observation, agent.credit = observation, 0.0
            sub.transitions += len(staying) - (len(agents) - num_agents)  # none of those that join
            if sub.silent > _MOST_SILENT_STEPS:
                reason = (
                    f"no agent has acted for {sub.silent} steps; set '{ALL}' to end the episode"
                )
                raise self._error(sub, "step", reason)
        if self._resetting and self.envs.waits:
            self._finish_resets()
        return ended

    def _join(self, sub: SubEnv, agent_id: Any, observation: Any) -> None:
        assert sub.start is not None
        assert sub.episode is not None
        phase: EnvPhase = "step" if sub.step else "reset"
        try:
            there = tuple(filter(self.policies.__contains__, sub.start.policies))
            policy_id = self.mapping.policy_of(agent_id, replace(sub.start, policies=there))
            slots = self.policies[policy_id]
            env = self.envs.envs[sub.index]
            if agent_id not in env.possible_agents:
                raise MappingError(f"agent {agent_id!r} is not one of the env's possible agents")
            spaces = env.observation_spaces[agent_id], env.action_spaces[agent_id]
            compared = *spaces, *slots.spaces
            # Tuples take objects for equal that are the same, and call no `__eq__` then.
            if sub.suited.get((agent_id, policy_id)) != compared:
                require_spaces(agent_id, policy_id, spaces, slots.spaces)
                sub.suited[agent_id, policy_id] = compared
        except MappingError as error:
            raise self._error(sub, phase, str(error), sub.step - 1) from None
        agent = self.new_agent(sub, agent_id, policy_id)
        agent.observation = observation
        slots.take(agent)
        slots.joined.append(agent)
        # Infos are of transitions, and an agent that joins has none.
        slots.staying.append((agent, agent.slot, 0.0, sub.step, observation, {}))

    def new_agent(self, sub: SubEnv, agent_id: Any, policy_id: str) -> AgentSlot:
        """Add an agent to the episode; it has no slot yet."""
        assert sub.episode is not None
        possible = list(self.envs.envs[sub.index].possible_agents)
        agent = AgentSlot(
            agent_id,
            len(sub.agents),
            sub.index,
            sub.episode.episode_id,
            sub.episode.seed,
            possible.index(agent_id) if agent_id in possible else -1,
            policy_id,
        )
        sub.agents[agent_id] = agent
        return agent

    def _let_go(self, sub: SubEnv, dicts: Any, ended: Ended, *, passed: bool) -> Mapping[Any, Any]:
        """Let agents leave; returns the observations of those that stay.

        Args:
            passed: whether a soft horizon has passed: all leave, and those with an observation
                join again.
        """
        observations, _, terminateds, truncateds, infos = dicts
        of_all = bool(terminateds.get(ALL, False)), bool(truncateds.get(ALL, False))
        named = {name for flags in (terminateds, truncateds) for name in flags if flags[name]}
        over = any(of_all)
        for agent_id, agent in sub.agents.items():
            if agent.slot < 0:
                if agent_id in observations:
                    raise self.fault(agent, _BACK, sub.step - 1)
                continue
            if not (over or passed or agent_id in named):
                continue
            own = bool(terminateds.get(agent_id, False)), bool(truncateds.get(agent_id, False))
            slots = self.policies[agent.policy_id]
            seen, info = observations.get(agent_id), infos.get(agent_id, {})
            if info:
                self._add_numbers(sub, agent, info)
            if over:  # the reset that follows may write into the same arrays
                seen, info = deepcopy(seen), deepcopy(info) if slots.wants_infos else info
            slots.leaving.append((agent, agent.slot, agent.credit, sub.step, seen, info))
            # The flags of all hold for agents without flags of their own.
            slots.flags.append(own if any(own) else of_all)
            agent.credit = 0.0
            sub.transitions += 1
        if over:
            ended[sub.index] = of_all[0], sub.total
            self._end(sub)
            return {}
        staying = {name: seen for name, seen in observations.items() if name not in named}
        if passed:
            ended[sub.index] = False, sub.total
            self._end(sub, go_on_with=staying)
            return {}
        return staying

    def _add_numbers(self, sub: SubEnv, agent: AgentSlot, info: Mapping[str, Any]) -> None:
        """Add the numbers in the last info of an agent that leaves to its metrics."""
        try:
            agent.metrics = info_numbers(info, self._info_keys)
        except ValueError as problem:
            reason = f"agent {agent.id!r}: {problem}"
            raise self._error(sub, "step", reason, sub.step - 1) from None

    def _end(self, sub: SubEnv, go_on_with: Mapping[Any, Any] | None = None) -> None:
        if not sub.agents and not sub.goes_on:
            reason = "the episode ended before any agent had an observation"
            raise self._error(sub, "step", reason, sub.step - 1)
        self._rebuilder.proven = True
        self.source.ended(sub, goes_on=go_on_with is not None)
        # Slots of those that leave are still theirs: the next episode's agents take others.
        self._start(sub, go_on_with)

    def _completed(
        self, step: SlotStep, agents: Sequence[AgentSlot], observations: Sequence[Any]
    ) -> Iterable[AgentTransition]:
        """The transitions that a step has completed."""
        for i, (agent, obs) in enumerate(zip(agents, observations, strict=True)):
            if agent.unanswered is None:
                continue
            (t, seen, action), agent.unanswered = agent.unanswered, None
            yield AgentTransition(
                episode=agent.episode_id,
                agent=agent.id,
                policy_id=agent.policy_id,
                step=t,
                obs=seen,
                action=action,
                next_obs=seen if obs is None else obs,
                reward=float(step.rewards[i]),
                terminated=bool(step.terminateds[i]),
                truncated=bool(step.truncateds[i]),
                info=(step.infos or {}).get(i, {}),
            )

    def _recorded(
        self,
        before: Mapping[int, tuple[PlannedEpisode | None, float]],
        stepped: Sequence[SubEnv],
        ended: Ended,
        transitions: list[AgentTransition],
    ) -> RecordedStep:
        """The step in the form for recorders."""
        numbers: list[int | None] = [None] * len(self.subs)
        rewards = np.zeros(len(numbers))
        flags = np.zeros((2, len(numbers)), np.bool_)
        for sub in stepped:
            episode, total = before[sub.index]
            numbers[sub.index] = None if episode is None else episode.episode_id
            terminated, after = ended.get(sub.index, (False, sub.total))
            rewards[sub.index] = after - total
            if sub.index in ended:
                flags[0 if terminated else 1, sub.index] = True
        running = {index: before[index][0] for index in self.failed}
        dropped = {index: each.episode_id for index, each in running.items() if each is not None}
        seen = None, None, None, rewards, flags[0], flags[1]
        return RecordedStep(*seen, numbers, agents=transitions, dropped=dropped)

    def fault(self, agent: AgentSlot, reason: str, step: int | None = None) -> EnvError:
        """The error to raise for an agent's wrong observation or reward."""
        reason = f"agent {agent.id!r} of policy {agent.policy_id!r}: {reason}"
        return self._error(self.subs[agent.env_index], "observation", reason, step)

    def _error(
        self, sub: SubEnv, phase: EnvPhase, reason: str, step: int | None = None
    ) -> EnvError:
        if step is None:
            step = -1 if phase == "reset" else sub.step
        return EnvError(self._env_id, phase, reason, env_index=sub.index, env_step=step)

    def raised(
        self, error: BaseException, sub: SubEnv, phase: EnvPhase, note: str = ""
    ) -> EnvError:
        """The error to raise for an exception of the environment."""
        step = -1 if phase == "reset" else sub.step
        place = {"env_index": sub.index, "env_step": step}
        return EnvError.from_exception(error, self._env_id, phase, **place, note=note)
