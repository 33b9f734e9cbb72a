"""Evaluator: episodes with the present policies, in this process or in env runners of its own.

Owns which episodes an evaluation has, and how runners share them. Each episode is a function of its
seed, so neither the number of runners nor their failures change a result. Evaluation does not
affect training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, count
from typing import Any

from rlrun.actors.env_runner_group import EnvRunnerGroup, Round
from rlrun.algorithms.policies import Policies
from rlrun.algorithms.runners import require_spaces, runner_class
from rlrun.config.policies import evaluation_env, evaluation_runners
from rlrun.config.schema import ExperimentConfig
from rlrun.data.seeding import Role, evaluation_seed
from rlrun.sampling.acting_policy import ActingPolicy
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.episodes import EpisodeRecord
from rlrun.sampling.evaluation import EvaluationTask, load_policies
from rlrun.sampling.runner_connectors import RunnerConnectors
from rlrun.sampling.runner_messages import Exploration, RunnerSpec, SampleRequest, tell_exploration


class Evaluator:
    """Evaluates the present policies.

    Args:
        spec: specification of the training runners.
        explorations: present exploration settings of each policy in env runners.

    Attributes:
        group: the env runners that evaluate, if they are Ray actors.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        spec: RunnerSpec,
        policies: Policies,
        explorations: Callable[[], Mapping[str, Exploration]],
    ) -> None:
        self._settings = config.evaluation
        self._spec = replace(spec, env=evaluation_env(config), settings=evaluation_runners(config))
        if (agents := config.evaluation.agents) is not None:
            assert spec.multi_agent is not None
            several = replace(spec.multi_agent, agents=agents, in_training=spec.multi_agent)
            self._spec = replace(self._spec, multi_agent=several)
            require_spaces(self._spec, policies.spaces, "evaluation.agents")
        elif config.evaluation.env:
            require_spaces(self._spec, policies.spaces, "evaluation.env")
        self._policies, self._explorations = policies, explorations
        self._runner: EnvRunner | None = None
        self.group: EnvRunnerGroup | None = None
        self._begun: Callable[[], list[Any]] | None = None  # returns a round's replies
        self._num_requests = 0
        self._seeds = count()  # of acting policies
        if config.evaluation.num_env_runners:
            self.group = EnvRunnerGroup(
                self._spec,
                num_env_runners=config.evaluation.num_env_runners,
                fault_tolerance=config.fault_tolerance,
                role=Role.EVALUATION,
                runner_class=runner_class(self._spec.settings),
                wait=False,
            )

    def wait_until_built(self) -> None:
        """See `EnvRunnerGroup.wait_until_built`."""
        if self.group is not None:
            self.group.wait_until_built()

    def begin(self) -> None:
        """Ask the actors for the first episodes of `evaluate`, with the present weights."""
        self._begun = self._round(range(self._at_once)).replies

    def evaluate(self, *, begun: bool = False) -> list[EpisodeRecord]:
        """As many finished episodes as `evaluation` asks for, in their order.

        Args:
            begun: take the episodes that `begin` has asked for. Otherwise they are kept: a callback
                evaluates in the middle of an iteration.
        """
        if begun or self._begun is None:
            return self.episodes_by(self._run)
        asked, self._begun = self._begun, None
        replies = asked()  # first, as runners have one round at a time
        found = self.episodes_by(self._run)
        self._begun = lambda: replies
        return found

    def episodes_by(self, run: Callable[[range], list[EpisodeRecord]]) -> list[EpisodeRecord]:
        """The episodes that ``run`` plays; it takes their numbers, and may end early with fewer."""
        found: list[EpisodeRecord] = []
        limit = self._settings.env_steps
        while True:
            numbers = range(len(found), len(found) + self._at_once)
            found += run(numbers)
            if limit is None or len(found) < numbers.stop:
                return found
            lengths = accumulate(episode.length for episode in found)
            enough = next((k for k, steps in enumerate(lengths, 1) if steps >= limit), None)
            if enough is not None:
                return found[:enough]

    @property
    def _at_once(self) -> int:
        """Episodes that are asked for together: all, or one of each sub-environment."""
        if self._settings.env_steps is None:
            return self._settings.episodes
        return self._spec.settings.num_envs_per_env_runner * max(self._settings.num_env_runners, 1)

    def _run(self, numbers: Sequence[int]) -> list[EpisodeRecord]:
        if self.group is None:
            return self._task(numbers)(self._local(), *self._request())
        found: dict[int, EpisodeRecord] = {}
        while missing := [number for number in numbers if number not in found]:
            replies, self._begun = self._begun or self._round(missing).replies, None
            for episodes in replies():
                found |= {episode.episode_id: episode for episode in episodes}
        return [found[number] for number in numbers]

    def _round(self, numbers: Sequence[int]) -> Round:
        assert self.group is not None
        assert self.group.remote is not None
        healthy = self.group.remote.actors.healthy_actor_ids
        tasks = {
            index: self._task(numbers[i :: len(healthy)])
            for i, index in enumerate(healthy)
            if i < len(numbers)
        }
        return Round(self.group.remote, *self._request(), tasks=tasks)

    def _task(self, numbers: Sequence[int]) -> EvaluationTask:
        return EvaluationTask(numbers, self.seed(), self._settings.explore)

    def _request(self) -> tuple[SampleRequest, Any]:
        policies = self._policies
        self._num_requests += 1
        request = SampleRequest(
            fragment=self._num_requests,
            length=0,
            weights_version=policies.weights_version,
            connector_state=policies.connectors.get_state(),
            exploration=self._explorations(),
            policies=dict(policies) if policies.several else None,
        )
        return request, policies.acting_weights

    def seed(self) -> int:
        """The seed of evaluation episodes: the experiment's own, or one derived from its seed."""
        seed = self._settings.seed
        return evaluation_seed(self._spec.seed) if seed is None else seed

    def runner(self, render_mode: str | None = None) -> EnvRunner:
        """A runner in this process, with present policies, weights, statistics and exploration."""
        runner = self._local(render_mode)
        load_policies(runner, *self._request())
        return runner

    def connectors(self, policy_id: str, num_envs: int) -> RunnerConnectors:
        """The present policy with connectors for this many environments."""
        policies = self._policies
        connectors = RunnerConnectors(
            self._spec,
            *policies.spaces[policy_id],
            num_slots=num_envs,
            key=(Role.EVALUATION, 0),
            policy=policies[policy_id],
        )
        connectors.set_state(policies.connectors.get_state()[policy_id])
        policy = connectors.policy
        policy.set_weights(policies.acting_weights[policy_id])
        tell_exploration({policy_id: policy}, self._explorations())
        return connectors

    def acting_policy(
        self, policy_id: str | None, num_envs: int, *, explore: bool | None, seed: int | None
    ) -> ActingPolicy:
        """See `Algorithm.acting_policy`."""
        if seed is not None and seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed}")
        known = list(self._policies)
        if policy_id is None and len(known) > 1:
            raise KeyError(f"there are several policies, name one of {', '.join(known)}")
        policy_id = known[0] if policy_id is None else policy_id
        if policy_id not in known:
            raise KeyError(f"there is no policy {policy_id!r}; policies: {', '.join(known)}")
        connectors = self.connectors(policy_id, num_envs)
        seed = next(self._seeds) if seed is None else seed
        return ActingPolicy(connectors, self._spec.settings, num_envs, explore=explore, seed=seed)

    def _local(self, render_mode: str | None = None) -> EnvRunner:
        if self._runner is None or render_mode is not None:
            if self._runner is not None:
                self._runner.stop()
            make_runner = runner_class(self._spec.settings)
            self._runner = make_runner(self._spec, role=Role.EVALUATION, render_mode=render_mode)
        return self._runner

    def interrupt(self) -> None:
        """See `EnvRunnerGroup.interrupt`."""
        if self.group is not None:
            self.group.interrupt()

    def stop(self) -> None:
        """Close the environments, and end the actors."""
        if self._runner is not None:
            self._runner.stop()
            self._runner = None
        if self.group is not None:
            self.group.stop()
