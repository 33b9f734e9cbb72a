"""RunnerEnvironments: the environments of an env runner, from its spec.

Owns how they are built and closed, which spaces their policies have, and how they become slots of
policies: `LockStepEnvs` where each has one agent and all step together, else `AgentEnvs`. Must not
know weights, fragments or callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlrun.config.policies import PolicySettings
from rlrun.data.sample_batch import DEFAULT_POLICY_ID
from rlrun.envs.env import EnvContext
from rlrun.envs.episode_vector_env import EpisodeVectorEnv
from rlrun.envs.horizon import make_horizon
from rlrun.envs.multi_agent_env import SubEnvs
from rlrun.envs.multi_agent_vector_env import MultiAgentVectorEnv
from rlrun.envs.rebuilder import Rebuilder
from rlrun.envs.recorded_step import Recorder
from rlrun.envs.vector_env import make_sub_envs, make_vector_env
from rlrun.envs.watchdog import close_in_time, end_late_calls
from rlrun.policies.policy_mapping import AgentMapping, Spaces, policy_spaces
from rlrun.sampling.agent_envs import AgentEnvs
from rlrun.sampling.episodes import AgentEpisodes, LockStepEpisodes, Plan
from rlrun.sampling.lock_step_envs import LockStepEnvs
from rlrun.sampling.runner_messages import RunnerSpec
from rlrun.sampling.sampling_loop import SlotEnvs


class RunnerEnvironments:
    """The environments of an env runner.

    Args:
        context: what their constructors receive.
        render_mode: gymnasium's, for each environment.
        created: called with the index and the environment of each sub-environment that is made.

    Attributes:
        envs: the environments.
        lock_step: whether they have one agent each and all step together; slots are then
            sub-environments.
        rebuilder: builds sub-environments again that have failed.

    Raises:
        EnvError: an environment cannot be built.
    """

    def __init__(
        self,
        spec: RunnerSpec,
        context: EnvContext,
        *,
        render_mode: str | None = None,
        created: Callable[[int, Any], None] | None = None,
    ) -> None:
        self._spec, self._runner_index = spec, context.worker_index
        self._num_envs = spec.settings.num_envs_per_env_runner
        several = spec.multi_agent
        self._mapping = AgentMapping(None) if several is None else several.mapping()
        self.lock_step = spec.multi_agent is None and spec.settings.remote_env_batch_wait_ms is None
        self.rebuilder = Rebuilder(
            spec.env.use,
            spec.restart_failed_sub_environments,
            spec.max_sub_environment_failures_per_1000_steps,
            self._runner_index,
        )
        # What is evaluated is what training has proven.
        self.rebuilder.proven = not context.training
        self._watchdog = end_late_calls(spec.env_timeout_s)
        try:
            self.envs: Any = self._make(context, render_mode, created)
        except BaseException:
            self._end_watchdog()
            raise

    def _make(
        self,
        context: EnvContext,
        render_mode: str | None,
        created: Callable[[int, Any], None] | None,
    ) -> EpisodeVectorEnv | SubEnvs:
        spec = self._spec
        what = spec.env, self._num_envs, spec.settings, context
        how: dict[str, Any] = {"render_mode": render_mode, "created": created}
        how["env_timeout_s"] = spec.env_timeout_s
        if self.lock_step:
            return make_vector_env(*what, rebuilder=self.rebuilder, **how)
        return make_sub_envs(*what, several=spec.multi_agent is not None, **how)

    @property
    def agents_per_env(self) -> int:
        """How many agents a sub-environment may have."""
        return 1 if self._spec.multi_agent is None else len(self.envs.envs[0].possible_agents)

    def policy_spaces(self, policies: Mapping[str, PolicySettings | None]) -> dict[str, Spaces]:
        """Observation and action space of each of these policies."""
        if self.lock_step:
            spaces = self.envs.single_observation_space, self.envs.single_action_space
            return {DEFAULT_POLICY_ID: spaces}
        if self._spec.multi_agent is None:
            (observation_space,) = self.envs.envs[0].observation_spaces.values()
            (action_space,) = self.envs.envs[0].action_spaces.values()
            return {DEFAULT_POLICY_ID: (observation_space, action_space)}
        settings = {name: one for name, one in policies.items() if one is not None}
        found = policy_spaces(self.envs.envs[0], self._mapping, settings)
        return {policy_id: found[policy_id] for policy_id in settings}

    def as_slots(
        self, plan: Plan, *, collects: bool = True, recorder: Recorder | None = None
    ) -> SlotEnvs:
        """The environments as slots of policies; see `EnvRunner.slot_envs`."""
        spec, env_id = self._spec, self._spec.env.use
        if not collects:
            self.rebuilder.begin_evaluation()
        if self.lock_step:
            can_reset = self.envs.resets_single_envs
            return LockStepEnvs(
                self.envs,
                LockStepEpisodes(plan, self._num_envs, spec.max_replayed_env_steps),
                make_horizon(spec.settings, soft=collects, can_reset=can_reset),
                env_id,
                runner_index=self._runner_index,
                collects=collects,
                recorder=recorder,
                info_keys=spec.info_keys,
            )
        env = MultiAgentVectorEnv(
            self.envs,
            self._mapping,
            env_id,
            horizon=make_horizon(spec.settings, soft=collects),
            rebuilder=self.rebuilder,
            recorder=recorder,
            info_keys=spec.info_keys,
        )
        return AgentEnvs(
            env,
            AgentEpisodes(plan, self._num_envs, spec.max_replayed_env_steps),
            env_id,
            runner_index=self._runner_index,
            whole_episodes=spec.settings.batch_mode == "complete_episodes",
            count_agent_steps=spec.multi_agent is not None and spec.multi_agent.count_agent_steps,
        )

    def close(self) -> None:
        """Close all of them."""
        self._end_watchdog()
        close_in_time(self.envs.close)

    def _end_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
