"""Exactly the episodes that are asked for, for evaluation and rollouts, with one agent or several.

Connectors are frozen and nothing is collected, so that training is not changed. `CountedPlan` says
which episodes they are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.data.seeding import Role, generators_seed, seeded_generators
from rlrun.envs.recorded_step import RecordedStep, Recorder
from rlrun.sampling.agent_envs import AgentEnvs
from rlrun.sampling.env_runner import EnvRunner, names_runner
from rlrun.sampling.episodes import CountedPlan, EpisodeRecord
from rlrun.sampling.runner_messages import SampleRequest, tell_exploration
from rlrun.sampling.sampling_loop import SamplingLoop

_STEPS_KEPT = 64  # vector steps after which what views do not need is dropped
_LONG = 100_000  # env steps after which an episode is warned of; Atari's end after 27,000

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationTask:
    """Episodes for a runner, here or in an actor; called with a request and weights."""

    numbers: Sequence[int]
    seed: int
    explore: bool

    def __call__(
        self, runner: EnvRunner, request: SampleRequest, weights: Any
    ) -> list[EpisodeRecord]:
        load_policies(runner, request, weights)
        return run_episodes(runner, self.numbers, seed=self.seed, explore=self.explore)


def load_policies(runner: EnvRunner, request: SampleRequest, weights: Any) -> None:
    """Let a runner act with the policies of a request, whatever it acted with before."""
    if request.policies is not None:
        runner.set_policies(request.policies)
    runner.weights_version = -1  # weights of another run may have the same version
    runner.load(weights, request.weights_version, request.connector_state)
    tell_exploration(runner.policies, request.exploration)


@names_runner
def run_episodes(
    runner: EnvRunner,
    numbers: Sequence[int],
    *,
    seed: int,
    explore: bool = False,
    recorder: Recorder | None = None,
) -> list[EpisodeRecord]:
    """Run these episodes of ``seed``, numbered from 0, with the runner's present weights.

    Returns:
        The finished episodes, in their order; all of them unless the recorder ended the rollout.
    """
    plan = CountedPlan(numbers, seed, runner.num_envs)
    with seeded_generators(generators_seed(seed, Role.EVALUATION, 0)):
        keys = plan.noise if runner.spec.multi_agent is None else None
        actors = {
            policy_id: runner.make_actor(
                actor.connectors, explore=explore, noise_keys=keys, collects=False
            )
            for policy_id, actor in runner.actors.items()
        }
        watch = runner.episode_callbacks()
        recorders = [each for each in (watch, recorder) if each is not None]

        def record(step: RecordedStep) -> bool:
            return any(each(step) for each in recorders)  # callbacks return None

        envs = runner.slot_envs(plan, collects=False, recorder=record if recorders else None)
        if isinstance(envs, AgentEnvs):
            envs.set_policies(runner.policy_spaces(), actors)
        loop = SamplingLoop(envs, actors)
        for actor in actors.values():
            actor.begin_fragment()
        envs.begin_fragment(actors)
        step = loop.step if watch is None else watch.stepping(loop.step, envs.episodes)
        steps, warned = 0, False
        while len(envs.episodes.records) < len(numbers) and not envs.stopped:
            step()
            steps += 1
            if steps % _STEPS_KEPT == 0:
                for actor in actors.values():
                    actor.discard()
                    actor.begin_fragment()
                if not warned and envs.longest_episode >= _LONG:
                    warned = True
                    _log.warning(
                        "%s: an episode has not ended after %s steps; env_runners.horizon ends it",
                        runner.spec.env.use,
                        f"{envs.longest_episode:,}",
                    )
        return sorted(envs.episodes.records, key=lambda record: record.episode_id)
