"""AgentEnvs: sub-environments with several agents, which come and go, as slots of their policies.

Owns their episodes, the length of fragments, and the state from which episodes are resumed. Must
not know how actions are chosen; the policies' actors receive the steps of their slots.
`MultiAgentVectorEnv` converts between the dicts of environments and arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space, iterate

from rlrun.data.column_data import Array
from rlrun.data.seeding import other_seed
from rlrun.envs.agent_slots import (
    Due,
    EpisodeSource,
    PlannedEpisode,
    PolicySlots,
    SlotStep,
    SubEnv,
)
from rlrun.envs.errors import EnvError
from rlrun.envs.multi_agent_vector_env import MultiAgentVectorEnv
from rlrun.policies.policy_mapping import Spaces
from rlrun.sampling.episode_replay import (
    AgentReplay,
    Observations,
    RecordedEpisode,
    has_policies,
    log_replay,
)
from rlrun.sampling.episodes import AgentEpisodes
from rlrun.sampling.policy_actor import PolicyActor


class AgentEnvs(EpisodeSource):
    """Sub-environments with several agents, as slots of their policies.

    Args:
        env: the environments, whose `EpisodeSource` is this object.
        whole_episodes: whether fragments consist of whole episodes.
        count_agent_steps: whether the length of fragments is in agent steps, not env steps.

    Attributes:
        needs_finish: whether `finish_step` must be called after this step.
        started: whether the first episodes have begun.
    """

    def __init__(
        self,
        env: MultiAgentVectorEnv,
        episodes: AgentEpisodes,
        env_id: str,
        *,
        runner_index: int = 0,
        whole_episodes: bool = False,
        count_agent_steps: bool = False,
    ) -> None:
        self.episodes = episodes
        self._recorded: list[list[RecordedEpisode]] = [[] for _ in range(episodes.num_envs)]
        self._goes_on = [False] * episodes.num_envs
        self.env, env.source = env, self
        self._replay = AgentReplay(self.env, episodes.plan)
        self.started = self.needs_finish = False
        self._env_id, self._runner_index = env_id, runner_index
        self._whole_episodes, self._count_agent_steps = whole_episodes, count_agent_steps
        self._only: list[int] | None = None  # sub-environments to step next; None for all
        # Env steps and transitions of each episode before this fragment, and of the fragment.
        self._earlier = [(0, 0)] * episodes.num_envs
        self._env_steps = self._agent_steps = 0

    def set_policies(
        self,
        spaces: Mapping[str, Spaces],
        actors: Mapping[str, PolicyActor],
        stay: Collection[str] = (),
    ) -> list[SubEnv]:
        """Have slots for exactly these policies.

        Args:
            actors: of the policies so far.
            stay: those of them that keep their slots.

        Returns:
            Sub-environments whose episodes are given up because the policy of an agent is gone.
            `begin_again` begins their next ones.
        """
        before = self.env.policies
        gone = before.keys() - stay
        left = [
            sub
            for sub in self.env.subs
            if any(agent.policy_id in gone for agent in sub.agents.values())
        ]
        for sub in left:
            self._give_up(sub, actors)
        self.env.policies = {
            policy_id: before[policy_id] if policy_id in stay else PolicySlots(spaces[policy_id])
            for policy_id in spaces
        }
        return left

    def begin_again(self, subs: Iterable[SubEnv], actors: Mapping[str, PolicyActor]) -> None:
        """Begin the next episodes of sub-environments whose episodes were given up."""
        for sub in subs:
            self._observe(self.env.begin([sub]), actors)

    def planned(self, env_index: int) -> PlannedEpisode | None:
        episode = self.episodes.planned(env_index)
        if episode is not None:
            recorded = self._recorded[env_index]
            if not self._goes_on[env_index]:
                recorded.clear()
            before = recorded[-1].since_reset if recorded else 0
            number = int(self.episodes.number[env_index])
            recorded.append(RecordedEpisode(number, episode.episode_id, before))
            self._earlier[env_index] = 0, 0
        return episode

    def ended(self, sub: SubEnv, *, goes_on: bool) -> None:
        self._note(sub)
        self._goes_on[sub.index] = goes_on
        self.episodes.ended(sub, goes_on=goes_on)

    def given_up(self, env_index: int) -> None:
        self._goes_on[env_index] = False
        self.episodes.given_up(env_index)

    def reseeded(self, env_index: int) -> int:
        seeds = self.episodes.seeds
        seeds[env_index] = other_seed(seeds[env_index])
        return seeds[env_index]

    def _note(self, sub: SubEnv) -> list[RecordedEpisode]:
        """Update and return the recorded episodes since the last reset, the running one last.

        Once there are too many actions to repeat, only the running one, without actions.
        """
        recorded = self._recorded[sub.index]
        running = recorded[-1]
        running.steps = sub.step
        if sub.start is not None:
            running.known = list(sub.start.policies)
            running.mapping_rng = sub.start.rng.bit_generator.state
        running.policies = [agent.policy_id for agent in sub.agents.values()]
        if running.since_reset > self.episodes.max_replayed:
            del recorded[:-1]
            running.actions = {}
        return recorded

    @property
    def due(self) -> dict[str, Due]:
        """The slots that act next, by policy id."""
        return self.env.due(self._only)

    @property
    def stopped(self) -> bool:
        """Whether the recorder has ended the rollout."""
        return self.env.stopped

    def step(self, actions: Mapping[str, Any]) -> dict[str, SlotStep]:
        """Step the sub-environments; returns the results by policy id."""
        steps = self.env.step(actions, self._only)
        self.needs_finish = bool(self.env.failed)
        self._env_steps += self.env.num_steps
        if self._count_agent_steps:
            self._agent_steps += sum(step.num_transitions for step in steps.values())
        return steps

    def observation_error(self, policy_id: str, due: Due, row: int, reason: str) -> EnvError:
        """See `SlotEnvs`."""
        assert due.slots is not None
        agent = self.env.policies[policy_id].agents[due.slots[row]]
        assert agent is not None
        return self.env.fault(agent, reason, int(due.steps[row]))

    def finish_step(self, actors: Mapping[str, PolicyActor]) -> None:
        """Give up the episodes of environments that raised, and begin the next ones."""
        for env_index in self.env.failed:
            sub = self.env.subs[env_index]
            self.episodes.num_failed += 1
            env_steps, agent_steps = self._earlier[env_index]
            self._env_steps -= 1 + sub.step - env_steps  # with the one that has raised
            self._agent_steps -= sub.transitions - agent_steps
            self._give_up(sub, actors)
            self._observe(self.env.begin([sub]), actors)

    def _give_up(self, sub: SubEnv, actors: Mapping[str, PolicyActor]) -> None:
        episode_id = int(self.episodes.ids[sub.index])
        slots = self.env.give_up(sub)
        for policy_id, actor in actors.items():
            actor.drop(np.array(slots.get(policy_id, []), np.int64), episode_id)

    @staticmethod
    def _observe(steps: Mapping[str, SlotStep], actors: Mapping[str, PolicyActor]) -> None:
        for policy_id, step in steps.items():
            actors[policy_id].observe(step)

    def begin_fragment(self, actors: Mapping[str, PolicyActor]) -> None:
        """Begin to count the steps of a fragment, and the first episodes if none are running."""
        for policy_id, actor in actors.items():
            wants_infos = actor.wants_infos or self.env.recorded
            self.env.policies[policy_id].wants_infos = wants_infos
        self.episodes.begin_fragment()
        self._earlier = [(sub.step, sub.transitions) for sub in self.env.subs]
        self._env_steps = self._agent_steps = 0
        if not self.started:
            self.started = True
            self._observe(self.env.begin(self.env.subs), actors)

    def collect(
        self, step: Callable[[], None], actors: Mapping[str, PolicyActor], length: int
    ) -> tuple[int, int]:
        """Step until the fragment is full; returns its env steps, and vector steps.

        Args:
            length: env steps for each sub-environment, or agent steps (`count_agent_steps`).
        """
        num_envs, wanted = self.episodes.num_envs, length * self.episodes.num_envs
        by_agent = self._count_agent_steps
        rounds = 0
        while True:
            busy = self.env.envs.busy if self.env.envs.parallel else ()
            self._only = [i for i in range(num_envs) if i not in busy] if busy else None
            if self._whole_episodes:
                done = self.episodes.agent_steps if by_agent else self.episodes.env_steps
                enough = done >= wanted
            elif by_agent:
                enough = self._agent_steps >= wanted
            else:
                left = wanted - self._env_steps - (self.env.num_begun if busy else 0)
                enough = left <= 0
                if left < num_envs:  # where episodes had to be dropped, or not all step together
                    free = range(num_envs) if self._only is None else self._only
                    self._only = list(free[:left])
            if enough and not busy:
                self._only = None
                return self.episodes.env_steps if self._whole_episodes else self._env_steps, rounds
            if enough:
                self._only = []
            step()
            rounds += 1

    def end_fragment(self, actors: Mapping[str, PolicyActor]) -> None:
        """Record the actions of the running episodes, which go on in the next fragment."""
        for actor in actors.values():
            taken = actor.newly_taken()
            if taken is not None:
                self._record(*taken)
        for sub in self.env.subs:
            self._note(sub)

    def _record(self, places: Array, steps: Array, actions: Array) -> None:
        order = np.lexsort(places.T)  # stable: each agent's stay in their order
        places, steps, actions = places[order], steps[order], actions[order]
        cuts = np.flatnonzero(np.any(np.diff(places, axis=0), axis=1)) + 1
        parts = (np.split(column, cuts) for column in (places, steps, actions))
        for at, *taken in zip(*parts, strict=True):
            env_index, agent, episode_id = at[0].tolist()
            for episode in self._recorded[env_index]:
                if episode.episode_id == episode_id:
                    episode.actions.setdefault(agent, []).append((taken[0], taken[1]))

    @property
    def running(self) -> frozenset[int]:
        """Ids of the running episodes."""
        return frozenset(self.episodes.ids.tolist())

    @property
    def longest_episode(self) -> int:
        """Env steps of the longest running episode."""
        return max(sub.step for sub in self.env.subs)

    @property
    def is_replayed(self) -> bool:
        """Whether environments are restored by repeating the actions of their episodes."""
        return not self.env.envs.offers_state

    def agent_name(self, episode_id: int, index: int) -> Any:
        """The name of an agent, of a running episode or one that ended in this fragment."""
        if episode_id in self.episodes.agents:
            return self.episodes.agents[episode_id][index]
        env_index = self.episodes.ids.tolist().index(episode_id)
        return list(self.env.subs[env_index].agents)[index]

    def get_state(self, actors: Mapping[str, PolicyActor]) -> dict[str, Any]:
        """The state of environments and episodes between fragments, as numbers and arrays."""
        state: dict[str, Any] = {"started": self.started, "episodes": self.episodes.get_state()}
        if not self.started:
            return state
        offered = self.env.envs.get_states()
        state["envs"] = [
            {**self._env_state(sub), "own": own}
            for sub, own in zip(self.env.subs, offered, strict=True)
        ]
        state["due"] = {}
        for policy_id, slots in self.env.policies.items():
            assert slots.due.slots is not None
            seen = [slots.at(slot).observation for slot in slots.due.slots.tolist()]
            raw, observations = slots.stack(seen) if seen else None, actors[policy_id].observations
            state["due"][policy_id] = {
                "slots": slots.due.slots,
                "steps": slots.due.steps,
                "unfiltered": observations.preprocess(raw) if seen else None,
                "raw": raw if self.env.envs.offers_state else None,
            }
        return state

    def _env_state(self, sub: SubEnv) -> dict[str, Any]:
        recorded = self._note(sub)
        agents = list(sub.agents.values())
        return {
            "step": sub.step,
            "total": sub.total,
            "silent": sub.silent,
            "goes_on": sub.goes_on,
            "recorded": [episode.get_state() for episode in recorded],
            "credits": np.array([agent.credit for agent in agents], np.float64),
            "totals": np.array([agent.total for agent in agents], np.float64),
            "taken": np.array([agent.taken for agent in agents], np.int64),
            "slots": np.array([agent.slot for agent in agents], np.int64),
            "metrics": [agent.metrics for agent in agents],
            "unanswered": [agent.unanswered for agent in agents],
            "positions": np.array([agent.position for agent in agents], np.int64),
        }

    def set_state(
        self,
        state: Mapping[str, Any],
        actors: Mapping[str, PolicyActor],
        actor_states: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Restore a state from `get_state`.

        Each environment is reset with the seed of its episode, and given back its state or repeats
        the actions. Where it then returns other observations than before, or its episode is too
        long, a fresh episode begins.

        Args:
            actor_states: of those actors that there were.
        """
        known = {policy_id: actors[policy_id] for policy_id in actor_states}
        self.episodes.set_state(state["episodes"])
        self.started = bool(state["started"])
        if not self.started:  # connectors may have a state all the same
            for policy_id, actor in known.items():
                actor.set_state(actor_states[policy_id])
            return
        seen: Observations = {}
        diverged: set[int] = set()
        for sub, env_state in zip(self.env.subs, state["envs"], strict=True):
            seen |= self._restore(sub, env_state, known, diverged)
        for policy_id, slots in self.env.policies.items():
            if policy_id not in known:
                continue
            agents = [
                agent
                for sub in self.env.subs
                for agent in sub.agents.values()
                if agent.policy_id == policy_id and agent.slot >= 0
            ]
            slots.restore(agents)
            seen |= self._saved(slots, state["due"][policy_id])
            actors[policy_id].set_state(actor_states[policy_id], agents)
            diverged |= self._see_again(slots, state["due"][policy_id], seen, actors[policy_id])
        pairs = zip(self._recorded, state["envs"], strict=True)
        lengths = [0 if self._has_state(one) else parts[-1].since_reset for parts, one in pairs]
        warned = [i for i in sorted(diverged) if has_policies(self._recorded[i], known)]
        log_replay(self.episodes, warned, lengths, self._env_id, self._runner_index)
        for env_index in sorted(diverged):
            sub = self.env.subs[env_index]
            self._give_up(sub, actors)
            self._observe(self.env.begin([sub]), actors)

    def _saved(self, slots: PolicySlots, state: Mapping[str, Any]) -> Observations:
        """Raw observations in the state of agents that act next; empty if they are replayed."""
        if not self.env.envs.offers_state or state["raw"] is None:
            return {}
        due = [slots.at(slot) for slot in np.asarray(state["slots"]).tolist()]
        rows = iterate(batch_space(slots.spaces[0], len(due)), state["raw"])
        return {(one.env_index, one.index): raw for one, raw in zip(due, rows, strict=True)}

    def _see_again(
        self, slots: PolicySlots, state: Mapping[str, Any], seen: Observations, actor: PolicyActor
    ) -> set[int]:
        """Make the slots of a state due again; returns sub-environments that observe differently.

        Args:
            state: the slots that were due, and their preprocessed observations.
            seen: raw observations in the restored sub-environments.
        """
        slots.due = Due(np.asarray(state["slots"]), np.asarray(state["steps"]))
        diverged = set()
        for i, slot in enumerate(np.asarray(state["slots"]).tolist()):
            agent = slots.at(slot)
            place = agent.env_index, agent.index
            agent.observation = seen.get(place)
            if place not in seen:
                diverged.add(agent.env_index)
                continue
            found = actor.observations.preprocess(slots.stack([seen[place]]))[0]
            if not np.array_equal(found, state["unfiltered"][i]):
                diverged.add(agent.env_index)
        return diverged

    def _restore(
        self,
        sub: SubEnv,
        state: Mapping[str, Any],
        actors: Mapping[str, PolicyActor],
        diverged: set[int],
    ) -> Observations:
        """Restore a sub-environment; returns raw observations of agents that act next."""
        plan, index = self.episodes.plan, sub.index
        recorded = [
            RecordedEpisode.from_state(one, plan.episode_id(index, int(one["number"])))
            for one in state["recorded"]
        ]
        self._recorded[index] = recorded
        sub.episode = self.episodes.planned(index)
        policies, sub.agents = recorded[-1].policies, {}
        seen: Observations = {}
        # No replay if it would take too long, or a policy is gone, and the episode with it.
        known = has_policies(recorded, actors)
        if known and self._has_state(state):
            self._replay.set_state(sub, recorded[-1], state)
        elif known and recorded[-1].since_reset <= self.episodes.max_replayed:
            seen = self._replay.repeat(sub, recorded, actors)
        if len(sub.agents) < len(policies):  # they did not join again
            diverged.add(index)
        # Missing agents are filled in, since the state has a row of each; the episode is given up.
        for i in range(len(sub.agents), len(policies)):
            self.env.new_agent(sub, ("gone", i), policies[i])
        sub.step, sub.silent = int(state["step"]), int(state["silent"])
        sub.total, sub.goes_on = float(state["total"]), bool(state["goes_on"])
        self._goes_on[index] = sub.goes_on
        for agent, credit, total, taken, slot, metrics, unanswered in zip(
            sub.agents.values(),
            *(np.asarray(state[name]).tolist() for name in ("credits", "totals", "taken", "slots")),
            state["metrics"],
            state.get("unanswered") or [None] * len(sub.agents),  # older checkpoints lack it
            strict=True,
        ):
            agent.credit, agent.total, agent.taken = credit, total, taken
            agent.slot = slot if agent.policy_id in actors else -1  # it went with its policy
            agent.metrics, agent.unanswered = dict(metrics), unanswered
        return seen

    def _has_state(self, state: Mapping[str, Any]) -> bool:
        """Whether the environment is given back its own state, without a replay."""
        return self.env.envs.offers_state and state["own"] is not None
