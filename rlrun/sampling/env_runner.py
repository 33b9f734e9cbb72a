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

from rlrun.data import columns as col
from rlrun.data.sample_batch import DEFAULT_POLICY_ID, SampleBatch
from rlrun.envs.env import EnvContext
from rlrun.envs.episode_vector_env import EpisodeVectorEnv
from rlrun.envs.errors import EnvError
from rlrun.envs.horizon import make_horizon
from rlrun.envs.vector_env import make_vector_env, take_lanes
from rlrun.policies.policy import Policy
from rlrun.sampling.action_noise import ActionNoise
from rlrun.sampling.episodes import EpisodeBoundaries, LaneEpisodes, RewardError
from rlrun.sampling.policy_inputs import PolicyInputs
from rlrun.sampling.postprocessing import Postprocessing, make_postprocessors
from rlrun.sampling.replay import differing_rows, replay_episodes
from rlrun.sampling.runner_connectors import RunnerConnectors
from rlrun.sampling.runner_messages import (
    RunnerSpec,
    SampleReply,
    SampleRequest,
    lone_request,
    make_collector,
    tell_exploration,
)
from rlrun.sampling.seeding import Role, fragment_noise

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
        self.envs = self._make_envs(num_env_runners, recreated, render_mode)
        self.connectors = RunnerConnectors(
            spec,
            self.envs.single_observation_space,
            self.envs.single_action_space,
            num_lanes=self.num_lanes,
            key=(role, runner_index),
        )
        self.observations, self.actions = self.connectors.observations, self.connectors.actions
        self.rewards = self.connectors.rewards
        # What does nothing is not called, least of all in every step.
        self._observe = None if self.observations.identity else self.observations
        self._to_env = None if self.actions.identity else self.actions
        self._custom = self.connectors.custom
        self.policy = self.connectors.policy
        self.action_space = self.connectors.action_space
        self.collector = make_collector(
            settings,
            self.observations.output_space,
            self.num_lanes,
            every_step_counts=self.envs.every_step_counts,
        )
        self.inputs = PolicyInputs(self.policy, self.num_lanes)
        self.collector.set_views(self.inputs.views, self.inputs.rows)
        callbacks = make_postprocessors(spec.postprocessors)
        postprocessing = Postprocessing({DEFAULT_POLICY_ID: self.policy}, callbacks, self)
        self._postprocess = None if postprocessing.does_nothing else postprocessing
        self.horizon = make_horizon(settings, self.envs, spec.env.use)
        self.weights_version = -1
        self._episodes = LaneEpisodes(spec.seed, role, runner_index, self.num_lanes)
        self._noise = ActionNoise(self.policy)
        self._noise.resize(self.num_lanes)
        self._boundaries = EpisodeBoundaries(
            self._episodes, self.envs, self.observations, self.collector, self._noise
        )
        self._all_lanes = np.arange(self.num_lanes)
        # [B, ...], what the policy sees next, before the observation filter; None before a reset.
        self._unfiltered: Array | None = None
        self._unseen: tuple[Array, Any] | None = None  # lanes, raw first observations not seen yet
        self._next_fragment = 0

    def _make_envs(
        self, num_env_runners: int, recreated: bool, render_mode: str | None
    ) -> EpisodeVectorEnv:
        context = EnvContext(
            self.spec.env.kwargs,
            worker_index=self.runner_index,
            num_workers=num_env_runners,
            recreated_worker=recreated,
        )
        return make_vector_env(
            self.spec.env,
            self.num_lanes,
            self.spec.settings,
            context,
            training=self.role is Role.TRAIN,
            render_mode=render_mode,
            restart_failed=self.spec.restart_failed_sub_environments,
        )

    @classmethod
    def as_remote(cls, **options: Any) -> Any:
        """This class as a Ray actor class; ``options`` are Ray's (``num_cpus=1``, ...)."""
        import ray

        return ray.remote(**options)(cls) if options else ray.remote(cls)

    def sample(self) -> SampleBatch:
        """One fragment with the present weights; ``rollout_fragment_length`` steps of each lane."""
        request = lone_request(self.spec.settings, self._next_fragment, self.weights_version)
        return self.sample_fragment(request).batch

    def sample_fragment(self, request: SampleRequest, weights: Any = None) -> SampleReply:
        """Collect exactly ``request.length * B`` transitions.

        Args:
            weights: the policy's weights, taken over if their version is new.
        """
        started = perf_counter()
        self.load(weights, request.weights_version, request.connector_state)
        if request.exploration:
            tell_exploration(self.policies, request.exploration, self.runner_index)
        self._next_fragment = request.fragment + 1
        self._see_first_observations()
        self._look_at_views(request.leave_out.get(DEFAULT_POLICY_ID, frozenset()))
        first_unroll_id = (self.runner_index << 48) | (request.fragment << 16)
        self.collector.begin_fragment(request.length, first_unroll_id)
        self._boundaries.records = []
        try:
            num_steps, timings = self._collect(request)
            sent = self._custom.recorded() if self._custom else self.collector.actions
            self._episodes.carry_over(num_steps, self.collector.rewards, sent)
        except RewardError as error:
            raise EnvError(
                self.spec.env.use,
                "step",
                str(error),
                runner_index=self.runner_index,
                lane=error.lane,
                env_step=error.env_step,
            ) from None
        batch = self._build()
        if self.runner_index > 0 and self.spec.settings.compress_observations:
            batch.compress()
        env_steps = request.length * self.num_lanes
        if self.collector.whole_episodes:
            env_steps = batch.count
        timings["other"] = perf_counter() - started - timings["policy"] - timings["env"]
        return SampleReply(
            runner_index=self.runner_index,
            weights_version=self.weights_version,
            batch=batch,
            env_steps=env_steps,
            agent_steps=env_steps,
            vector_steps=num_steps,
            episodes=self._boundaries.records,
            connector_deltas=(
                {DEFAULT_POLICY_ID: self.connectors.flush_deltas()}
                if self.connectors.stateful
                else {}
            ),
            state=self.get_state(),
            timings_s=timings,
            longest_running_episode=int(self._episodes.game_length.max()),
            faulty_episodes=self._boundaries.num_faulty,
        )

    def _look_at_views(self, unsent: frozenset[str]) -> None:
        """Make what the policy asks for now, without columns that learning does not read."""
        inputs = self.inputs
        if self.policy.view_requirements != inputs.requirements or unsent != inputs.unsent:
            inputs.resolve(unsent)
            self.collector.set_views(inputs.views, inputs.rows)

    def _build(self) -> SampleBatch:
        """The fragment's batch, postprocessed, without what learning does not need."""
        further = self.policy.fragment_columns
        leave_out = self.inputs.leave_out
        if self._postprocess is None:
            return self.collector.build(leave_out, further)
        batches = {DEFAULT_POLICY_ID: self.collector.build(further_columns=further)}
        batch = self._postprocess(batches)[DEFAULT_POLICY_ID]
        for name in leave_out & batch.keys():
            del batch[name]
        return batch

    @property
    def policies(self) -> dict[str, Policy]:
        """The policy, under its id ``default_policy``."""
        return {DEFAULT_POLICY_ID: self.policy}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """The policy's weights, under its id ``default_policy``, whatever version they are."""
        self.policy.set_weights(weights[DEFAULT_POLICY_ID])

    def load(self, weights: Any, version: int, connector_state: dict[str, Any] | None) -> None:
        """Take over weights, the only policy's or by policy id, and merged connector statistics."""
        if weights is not None and version != self.weights_version:
            by_policy = isinstance(weights, dict) and DEFAULT_POLICY_ID in weights
            self.policy.set_weights(weights[DEFAULT_POLICY_ID] if by_policy else weights)
        self.weights_version = version
        if self.role is Role.EVALUATION and self._custom is not None:
            self._custom.forget()
        if connector_state is not None:
            self.connectors.set_state(connector_state[DEFAULT_POLICY_ID])

    def _reset_all(self) -> None:
        raw_obs = self.envs.reset(self._episodes.seeds)
        self._unfiltered = np.array(self.observations.preprocess(raw_obs))
        self._boundaries.begin(self._all_lanes, raw_obs)

    def _collect(self, request: SampleRequest) -> tuple[int, dict[str, float]]:
        """Step until the collector holds enough; returns vector steps, and seconds by part."""
        collector, policy, envs = self.collector, self.policy, self.envs
        observe, to_env, explore = self._observe, self._to_env, self.spec.settings.explore
        inputs = None if self.inputs.views is None else self.inputs
        learn_rewards = None if self.rewards.identity else self.rewards
        custom, horizon, boundaries = self._custom, self.horizon, self._boundaries
        wants_infos = col.INFOS in self.inputs.rows
        noise = self._noise_of(request) if explore else None
        wanted = request.length * self.num_lanes
        t, policy_s, env_s = 0, 0.0, 0.0
        while collector.num_collected < wanted:
            clock = perf_counter()
            noise_row = None if noise is None else noise.next()
            if inputs is None:
                actions, _, extras = policy.compute_actions(
                    collector.obs, explore=explore, noise=noise_row
                )
            else:
                seen = collector.inputs()
                actions, extras = inputs.act(seen, explore=explore, noise=noise_row)
            acted = perf_counter()
            try:
                raw_obs, rewards, terminateds, truncateds, infos = envs.step(
                    actions if to_env is None else to_env(actions)
                )
            except EnvError as error:
                raise boundaries.placed(error, t) from None
            stepped = perf_counter()
            policy_s, env_s = policy_s + acted - clock, env_s + stepped - acted
            if horizon is not None:
                steps = self._episodes.steps(t + 1)
                terminateds, truncateds = horizon.flags(steps, terminateds, truncateds, envs.valid)
            learned = None
            if learn_rewards is not None:
                learned = learn_rewards(rewards, terminateds, truncateds, valid=envs.valid)
            if custom is not None:
                custom.stepped(actions, rewards, envs.valid, record=True)
            collector.add_step(
                actions,
                extras,
                rewards,
                terminateds,
                truncateds,
                raw_obs if observe is None else observe(raw_obs, update=True),
                learned_rewards=learned,
                valid=envs.valid,
                infos=infos.by_lane if wants_infos and infos is not None else None,
            )
            t += 1
            if envs.valid is not None or envs.failed_lanes:
                boundaries.without_transition(t)
            done = terminateds | truncateds
            if done.any():
                boundaries.end(t, done, infos)
            if horizon is not None and horizon.passed.any():
                boundaries.go_on(t, np.flatnonzero(horizon.passed))
        plain = observe is None
        self._unfiltered = collector.obs.copy() if plain else boundaries.before_filter(raw_obs, t)
        return t, {"policy": policy_s, "env": env_s}

    def _noise_of(self, request: SampleRequest) -> ActionNoise:
        rng = fragment_noise(self.spec.seed, self.role, self.runner_index, request.fragment)
        if self.policy.draws_for_fragments:
            self.policy.begin_fragment(rng)
        self._noise.begin_fragment(rng, request.length, self.num_lanes)
        return self._noise

    def get_state(self) -> dict[str, Any]:
        """Where the lanes stand; plain numbers and arrays, enough to go on in another process."""
        return {
            "episodes": self._episodes.get_state(),
            "unfiltered_obs": self._unfiltered,
            "envs": self.envs.get_state(),
            "connectors": self.connectors.get_state() if self.connectors.stateful else {},
            "next_fragment": self._next_fragment,
            "faulty_episodes": self._boundaries.num_faulty,
            "collector": self.collector.get_state(),
            "noise": self._noise.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where the runner that `get_state` came from stood.

        Environments that offer their state are given it back. Others are reset with the seeds of
        their running episodes and replay the actions; a lane whose observation then differs is no
        function of these: it is named in the log and starts a fresh episode.
        """
        self._next_fragment, self._unseen = int(state["next_fragment"]), None
        self._boundaries.num_faulty = int(state["faulty_episodes"])
        self.weights_version = -1  # those of another run may have the same number
        if self.connectors.stateful:
            self.connectors.set_state(state["connectors"])
        self._episodes.set_state(state["episodes"])
        self.collector.set_state(state["collector"])
        self._noise.set_state(state["noise"])
        if state["unfiltered_obs"] is None:
            self._unfiltered = None
            return
        self._unfiltered = np.array(state["unfiltered_obs"])
        if state["envs"] is not None:
            self.envs.set_state(state["envs"])
        else:
            self._replay(self._unfiltered)

    def _replay(self, unfiltered: Array) -> None:
        """Bring the environments to where they returned ``unfiltered``, lane by lane."""
        if not self.envs.episode_seeds:
            _log.warning(
                "%s can neither be seeded per episode nor hand out its state: "
                "all running episodes start afresh",
                self.spec.env.use,
            )
            self._boundaries.drop(range(self.num_lanes))
            self._unfiltered = None
            return
        seeds, recorded = self._episodes.seeds, self._episodes.recorded_actions()
        send = self.actions if self._custom is None else self._custom.send
        raw_obs = replay_episodes(self.envs, send, seeds, recorded)
        # Compared before the filter, which has gone on learning since a lane was normalised.
        strayed = differing_rows(self.observations.preprocess(raw_obs), unfiltered)
        lanes = np.flatnonzero(strayed)
        if not len(lanes):
            return
        _log.warning(
            "%s, sub-env %s of runner %d: replaying the episode's actions led to another "
            "observation, it starts a fresh episode",
            self.spec.env.use,
            ", ".join(map(str, lanes)),
            self.runner_index,
        )
        self._boundaries.drop(lanes.tolist())
        first = take_lanes(self.envs.reset_lanes(strayed, self._episodes.seeds), lanes)
        unfiltered[lanes] = self.observations.preprocess(first)
        self._unseen = lanes, first
        self._boundaries.begin(lanes, first, update=False)

    def _see_first_observations(self) -> None:
        """Learn from what nobody has seen yet; only now that the merged statistics have come."""
        if self._unfiltered is None:
            self._reset_all()
        if self._unseen is not None:
            lanes, first = self._unseen
            self._unseen = None
            self._boundaries.begin(lanes, first)

    def ping(self) -> int:
        """Answer a health probe."""
        return self.runner_index

    def stop(self) -> None:
        """Close the environments."""
        self.envs.close()
