"""EnvRunner: environments and a policy turn into sample batches, in this process or as a Ray actor.

The loop below is the hottest code of rlrun. One vector step makes a fixed handful of Python calls,
writes rows in place, and does work per episode only where an episode ends.

    T  steps of a fragment      B  lanes: the runner's sub-environments
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.connectors.actions import ActionPipeline
from rlrun.connectors.observations import ObservationPipeline
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.sampling.carried import Carry
from rlrun.sampling.envs import EnvContext
from rlrun.sampling.episodes import EpisodeRecord, LaneEpisodes
from rlrun.sampling.errors import EnvError
from rlrun.sampling.fragment import FragmentBuffer
from rlrun.sampling.policy_inputs import PolicyInputs
from rlrun.sampling.replay import replay_episodes
from rlrun.sampling.runner_messages import (
    RunnerSpec,
    SampleReply,
    SampleRequest,
    reward_pipeline,
)
from rlrun.sampling.seeding import FragmentNoise, Role, fragment_noise
from rlrun.sampling.vector_env import make_vector_env, take_lanes

Array = NDArray[Any]

_log = logging.getLogger(__name__)


class EnvRunner:
    """Steps a vector of environments with a policy.

    Standalone: ``EnvRunner(RunnerSpec(EnvSpec(use="CartPole-v1"))).sample()`` is one fragment.

    Args:
        runner_index: 0 in the driver, 1..n for Ray actors; part of every random number's key.
        role: training or evaluation, whose random numbers never meet.
        num_env_runners: how many Ray actors sample; environments see it in their context.
        recreated: this runner replaces one that died; environments see that, too.
        render_mode: gymnasium's, for each environment.

    Raises:
        EnvError: an environment cannot be built, or does not do what its spaces say.
    """

    def __init__(
        self,
        spec: RunnerSpec,
        *,
        runner_index: int = 0,
        role: Role = Role.TRAIN,
        num_env_runners: int = 0,
        recreated: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.spec, self.runner_index, self.role = spec, runner_index, role
        settings = spec.settings
        self.num_lanes = settings.num_envs_per_env_runner
        context = EnvContext(
            spec.env.kwargs,
            worker_index=runner_index,
            num_workers=num_env_runners,
            recreated_worker=recreated,
        )
        self.envs = make_vector_env(
            spec.env,
            self.num_lanes,
            settings,
            context,
            training=role is Role.TRAIN,
            render_mode=render_mode,
            restart_failed=spec.restart_failed_sub_environments,
        )
        self.action_space = self.envs.single_action_space
        self.observations = ObservationPipeline(self.envs.single_observation_space, settings)
        self.actions = ActionPipeline(
            self.action_space,
            normalize=spec.connectors.normalize_actions,
            clip=spec.connectors.clip_actions,
        )
        self.rewards = reward_pipeline(spec, num_lanes=self.num_lanes)
        # What does nothing is not called, least of all in every step.
        self._observe = None if self.observations.identity else self.observations
        self._to_env = None if self.actions.identity else self.actions
        self.policy = spec.policy_factory(
            self.observations.output_space, self.action_space, spec.model
        )
        self._inputs: PolicyInputs | None = None  # None while the policy has no views
        self.inputs = PolicyInputs(self.policy, self.num_lanes)
        self._look_at_views()
        self.weights_version = -1
        self._episodes = LaneEpisodes(spec.seed, role, runner_index, self.num_lanes)
        self._obs: Array | None = None  # [B, ...], what the policy sees next; None before a reset
        self._unfiltered: Array | None = None  # [B, ...], the same before the observation filter
        self._whole_episodes = settings.batch_mode == "complete_episodes"
        self._carry: Carry | None = None  # None where fragments come out even by themselves
        if self._whole_episodes or not self.envs.every_step_counts:
            self._carry = Carry(whole_episodes=self._whole_episodes)
        self._completed = 0  # env steps of the episodes that ended in this fragment
        self._next_fragment = 0
        self._faulty_episodes = 0
        self._first_rows: list[tuple[int, Array, Any]] = []  # row, lanes, raw first observations

    @classmethod
    def as_remote(cls, **options: Any) -> Any:
        """This class as a Ray actor class; ``options`` are Ray's (``num_cpus=1``, ...)."""
        import ray

        return ray.remote(**options)(cls) if options else ray.remote(cls)

    def sample(self) -> SampleBatch:
        """One fragment with the present weights; ``rollout_fragment_length`` steps of each lane."""
        length = self.spec.settings.rollout_fragment_length
        request = SampleRequest(
            self._next_fragment, 200 if length == "auto" else length, self.weights_version
        )
        return self.sample_fragment(request).batch

    def sample_fragment(self, request: SampleRequest, weights: Any = None) -> SampleReply:
        """Collect exactly ``request.length * B`` transitions.

        Args:
            weights: the policy's weights, taken over if their version is new.
        """
        started = perf_counter()
        self.load(weights, request.weights_version, request.connector_state)
        if request.exploration is not None:
            self.policy.set_exploration(request.exploration)
        self._next_fragment = request.fragment + 1
        if self._obs is None:
            self._obs = self._reset_all()
        if self.policy.view_requirements != self._known_views:
            self._look_at_views()
        buffer = self._allocate(request.length)
        records, timings = self._collect(buffer, request)
        num_steps = int(timings.pop("steps"))
        self._episodes.carry_over(num_steps, buffer.rewards, buffer.columns[col.ACTIONS])
        self._require_finite_rewards(buffer, num_steps)
        rewards = self._learning_rewards(buffer, num_steps)
        batch = buffer.to_batch(
            num_steps,
            rewards,
            self.runner_index,
            request.fragment,
            self.policy.fragment_columns,
            None if self._inputs is None else self._inputs.views,
        )
        if self.runner_index > 0 and self.spec.settings.compress_observations:
            batch.compress()
        timings["other"] = perf_counter() - started - timings["policy"] - timings["env"]
        return SampleReply(
            runner_index=self.runner_index,
            weights_version=self.weights_version,
            batch=batch,
            env_steps=batch.count if self._whole_episodes else request.length * self.num_lanes,
            vector_steps=num_steps,
            episodes=records,
            connector_deltas=self._flush_connectors(),
            state=self.get_state(),
            timings_s=timings,
            longest_running_episode=int(self._episodes.game_length.max()),
            faulty_episodes=self._faulty_episodes,
        )

    def load(self, weights: Any, version: int, connector_state: dict[str, Any] | None) -> None:
        """Take over weights and merged connector statistics."""
        if weights is not None and version != self.weights_version:
            self.policy.set_weights(weights)
        self.weights_version = version
        if connector_state is not None:
            self.observations.set_state(connector_state["observations"])
            self.rewards.set_state(connector_state["rewards"])

    def _reset_all(self) -> Array:
        raw_obs = self.envs.reset(self._episodes.seeds)
        self._unfiltered = np.array(self.observations.preprocess(raw_obs))
        return np.array(self.observations(raw_obs, update=True))

    def _look_at_views(self) -> None:
        """Find out what the policy sees besides the present observation."""
        self._known_views = dict(self.policy.view_requirements)
        self.inputs.resolve()
        self._inputs = None if self.inputs.views is None else self.inputs

    def _allocate(self, length: int) -> FragmentBuffer:
        # An env that resets itself in a step of its own needs a few vector steps more than T.
        rows = length if self.envs.every_step_counts else length + length // 8 + 1
        if self._carry is not None:
            rows += self._carry.num_rows
        space = self.observations.output_space
        assert space.shape is not None  # the pipeline puts out arrays
        if self._inputs is None:
            return FragmentBuffer(rows, self.num_lanes, space.shape, space.dtype)
        past = self._inputs.lookback
        buffer = FragmentBuffer(rows, self.num_lanes, space.shape, space.dtype, past=past)
        self._inputs.begin(buffer)
        return buffer

    def _collect(
        self, buffer: FragmentBuffer, request: SampleRequest
    ) -> tuple[list[EpisodeRecord], dict[str, float]]:
        """Step until the buffer holds ``length * B`` transitions."""
        policy, envs, observe, to_env = self.policy, self.envs, self._observe, self._to_env
        inputs, self._completed = self._inputs, 0
        explore = self.spec.settings.explore
        noise = self._noise(request.fragment, buffer.length) if explore else None
        records: list[EpisodeRecord] = []
        policy_s = env_s = 0.0
        wanted = request.length * self.num_lanes
        t, counted = (0, 0) if self._carry is None else self._carry.begin(buffer, self._episodes)
        buffer.obs[t] = self._obs
        while (self._completed if self._whole_episodes else counted) < wanted:
            if t == buffer.length:
                self._grow(buffer)
            clock = perf_counter()
            noise_row = None if noise is None else noise.row(t)
            if inputs is None:
                actions, _, extras = policy.compute_actions(
                    buffer.obs[t], explore=explore, noise=noise_row
                )
            else:
                actions, extras = inputs.act(
                    buffer, t, self._episodes, explore=explore, noise=noise_row
                )
            acted = perf_counter()
            try:
                raw_obs, rewards, terminateds, truncateds, infos = envs.step(
                    actions if to_env is None else to_env(actions)
                )
            except EnvError as error:
                raise self._located(error, t) from None
            stepped = perf_counter()
            policy_s += acted - clock
            env_s += stepped - acted
            buffer.write(t, actions, extras)
            buffer.rewards[t] = rewards
            buffer.terminateds[t] = terminateds
            buffer.truncateds[t] = truncateds
            buffer.obs[t + 1] = raw_obs if observe is None else observe(raw_obs, update=True)
            done = terminateds | truncateds
            counted += self.num_lanes
            if envs.valid is not None or envs.failed_lanes:
                counted -= self._leave_out(buffer, t)
            if inputs is not None and inputs.sees_rewards:
                buffer.columns[col.REWARDS][t] = self._learned_rewards(buffer, t)
            if done.any():
                self._end_episodes(buffer, t, done, infos, records)
            t += 1
        self._obs = buffer.obs[t].copy()
        self._unfiltered = self._obs if observe is None else self._before_filter(raw_obs, t)
        self._close(buffer, t, 0 if self._whole_episodes else counted - wanted)
        return records, {"policy": policy_s, "env": env_s, "steps": t}

    def _grow(self, buffer: FragmentBuffer) -> None:
        buffer.grow()
        if self._carry is not None:
            self._carry.warn_if_large(buffer.length // 2)

    def _noise(self, fragment: int, length: int) -> FragmentNoise:
        rng = fragment_noise(self.spec.seed, self.role, self.runner_index, fragment)
        return FragmentNoise(self.policy.draw_noise, rng, length, self.num_lanes)

    def _close(self, buffer: FragmentBuffer, t: int, surplus: int) -> None:
        """Keep what the next fragment needs of this one, which has t rows."""
        for lane in range(self.num_lanes):
            self._number_lane(buffer, lane, t)
        kept = 0 if self._carry is None else self._carry.end(buffer, t, surplus, self._episodes)
        if self._inputs is not None:
            self._inputs.end(buffer, t - kept)

    def _end_episodes(
        self,
        buffer: FragmentBuffer,
        t: int,
        done: Array,
        infos: Mapping[str, Any] | None,
        records: list[EpisodeRecord],
    ) -> None:
        """File the final observations of finished lanes and start their next episodes."""
        lanes = np.flatnonzero(done)
        buffer.add_finals(t, lanes, buffer.obs[t + 1, lanes])
        goes_on = None if infos is None else infos.get("episode_continues")
        for lane in lanes.tolist():
            self._number_lane(buffer, lane, t + 1)
            lost_life = goes_on is not None and bool(goes_on[lane])
            self._completed += int(self._episodes.length[lane] + t + 1 - self._episodes.start[lane])
            record = self._episodes.finish(lane, t + 1, buffer.rewards, game_goes_on=lost_life)
            if record is not None:
                records.append(record)
        self._start_episodes(buffer, t, done)

    def _start_episodes(self, buffer: FragmentBuffer, t: int, mask: Array) -> None:
        """Reset the lanes of ``mask``; row t + 1 is what their policy sees first."""
        try:
            raw_obs = self.envs.reset_lanes(mask, self._episodes.seeds)
        except EnvError as error:
            raise self._located(error, t) from None
        if raw_obs is None:  # this env's next step brings the observations
            return
        lanes = np.flatnonzero(mask)
        first = take_lanes(raw_obs, lanes)
        if self._observe is None:
            buffer.obs[t + 1, lanes] = first
        else:
            buffer.obs[t + 1, lanes] = self._observe(first, update=True)
            self._first_rows.append((t + 1, lanes, first))

    def _before_filter(self, raw_obs: Any, t: int) -> Array:
        """The observations of row t as they were before the filter, ``[B, ...]``."""
        unfiltered = np.array(self.observations.preprocess(raw_obs))
        for row, lanes, first in self._first_rows:
            if row == t:
                unfiltered[lanes] = self.observations.preprocess(first)
        self._first_rows.clear()
        return unfiltered

    def _leave_out(self, buffer: FragmentBuffer, t: int) -> int:
        """Mark rows that are no transitions; returns how many.

        Those are the steps that an environment spent on its own reset, and the episodes of
        environments that raised and have been built again.
        """
        lost = 0
        if self.envs.valid is not None:
            resetting = np.flatnonzero(~self.envs.valid)
            buffer.mark_invalid(t, resetting)
            self._episodes.start[resetting] = t + 1
            lost += len(resetting)
        failed = np.zeros(self.num_lanes, dtype=np.bool_)
        for lane in self.envs.failed_lanes:
            start = int(self._episodes.start[lane])
            if self._whole_episodes:  # what was kept of it from earlier fragments goes, too
                start -= int(self._episodes.length[lane])
            buffer.mark_invalid(slice(start, t + 1), lane)
            lost += t + 1 - start
            self._episodes.drop(lane)
            self._episodes.start[lane] = t + 1
            failed[lane] = True
        if failed.any():
            self._faulty_episodes += int(failed.sum())
            self._start_episodes(buffer, t, failed)
        return lost

    def _number_lane(self, buffer: FragmentBuffer, lane: int, end: int) -> None:
        """Fill in episode id and step for the lane's rows of its running episode."""
        episodes = self._episodes
        start, length = int(episodes.start[lane]), int(episodes.length[lane])
        buffer.episode_id[start:end, lane] = episodes.id_of(lane)
        buffer.episode_step[start:end, lane] = np.arange(length, length + end - start)

    def _require_finite_rewards(self, buffer: FragmentBuffer, num_steps: int) -> None:
        """Once a fragment: nothing acts on rewards before it ends."""
        finite = np.isfinite(buffer.rewards[:num_steps])
        if finite.all():
            return
        t, lane = (int(i) for i in np.argwhere(~finite)[0])
        raise EnvError(
            self.spec.env.use,
            "step",
            f"the reward is {buffer.rewards[t, lane]}",
            runner_index=self.runner_index,
            lane=lane,
            env_step=int(buffer.episode_step[t, lane]),
        )

    def _learning_rewards(self, buffer: FragmentBuffer, num_steps: int) -> Array:
        """Clipped or normalised rewards, float32 ``[T, B]``; metrics keep the raw ones."""
        if col.REWARDS in buffer.columns:  # the policy has seen them already
            return buffer.columns[col.REWARDS]
        if self.rewards.identity:
            return buffer.rewards[:num_steps].astype(np.float32)
        learned = np.empty((num_steps, self.num_lanes), dtype=np.float32)
        for t in range(num_steps):
            learned[t] = self._learned_rewards(buffer, t)
        return learned

    def _learned_rewards(self, buffer: FragmentBuffer, t: int) -> Array:
        valid = None if buffer.valid is None else buffer.valid[t]
        return self.rewards(
            buffer.rewards[t], buffer.terminateds[t], buffer.truncateds[t], valid=valid
        )

    def _flush_connectors(self) -> dict[str, Any]:
        return {
            "observations": {} if self._observe is None else self._observe.flush_deltas(),
            "rewards": {} if self.rewards.identity else self.rewards.flush_deltas(),
        }

    def _located(self, error: EnvError, t: int) -> EnvError:
        error.runner_index = self.runner_index
        start, length = self._episodes.start[error.lane], self._episodes.length[error.lane]
        error.env_step = int(length + t - start)
        return error

    def get_state(self) -> dict[str, Any]:
        """Where the lanes stand; plain numbers and arrays, enough to go on in another process."""
        return {
            "episodes": self._episodes.get_state(),
            "obs": self._obs,
            "unfiltered_obs": self._unfiltered,
            "envs": self.envs.get_state(),
            "observations": {} if self._observe is None else self._observe.get_state(),
            "rewards": {} if self.rewards.identity else self.rewards.get_state(),
            "next_fragment": self._next_fragment,
            "carried": {} if self._carry is None else self._carry.get_state(),
            "inputs": {} if self._inputs is None else self._inputs.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where the runner that `get_state` came from stood.

        Environments that offer their state are given it back. Others are reset with the seeds of
        their running episodes and replay the actions; a lane whose observation then differs is
        named in the log and starts a fresh episode, as its environment is not a function of seed
        and actions.
        """
        self._next_fragment = int(state["next_fragment"])
        self.observations.set_state(state["observations"])
        self.rewards.set_state(state["rewards"])
        self._episodes.set_state(state["episodes"])
        self.inputs.set_state(state["inputs"])
        if self._carry is not None:
            self._carry.set_state(state["carried"])
        if state["obs"] is None:
            self._obs = None
            return
        self._obs, self._unfiltered = np.array(state["obs"]), np.array(state["unfiltered_obs"])
        if state["envs"] is not None:
            self.envs.set_state(state["envs"])
        else:
            self._replay(self._obs, self._unfiltered)

    def _replay(self, obs: Array, unfiltered: Array) -> None:
        """Bring the environments to where they returned ``unfiltered``, lane by lane."""
        episodes = self._episodes
        if not self.envs.episode_seeds:
            _log.warning(
                "%s can neither be seeded per episode nor hand out its state: "
                "all running episodes start afresh",
                self.spec.env.use,
            )
            for lane in range(self.num_lanes):
                episodes.drop(lane)
                if self._carry is not None:
                    self._carry.drop(lane)
            self._obs = self._reset_all()
            return
        recorded = episodes.recorded_actions()
        raw_obs = replay_episodes(self.envs, self.actions, episodes.seeds, recorded)
        # Compared before the filter, which has gone on learning since a lane was normalised.
        found = self.observations.preprocess(raw_obs)
        strayed = np.array(
            [not np.array_equal(a, b) for a, b in zip(found, unfiltered, strict=True)]
        )
        if not strayed.any():
            return
        lanes = np.flatnonzero(strayed)
        for lane in lanes.tolist():
            _log.warning(
                "%s, sub-env %d of runner %d: replaying the episode's actions led to another "
                "observation, it starts a fresh episode",
                self.spec.env.use,
                lane,
                self.runner_index,
            )
            episodes.drop(lane)
            if self._carry is not None:
                self._carry.drop(lane)
        first = take_lanes(self.envs.reset_lanes(strayed, episodes.seeds), lanes)
        unfiltered[lanes] = self.observations.preprocess(first)
        obs[lanes] = self.observations(first, update=True)

    def ping(self) -> int:
        """Answer a health probe."""
        return self.runner_index

    def stop(self) -> None:
        """Close the environments."""
        self.envs.close()
