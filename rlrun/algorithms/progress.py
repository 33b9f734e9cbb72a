"""Progress: the counters, statistics and timers of a run, and the result of each iteration.

Must not know how anything is sampled or learned.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlrun.actors.env_runner_group import EnvRunnerGroup
from rlrun.algorithms.result import (
    SCHEMA_VERSION,
    EpisodeStatistics,
    PhaseTimers,
    Result,
    RunnerStatistics,
)
from rlrun.config.schema import ExperimentConfig
from rlrun.data.sample_batch import DEFAULT_POLICY_ID
from rlrun.sampling.runner_messages import SampleReply

_log = logging.getLogger(__name__)

_SYNCED_BY = 100  # iterations
_COUNTERS = ("iteration", "env_steps", "agent_steps", "trained_steps", "next_fragment")


class Progress:
    """Counts the steps of a run and collects its statistics.

    Attributes:
        iteration: finished iterations.
        env_steps, agent_steps: sampled steps of environments, and of agents.
        trained_steps: rows that policies have learned from; replayed rows count each time.
        next_fragment: number of the next request to env runners.
        time_s: seconds of all finished iterations.
        episodes, env_runners: statistics.
        evaluations: statistics of the evaluations' episodes, which know all names of metrics.
        policy_lag: age of the weights that sampled the last train batch, for the result.
        timers: seconds of this iteration by phase, the experiment's own phases included.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        self._report = config.report
        self._by_agent = config.multi_agent.count_steps_by == "agent_steps"
        self.iteration = self.env_steps = self.agent_steps = self.trained_steps = 0
        self.next_fragment = 0
        self.time_s = 0.0
        keys = config.report.info_keys
        of_episodes, of_agents = ((), keys) if config.multi_agent.policies else (keys, ())
        window = config.report.smoothing_episodes
        self.episodes = EpisodeStatistics(window, of_episodes, of_agents)
        self.evaluations = EpisodeStatistics(window=0)
        self.env_runners = RunnerStatistics(config.env_runners.sampler_perf_stats_ema_coef)
        self._faults, self._faults_of_session = Counter[str](), Counter[str]()
        self.timers = PhaseTimers()
        self.policy_lag: dict[str, float] = {}
        self._interrupted = False
        self.begin_iteration()

    @property
    def counted_steps(self) -> int:
        """Env steps, or agent steps where `multi_agent.count_steps_by` says so."""
        return self.agent_steps if self._by_agent else self.env_steps

    def count(self, reply: SampleReply) -> None:
        """Count the steps, episodes and timings of a reply."""
        self.env_steps += reply.env_steps
        self.agent_steps += reply.agent_steps
        if reply.episodes:
            self.episodes.add(reply.episodes)
        self.env_runners.add(reply)

    def note_policy_lag(self, weights_version: int, replies: Sequence[SampleReply]) -> None:
        """Note by how many updates the weights that acted are behind, for the next result."""
        lags = [weights_version - reply.weights_version for reply in replies]
        mean, most = sum(lags) / len(lags), float(max(lags))
        self.policy_lag = {"policy_lag_mean": mean, "policy_lag_max": most}

    def learner_result(
        self, trained_steps: int, statistics: Mapping[str, Any], policy_id: str = DEFAULT_POLICY_ID
    ) -> Result:
        """One policy's row of the result's `learners`; counts its trained steps."""
        self.trained_steps += trained_steps
        stats = {**statistics, **self.policy_lag}
        return {policy_id: {"num_agent_steps_trained": trained_steps, "learner_stats": stats}}

    def begin_iteration(self) -> None:
        """Begin to count towards the next result."""
        self._interrupted = False
        self._env_steps_before, self._trained_before = self.env_steps, self.trained_steps
        self._counted_before = self.counted_steps
        self._agent_steps_before = self.agent_steps

    def interrupt(self) -> None:
        """Shorten the running iteration."""
        self._interrupted = True

    def minimums_met(self) -> bool:
        """Whether this iteration has reached the minimums of section `report`.

        An interrupted one waits neither for time to pass nor for learning that has not begun.
        """
        report, sampled = self._report, self.counted_steps - self._counted_before
        trained = self.trained_steps - self._trained_before
        passed = self._interrupted or self.timers.elapsed() >= (
            report.min_time_s_per_iteration or 0
        )
        learned = trained >= (report.min_train_timesteps_per_iteration or 0)
        return (
            passed
            and sampled >= (report.min_sample_timesteps_per_iteration or 0)
            and (learned or (self._interrupted and not trained))
        )

    def end_iteration(
        self,
        *,
        env_runners: EnvRunnerGroup,
        policies: Sequence[str],
        agents: Sequence[str],
        weights_version: int,
        learners: Result,
        evaluation: Result,
    ) -> Result:
        """End the iteration; returns its result.

        Args:
            env_runners: whose health is reported.
            policies, agents: named in the result whether or not they took part.
            learners, evaluation: parts of the result.
        """
        if self.iteration == _SYNCED_BY and self.trained_steps and not weights_version:
            _log.warning(
                "training_step() never calls sync_weights(): runners act with the first weights"
            )
        timers, wall_s = self.timers.lap()
        self.time_s += wall_s
        new_steps = self.env_steps - self._env_steps_before
        newly_trained = self.trained_steps - self._trained_before
        return {
            "schema_version": SCHEMA_VERSION,
            "training_iteration": self.iteration,
            "env_steps": self.env_steps,
            "agent_steps": self.agent_steps,
            "env_steps_this_iter": new_steps,
            "agent_steps_this_iter": self.agent_steps - self._agent_steps_before,
            "agent_steps_trained": self.trained_steps,
            "agent_steps_trained_this_iter": newly_trained,
            "agent_steps_trained_per_s": newly_trained / wall_s,
            **self.episodes.end_iteration(),
            "env_steps_per_s": new_steps / wall_s,
            "time_s": self.time_s,
            "weights_version": weights_version,
            "env_runners": {
                "healthy": env_runners.num_healthy,
                **self._faults_so_far(env_runners),
                "in_flight": env_runners.num_in_flight,
                **self.env_runners.result(env_runners.indices),
                **self.episodes.agent_returns(policies, agents),
                **self.episodes.success_rates(policies),
            },
            "custom_metrics": self.episodes.custom_metrics(policies),
            **({"hist_stats": self.episodes.hist_stats()} if self._report.hist_stats else {}),
            "learners": learners,
            "evaluation": evaluation,
            "timers": timers,
        }

    def _faults_so_far(self, group: EnvRunnerGroup) -> Result:
        """What runners have lost since the start of the run, which may have been resumed."""
        found = group.faults()
        causes = found.pop("restarts_by_cause")
        now = Counter({**found, **causes})
        self._faults += now - self._faults_of_session
        self._faults_of_session = now
        return {
            **{name: self._faults[name] for name in found},
            "restarts_by_cause": {cause: self._faults[cause] for cause in causes},
        }

    def get_state(self) -> dict[str, Any]:
        """Counters and statistics at the end of an iteration."""
        return {
            **{name: getattr(self, name) for name in _COUNTERS},
            "time_s": self.time_s,
            "faults": dict(self._faults),
            "episodes": self.episodes.get_state(),
            "evaluations": self.evaluations.get_state(),
            "env_runners": self.env_runners.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        for name in _COUNTERS:
            setattr(self, name, int(state[name]))
        self.time_s = float(state["time_s"])
        self._faults = Counter(state.get("faults", {}))  # older checkpoints lack them
        self.episodes.set_state(state["episodes"])
        if "evaluations" in state:  # older checkpoints lack it
            self.evaluations.set_state(state["evaluations"])
        self.env_runners.set_state(state["env_runners"])
