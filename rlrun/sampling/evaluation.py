"""Exactly N episodes, for evaluation and rollouts, with one agent or several.

Connectors are frozen and nothing is collected, so that training is not changed. `CountedPlan` says
which episodes they are.
"""

from __future__ import annotations

from rlrun.data.seeding import Role, generators_seed, seeded_generators
from rlrun.envs.recorded_step import Recorder
from rlrun.sampling.agent_envs import AgentEnvs
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.episodes import CountedPlan, EpisodeRecord
from rlrun.sampling.sampling_loop import SamplingLoop

_STEPS_KEPT = 64  # vector steps after which what views do not need is dropped


def run_episodes(
    runner: EnvRunner,
    *,
    num_episodes: int,
    seed: int,
    explore: bool = False,
    recorder: Recorder | None = None,
) -> list[EpisodeRecord]:
    """Run episodes 0..N-1 of ``seed`` with the runner's present weights.

    Returns:
        The finished episodes, in their order; all N unless the recorder ended the rollout.
    """
    with seeded_generators(generators_seed(seed, Role.EVALUATION, 0)):
        return _run_episodes(runner, num_episodes, seed, explore, recorder)


def _run_episodes(
    runner: EnvRunner, num_episodes: int, seed: int, explore: bool, recorder: Recorder | None
) -> list[EpisodeRecord]:
    plan = CountedPlan(num_episodes, seed, runner.num_envs, runner.spec.env.use)
    keys = plan.noise if runner.spec.multi_agent is None else None
    actors = {
        policy_id: runner.make_actor(
            actor.connectors, explore=explore, noise_keys=keys, learns=False
        )
        for policy_id, actor in runner.actors.items()
    }
    envs = runner.slot_envs(plan, collects=False, recorder=recorder)
    if isinstance(envs, AgentEnvs):
        envs.set_policies(runner.policy_spaces(), actors)
    loop = SamplingLoop(envs, actors)
    _begin_fragment(loop)
    envs.begin_fragment(actors)
    envs.start(actors, update=False)
    steps = 0
    while len(envs.episodes.records) < num_episodes and not envs.stopped:
        loop.step()
        steps += 1
        if steps % _STEPS_KEPT == 0:
            for actor in actors.values():
                actor.discard()
            _begin_fragment(loop)
    return sorted(envs.episodes.records, key=lambda record: record.episode_id)


def _begin_fragment(loop: SamplingLoop) -> None:
    for actor in loop.actors.values():
        actor.begin_fragment(frozenset(), None, 0)
