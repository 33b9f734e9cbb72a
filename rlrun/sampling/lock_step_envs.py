"""LockStepEnvs: sub-environments with one agent each, which step together, as slots of one policy.

Owns the vector step and what follows it: the horizon, the ends of episodes and the next ones, steps
that are no transitions; and the state from which episodes are resumed. Must not know how actions
are chosen; the policy's actor receives the steps of its slots, which are the sub-environments.

    B  sub-environments    k  slots of a call    t  vector steps of the running fragment so far
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlrun.data.column_data import Array, map_leaves, pick
from rlrun.data.sample_batch import DEFAULT_POLICY_ID
from rlrun.envs.agent_slots import Due, SlotStep
from rlrun.envs.env import info_numbers
from rlrun.envs.episode_vector_env import EnvInfos, EpisodeVectorEnv, replay_actions
from rlrun.envs.errors import EnvError
from rlrun.envs.horizon import Horizon
from rlrun.envs.recorded_step import RecordedStep, Recorder
from rlrun.sampling.episode_replay import log_replay
from rlrun.sampling.episodes import LockStepEpisodes, RewardError
from rlrun.sampling.policy_actor import PolicyActor

_NO_REWARDS = np.zeros((0, 0))

_log = logging.getLogger(__name__)


class LockStepEnvs:
    """Sub-environments with one agent each, which step together, as slots of one policy.

    Args:
        collects: whether fragments hold the rewards; if not, as in evaluation, they are counted
            step by step.
        recorder: shown each step.
        info_keys: numbers of an episode's last info that its record gets.

    Attributes:
        due: all slots act in each step.
        needs_finish: whether `finish_step` must be called after this step.
        stopped: whether the recorder has ended the rollout.
        started: whether the first episodes have begun.
        raw: observations ``[B, ...]`` that the last step or reset returned.
    """

    def __init__(
        self,
        envs: EpisodeVectorEnv,
        episodes: LockStepEpisodes,
        horizon: Horizon | None,
        env_id: str,
        *,
        runner_index: int = 0,
        collects: bool = True,
        recorder: Recorder | None = None,
        info_keys: tuple[str, ...] = (),
    ) -> None:
        self.envs, self.episodes, self.horizon = envs, episodes, horizon
        self.due = {DEFAULT_POLICY_ID: Due()}
        self.needs_finish = self.stopped = self.started = False
        self._env_id, self._runner_index = env_id, runner_index
        self._collects, self._recorder, self._info_keys = collects, recorder, info_keys
        self._all_slots = np.arange(envs.num_envs)
        nothing = np.zeros(0)
        self._slot_step = SlotStep(nothing, nothing, nothing, None)  # the last one; written over
        self._step_by_policy = {DEFAULT_POLICY_ID: self._slot_step}
        self._dones = np.zeros(0, np.bool_)  # [B], whether the last step ended the episode
        self._done_slots = np.zeros(0, np.int64)  # [k], where it did
        self._infos: EnvInfos | None = None  # of the last step
        self._t = 0
        self.raw: Any = None
        # Raw first observations [k, ...] of slots [k]: after t steps of this fragment; and of
        # episodes that began in `set_state`, which the policy sees when the next fragment begins.
        self._resets: list[tuple[int, Array, Any]] = []
        self._begun_in_restore: tuple[Array, Any] | None = None
        self._restored_obs: Array | None = None  # [B, ...] of a restored state

    def _begin(self, actor: PolicyActor, slots: Array, raw: Any, *, update: bool) -> None:
        if actor.noise_of_episodes:
            actor.begin_noise(slots, self.episodes.number[slots])
        actor.begin_episodes(slots, self.episodes.ids[slots], raw, update=update)

    def begin_fragment(self, actors: Mapping[str, PolicyActor]) -> None:
        """Begin to count the steps of a fragment, and the first episodes if none are running."""
        actor = actors[DEFAULT_POLICY_ID]
        self._t, self._resets, self.episodes.records = 0, [], []
        self._restored_obs = None
        if not self.started:
            self.started = True
            self.raw = self.envs.reset(self.episodes.seeds)
            self._begin(actor, self._all_slots, self.raw, update=self._collects)
        if self._begun_in_restore is not None:
            (slots, first), self._begun_in_restore = self._begun_in_restore, None
            self._begin(actor, slots, first, update=self._collects)

    def end_fragment(self, actors: Mapping[str, PolicyActor]) -> None:
        """Add up the fragment's part of the running episodes, which go on in the next one."""
        actor = actors[DEFAULT_POLICY_ID]
        try:
            self.episodes.end_fragment(self._t, actor.collector.rewards, actor.sent())
        except RewardError as error:
            raise self._reward_error(error) from None

    def collect(
        self, step: Callable[[], None], actors: Mapping[str, PolicyActor], length: int
    ) -> tuple[int, int]:
        """Step until ``length * B`` env steps are collected; returns how many, and vector steps."""
        collector, wanted = actors[DEFAULT_POLICY_ID].collector, length * len(self._all_slots)
        while collector.num_collected < wanted:
            step()
        return (collector.num_collected if collector.whole_episodes else wanted), self._t

    @property
    def longest_episode(self) -> int:
        """Env steps of the longest running episode."""
        return int(self.episodes.total_length.max())

    @property
    def is_replayed(self) -> bool:
        """Whether environments are restored by repeating the actions of their episodes."""
        return self.envs.episode_seeds and not self.envs.offers_state

    def step(self, actions: Mapping[str, Any]) -> dict[str, SlotStep]:
        """Step all sub-environments; returns the results of all slots, by policy."""
        sent, envs, step = actions[DEFAULT_POLICY_ID], self.envs, self._slot_step
        before = map_leaves(np.array, self.raw) if self._recorder is not None else None
        try:
            self.raw, rewards, terminateds, truncateds, self._infos = envs.step(sent)
        except EnvError as error:
            raise self._with_place(_blamed(error, sent), self._t) from None
        valid, infos = envs.valid, self._infos
        if envs.failed_envs:
            valid = ~np.isin(self._all_slots, list(envs.failed_envs))
        if not self._collects:
            self.episodes.add_row(rewards, valid)
        else:
            self._t += 1
        if self.horizon is not None:
            steps = self.episodes.steps(self._t)
            terminateds, truncateds = self.horizon.flags(steps, terminateds, truncateds, valid)
        self._dones = dones = terminateds | truncateds
        (self._done_slots,) = dones.nonzero()
        step.observations, step.rewards, step.valid = self.raw, rewards, valid
        step.fresh = valid if envs.failed_envs else None
        step.terminateds, step.truncateds = terminateds, truncateds
        step.infos = None if infos is None else infos.by_env
        self.needs_finish = (
            len(self._done_slots) > 0
            or valid is not None
            or (self.horizon is not None and bool(self.horizon.passed.any()))
        )
        if self._recorder is not None:
            self._record(before, sent, step)
        return self._step_by_policy

    def _record(self, before: Any, sent: Any, step: SlotStep) -> None:
        assert self._recorder is not None
        number, asked_for = self.episodes.number, self.episodes.plan.num_episodes
        counted = step.valid if step.valid is not None else np.ones(len(number), np.bool_)
        numbers = [
            k if k < asked_for and runs else None
            for k, runs in zip(number.tolist(), counted.tolist(), strict=True)
        ]
        seen = before, sent, self.raw, step.rewards, step.terminateds, step.truncateds
        dropped = {i: int(number[i]) for i in self.envs.failed_envs}
        shown = RecordedStep(*seen, numbers, infos=step.infos, dropped=dropped)
        self.stopped = bool(self._recorder(shown))

    def finish_step(self, actors: Mapping[str, PolicyActor]) -> None:
        """End the episodes that the last step ended, and begin the next ones."""
        actor, envs = actors[DEFAULT_POLICY_ID], self.envs
        if envs.valid is not None:  # steps that environments spent on their own reset
            resetting = np.flatnonzero(~envs.valid)
            self.episodes.start_at(resetting, self._t)
            actor.begin_noise(resetting, self.episodes.number[resetting])
            actor.continue_with_new_episodes(resetting, self.episodes.ids[resetting])
        if self._slot_step.fresh is not None:
            failed = ~self._slot_step.fresh
            slots = np.flatnonzero(failed)
            self._drop(actor, slots)
            self.episodes.num_failed += len(slots)
            self._reset(actor, slots, failed)
        if len(self._done_slots):
            self._end(actor, self._done_slots)
            self._reset(actor, self._done_slots, self._dones)
        if self.horizon is not None and self.horizon.passed.any():
            slots = np.flatnonzero(self.horizon.passed)
            self._end(actor, slots, goes_on=True)
            ids, raw = self.episodes.ids[slots], pick(self.raw, slots)
            actor.continue_with_new_episodes(slots, ids, raw)

    def _end(self, actor: PolicyActor, slots: Array, *, goes_on: bool = False) -> None:
        actor.collector.end_episodes(slots)
        lost_lives = None if self._infos is None else self._infos.get("episode_continues")
        rewards = actor.collector.rewards if self._collects else _NO_REWARDS
        num_records = len(self.episodes.records)
        try:
            self.episodes.end(slots.tolist(), self._t, rewards, lost_lives, goes_on=goes_on)
        except RewardError as error:
            raise self._reward_error(error) from None
        if self._infos is not None:
            self._add_numbers(self._infos, num_records)

    def _add_numbers(self, infos: EnvInfos, first: int) -> None:
        """Add numbers of the last infos to the records from number ``first`` on."""
        for record in self.episodes.records[first:]:
            info = infos.by_env.get(record.env_index)
            try:
                if info:
                    record.custom_metrics.update(info_numbers(info, self._info_keys))
            except ValueError as problem:
                error = EnvError(self._env_id, "step", str(problem), env_index=record.env_index)
                raise self._with_place(error, self._t) from None

    def _drop(self, actor: PolicyActor, slots: Array) -> None:
        actor.drop(slots)
        self.episodes.drop(slots.tolist(), self._t)

    def _reset(self, actor: PolicyActor, slots: Array, mask: Array) -> None:
        """Reset the slots, for which ``mask`` ``[B]`` is true, and begin their next episodes."""
        try:
            raw = self.envs.reset_envs(mask, self.episodes.seeds)
        except EnvError as error:
            raise self._with_place(error, self._t - 1) from None
        if raw is None:  # the observations come with the environment's next step
            return
        first = raw[slots] if type(raw) is np.ndarray else pick(raw, slots)
        if self._recorder is not None:
            self.raw = raw
        if self._collects:
            self._resets.append((self._t, slots, first))
        self._begin(actor, slots, first, update=self._collects)

    def _with_place(self, error: EnvError, t: int) -> EnvError:
        """The error, with the env step of its episode after t vector steps."""
        if self._collects:
            error.env_step = int(self.episodes.steps(t)[error.env_index])
        return error

    def observation_error(self, policy_id: str, due: Due, row: int, reason: str) -> EnvError:
        """See `SlotEnvs`."""
        error = EnvError(self._env_id, "observation", reason, env_index=row)
        return self._with_place(error, self._t)

    def _reward_error(self, error: RewardError) -> EnvError:
        index, step = error.env_index, error.env_step
        return EnvError(self._env_id, "step", str(error), env_index=index, env_step=step)

    def get_state(self, actors: Mapping[str, PolicyActor]) -> dict[str, Any]:
        """The state of environments and episodes between fragments, as numbers and arrays."""
        return {
            "episodes": self.episodes.get_state(),
            "unfiltered": self._unfiltered_obs(actors[DEFAULT_POLICY_ID]),
            "envs": self.envs.get_state() if self.started else None,
        }

    def _unfiltered_obs(self, actor: PolicyActor) -> Array | None:
        """The next observations ``[B, ...]`` before the filter; None before the first episodes.

        After `set_state` they are the state's, until the next fragment begins.
        """
        if not self.started:
            return None
        if self._restored_obs is not None:
            return self._restored_obs
        unfiltered = np.array(actor.observations.preprocess(self.raw))
        for t, slots, first in self._resets:
            if t == self._t:
                unfiltered[slots] = actor.observations.preprocess(first)
        return unfiltered

    def set_state(
        self,
        state: Mapping[str, Any],
        actors: Mapping[str, PolicyActor],
        actor_states: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Restore a state from `get_state`.

        Environments that offer their state are given it back. Others are reset with the seeds of
        their running episodes and repeat the actions. Where one raises meanwhile, returns another
        observation than before, or its episode is too long, a fresh episode begins.
        """
        actor = actors[DEFAULT_POLICY_ID]
        self.episodes.set_state(state["episodes"])
        actor.set_state(actor_states[DEFAULT_POLICY_ID])
        self._t, self._begun_in_restore, self._restored_obs = 0, None, None
        self.started = state["unfiltered"] is not None
        if not self.started:
            return
        self._restored_obs = np.array(state["unfiltered"])
        if state["envs"] is not None and self.envs.offers_state:
            self.envs.reset(self.episodes.seeds)
            self.envs.set_state(state["envs"])
        elif self.envs.episode_seeds:
            self._restore(actor, self._restored_obs)
        else:
            _log.warning(
                "%s can neither be seeded per episode nor hand out its state: "
                "all running episodes start afresh",
                self._env_id,
            )
            self._drop(actor, self._all_slots)
            self.started = False

    def _restore(self, actor: PolicyActor, expected: Array) -> None:
        """Repeat the actions of the running episodes, up to ``expected``, ``[B, ...]``."""
        episodes = self.episodes
        recorded = episodes.seeds, episodes.actions(), episodes.lives
        raw, diverged = replay_actions(self.envs, actor.to_env, *recorded)
        diverged |= episodes.since_reset > episodes.max_replayed
        # Compared before the filter, which has gone on learning since an observation was filtered.
        differs = actor.observations.preprocess(raw) != expected
        diverged |= differs.reshape(len(expected), -1).any(axis=1)
        slots = np.flatnonzero(diverged)
        log_replay(episodes, slots, episodes.since_reset, self._env_id, self._runner_index)
        if not len(slots):
            return
        self._drop(actor, slots)
        first = pick(self.envs.reset_envs(diverged, episodes.seeds), slots)
        expected[slots] = actor.observations.preprocess(first)
        # Filters learn from these when the next fragment begins, with the merged statistics.
        self._begun_in_restore = slots, first
        self._begin(actor, slots, first, update=False)


def _blamed(error: EnvError, actions: Any) -> EnvError:
    """The error, or one that blames the policy, if its action was not finite."""
    if not isinstance(actions, np.ndarray) or np.isfinite(actions[error.env_index]).all():
        return error
    reason = f"the policy's action is {actions[error.env_index].tolist()}"
    return EnvError(error.env_id, "action", reason, env_index=error.env_index)
