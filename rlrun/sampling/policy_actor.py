"""PolicyActor: one policy in an env runner, which acts for all its slots with one forward pass.

Owns what belongs to the policy there: its connectors, its inputs, its action noise and its
collector. Must not know environments: it receives the steps of its slots (`agent_slots`).

    B  slots that act together    S  all slots    k  slots of a call
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from rlrun.config.schema import EnvRunnersConfig
from rlrun.data import columns as col
from rlrun.data.column_data import Array, pick
from rlrun.data.nested import row_form
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.seeding import agent_noise
from rlrun.envs.agent_slots import AgentSlot, Due, SlotStep
from rlrun.sampling.action_noise import ActionNoise
from rlrun.sampling.policy_inputs import PolicyInputs
from rlrun.sampling.runner_connectors import RunnerConnectors
from rlrun.sampling.sample_collector import NO_EXTRAS, make_collector

NoiseKeys = Callable[[int], "np.random.Generator | None"]
"""The generator of an episode's noise, by the episode's number."""


class PolicyActor:
    """Acts for the slots of one policy, and keeps their steps.

    Args:
        connectors: between the environments and the policy.
        settings: of the env runners; they name the collector of the policy's steps.
        num_slots: B; None where slots come and go.
        every_step_counts: see `SampleCollector`.
        num_agents: possible agents of a sub-environment; custom connectors have a slot for each.
        noise_keys: seeds the action noise by episode; None: by fragment.

    Attributes:
        explore: sample actions, or take the best ones.
        collects: whether steps are collected, and statistics of observations and rewards updated.
        converts: whether `to_env` does something.
        noise_of_episodes: whether `begin_noise` does something.
        wants_infos: whether the policy has a view of infos.
    """

    def __init__(
        self,
        connectors: RunnerConnectors,
        settings: EnvRunnersConfig,
        *,
        num_slots: int | None,
        every_step_counts: bool = True,
        num_agents: int = 1,
        explore: bool = True,
        noise_keys: NoiseKeys | None = None,
        collects: bool = True,
    ) -> None:
        self.connectors, self.policy = connectors, connectors.policy
        self.observations, self.actions = connectors.observations, connectors.actions
        self.explore, self.collects = explore, collects
        self.noise = ActionNoise(self.policy, collects=collects)
        self.inputs = PolicyInputs(self.policy)
        self.collector = make_collector(
            settings,
            self.observations.output_space,
            num_slots,
            every_step_counts=every_step_counts,
            collects=collects,
        )
        self._num_slots, self._num_agents, self._noise_keys = num_slots, num_agents, noise_keys
        lasts = self.policy.noise_correlation > 0 or self.policy.noise_steps != 1
        self.noise_of_episodes = noise_keys is not None or lasts
        self._history = connectors.history
        # Connectors that change nothing are not called in every step.
        self._filter = None if self.observations.identity else self.observations
        self._rewards = None if connectors.rewards.identity else connectors.rewards
        self.converts = not (self._history is None and self.actions.identity)
        self._pending: tuple[Any, Mapping[str, Array]] = None, NO_EXTRAS
        self._returns = np.zeros(0)  # [S] discounted rewards so far, for their normalisation
        self._custom_slots = np.zeros(0, np.int64)  # [S] of custom connectors
        self._unanswered: dict[int, Any] = {}  # by slot of custom connectors, actions
        self._sent: list[Array] = []  # what custom connectors made of actions, where all act
        self._computed = frozenset[str]()  # names of the policy's `fragment_columns`
        self._taken: list[tuple[Array, Array, Array]] = []  # [k, 3] places, [k] steps, actions
        self._resize(num_slots or 0)
        self._look_at_views()

    def _look_at_views(self) -> None:
        self.wants_infos = col.INFOS in self.inputs.rows
        self.collector.set_views(self.inputs.views, self.inputs.rows)

    def _resize(self, slots: int) -> None:
        self._returns = np.append(self._returns, np.zeros(slots - len(self._returns)))
        first = len(self._custom_slots)
        added = np.arange(first, slots) if self._num_slots is not None else np.zeros(slots - first)
        self._custom_slots = np.append(self._custom_slots, added.astype(np.int64))
        self.noise.resize(slots)

    def act(self, due: Due) -> Any:
        """Choose the actions ``[k, ...]`` of slots that are due, after custom connectors."""
        slots, collector = due.slots, self.collector
        noise = self.noise.next(slots) if self.explore else None
        if self.inputs.views is None:
            seen = collector.obs if slots is None else collector.inputs(slots)
            actions, _, extras = self.policy.compute_actions(
                seen, explore=self.explore, noise=noise
            )
        else:
            seen = collector.inputs(slots)
            actions, extras = self.inputs.act(seen, explore=self.explore, noise=noise)
        if self.noise.parameters is not None:
            self.noise.parameters.seen = seen
        rows = self._num_slots if slots is None else len(slots)
        if len(actions) != rows:  # numpy might broadcast them, or environments be blamed
            name = f"{type(self.policy).__name__}.compute_actions()"
            raise ValueError(f"{name} was given {rows} rows and returned {len(actions)} actions")
        if slots is None:
            self._pending = actions, extras
        else:
            actions = np.asarray(actions)
            collector.act(slots, actions, extras)
        if self._history is not None:
            actions = self._customised(actions, slots)
        if slots is not None:
            self._taken.append((collector.places[slots], due.steps, actions))
        return actions

    def _customised(self, actions: Array, slots: Array | None) -> Array:
        actions = np.asarray(actions)
        if slots is not None:
            custom_slots = self._custom_slots[slots]
            self._unanswered.update(zip(custom_slots.tolist(), actions, strict=True))
            return self.actions.customised(actions, custom_slots)
        sent = self.actions.customised(actions, self._custom_slots)
        if self.collects:
            self._sent.append(sent)
        return sent

    def to_env(self, actions: Any) -> Any:
        """The environments' own actions, batched, for those that `act` returned."""
        if self._history is not None:
            return self.actions.send(actions)
        return actions if self.actions.identity else self.actions(actions)

    def observe(self, step: SlotStep) -> None:
        """Complete transitions with the results of a step, and note the next observations."""
        slots = step.slots
        if step.joined:
            self._join(step.joined)
        learned = None if self._rewards is None else self._learned_rewards(step)
        if self._history is not None:
            self._advance_custom(step)
        obs = step.observations
        if self._filter is not None and len(obs):
            if self._history is None or slots is None:
                learns = self.collects if step.fresh is None else step.fresh & self.collects
                obs = self._filter(obs, update=learns)
            else:
                obs = self._see(step, slots)
        if slots is None:
            self.collector.add_step(step, obs, learned, *self._pending)
            return
        if not step.joined:
            self.collector.add_step(step, obs, learned)
        else:
            self._complete_and_begin(step, obs, learned)
        if step.num_staying < len(slots):
            self.collector.end_episodes(slots[step.num_staying :])

    def _complete_and_begin(self, step: SlotStep, obs: Any, learned: Array | None) -> None:
        """Complete transitions of the agents that have acted; the others begin."""
        assert step.acted is not None
        sees = step.acted if step.observed is None else step.acted[step.observed]
        if step.acted.any():
            rewards = None if learned is None else learned[step.acted]
            self.collector.add_step(step.completed(), obs[sees], rewards)
        agents = np.array([(a.slot, a.env_index, a.index, a.episode_id) for a in step.joined])
        self.collector.begin_episodes(agents[:, 0], agents[:, 3], obs[~sees], agents[:, 1:3])

    def _join(self, agents: Collection[AgentSlot]) -> None:
        """Give these agents their slots."""
        for agent in agents:
            if agent.slot >= len(self._returns):
                self._resize(max(agent.slot + 1, 2 * len(self._returns)))
            self._returns[agent.slot] = 0.0
            self._custom_slots[agent.slot] = agent.env_index * self._num_agents + agent.position
            rng = agent_noise(agent.episode_seed, agent.index)
            self.noise.begin_episode(agent.slot, rng, agent.taken)

    def _learned_rewards(self, step: SlotStep) -> Array:
        """The rewards ``[k]`` that are learned from: clipped or normalised."""
        assert self._rewards is not None
        slots: Any = slice(None) if step.slots is None else step.slots
        returns = self._returns[slots]
        learned = self._rewards(
            step.rewards,
            step.terminateds,
            step.truncateds,
            returns,
            valid=step.valid if step.slots is None else step.acted,
            update=self.collects,
        )
        self._returns[slots] = returns
        return learned

    def _advance_custom(self, step: SlotStep) -> None:
        assert self._history is not None
        if step.slots is None:
            actions, valid = np.asarray(self._pending[0]), step.valid
            self._history.advance(actions, step.rewards, valid, self._custom_slots)
            return
        acted: Any = slice(None) if step.acted is None else step.acted
        custom_slots = self._custom_slots[step.slots[acted]]
        if len(custom_slots):
            actions = np.stack([self._unanswered[slot] for slot in custom_slots.tolist()])
            self._history.advance(actions, step.rewards[acted], None, custom_slots)

    def _see(self, step: SlotStep, slots: Array) -> Any:
        """The observations after custom connectors."""
        pipeline: Any = self.observations
        observed: Any = slice(None) if step.observed is None else step.observed
        custom_slots = self._custom_slots[slots[observed]]
        first = (
            np.zeros(len(custom_slots), np.bool_) if step.acted is None else ~step.acted[observed]
        )
        shape, dtype = row_form(pipeline.output_space)
        seen = np.empty((len(custom_slots), *shape), dtype)
        for begins in (False, True):  # a slot may end an episode and begin the next in one step
            rows = np.flatnonzero(first == begins)
            if len(rows):
                part, see = pick(step.observations, rows), pipeline.first if begins else pipeline
                seen[rows] = see(part, slots=custom_slots[rows], update=self.collects)
        return seen

    def begin_episodes(self, slots: Array, ids: Array, raw_obs: Any, *, update: bool) -> None:
        """Episodes begin in these slots, with their first observations ``[k, ...]``."""
        obs = raw_obs
        if self._filter is not None:
            obs = self.observations.first(raw_obs, slots, update=update)
        self.collector.begin_episodes(slots, ids, obs)

    def continue_with_new_episodes(self, slots: Array, ids: Array, raw_obs: Any = None) -> None:
        """Episodes begin in these slots with what the policy sees now, which is ``raw_obs``."""
        obs = self.collector.obs[slots]
        if self._history is not None and raw_obs is not None:
            obs = self.observations.first(raw_obs, slots, update=False)
        self._returns[slots] = 0.0
        self.noise.begin_episodes(slots)
        self.collector.begin_episodes(slots, ids, obs)

    def begin_noise(self, slots: Array, numbers: Array) -> None:
        """Action noise of episodes with these numbers begins in these slots."""
        if not self.explore:
            return
        if self._noise_keys is None:
            self.noise.begin_episodes(slots)
            return
        for slot, number in zip(slots.tolist(), numbers.tolist(), strict=True):
            rng = self._noise_keys(number)
            assert rng is not None
            self.noise.begin_episode(slot, rng)

    def drop(self, slots: Array, episode_id: int = -1) -> None:
        """Drop what is not yet delivered of an episode in which these slots took part."""
        self._returns[slots] = 0.0
        self.collector.drop(slots, episode_id)

    def begin_fragment(
        self,
        unsent: frozenset[str] = frozenset(),
        length: int | None = None,
        first_unroll_id: int = 0,
    ) -> None:
        """Begin a fragment, with the views that the policy asks for now.

        Args:
            unsent: columns that are left out of the batch.
            length: see `SampleCollector.begin_fragment`.
        """
        inputs = self.inputs
        if self.policy.view_requirements != inputs.requirements or unsent != inputs.unsent:
            inputs.resolve(unsent)
            self._look_at_views()
        self.collector.begin_fragment(length, first_unroll_id)

    def sent(self) -> Array:
        """Actions of the fragment as the connectors sent them, ``[t, B, ...]``."""
        if self._history is None:
            return self.collector.actions
        sent, self._sent = np.stack(self._sent), []
        return sent

    def newly_taken(self) -> tuple[Array, Array, Array] | None:
        """The actions since the last call, in the order they were taken; None if there are none.

        Returns:
            Sub-environment, agent and episode id, int ``[n, 3]``; env steps of the episode, int
            ``[n]``; the actions as `act` returned them, ``[n, ...]``.
        """
        if not self._taken:
            return None
        places, steps, actions = (np.concatenate(parts) for parts in zip(*self._taken, strict=True))
        self._taken = []
        return places, steps, actions

    def discard(self) -> None:
        """Drop the fragment's transitions."""
        self.collector.discard()
        self._taken = []

    def build(self, running: Collection[int], *, everything: bool) -> SampleBatch:
        """The fragment's batch.

        Args:
            running: ids of the episodes that have not ended.
            everything: keep the columns that only postprocessing reads.
        """
        leave_out = frozenset() if everything else self.inputs.leave_out
        unsent = self._computed and self._computed <= leave_out
        further = None if unsent else self._fragment_columns
        return self.collector.build(leave_out, further, running)

    def _fragment_columns(self, columns: dict[str, Array]) -> dict[str, Array]:
        computed = self.policy.fragment_columns(columns, explore=self.explore)
        self._computed = frozenset(computed)
        return computed

    def get_state(self) -> dict[str, Any]:
        """Everything but the policy, between fragments."""
        return {
            "collector": self.collector.get_state(),
            "returns": self._returns.copy(),
            "custom_slots": self._custom_slots.copy(),
            "noise": self.noise.get_state(),
            "connectors": self.connectors.get_state() if self.connectors.stateful else {},
            "unanswered": {
                str(slot): np.asarray(action) for slot, action in self._unanswered.items()
            },
        }

    def set_state(self, state: Mapping[str, Any], agents: Collection[AgentSlot] = ()) -> None:
        """Restore a state from `get_state`.

        Args:
            agents: where slots come and go, the agents in them, as when the state was taken.
        """
        self.connectors.set_state(state["connectors"])
        self._unanswered = {
            int(slot): np.asarray(action) for slot, action in state["unanswered"].items()
        }
        self.collector.set_state(state["collector"])
        if len(state["returns"]) > len(self._returns):
            self._resize(len(state["returns"]))
        if agents:
            self._join(agents)
        self._returns[: len(state["returns"])] = state["returns"]
        self._custom_slots[: len(state["custom_slots"])] = state["custom_slots"]
        self.noise.set_state(state["noise"], slice(len(state["returns"])))
