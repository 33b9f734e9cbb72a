"""`synchronous_parallel_sample`: rounds over all env runners until there is enough.

Owns the counting of a train batch out of whole rounds. Knows nothing of Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlrun.data.sample_batch import MultiAgentBatch, SampleBatch

if TYPE_CHECKING:
    from rlrun.actors.env_runner_group import EnvRunnerGroup


def synchronous_parallel_sample(
    group: EnvRunnerGroup,
    *,
    max_env_steps: int | None = None,
    max_agent_steps: int | None = None,
    weights: Any = None,
    concat: bool = True,
) -> SampleBatch | MultiAgentBatch | list[SampleBatch | MultiAgentBatch]:
    """Sample from all healthy runners (the local one if there are none) in whole rounds.

    Args:
        group: the runners.
        max_env_steps: go on until the batches hold so many env steps; whole rounds can overshoot.
        max_agent_steps: the same in agent steps. Without either limit: one round.
        weights: sent to the runners with the first round.
        concat: one batch; otherwise a list of one batch a runner and round.

    Raises:
        ValueError: both limits are given.
    """
    if max_env_steps is not None and max_agent_steps is not None:
        raise ValueError("give max_env_steps or max_agent_steps, not both")
    batches: list[SampleBatch | MultiAgentBatch] = []
    env_steps = agent_steps = 0
    while True:
        for reply in group.sample(weights=weights):
            batches.append(reply.batch)
            env_steps += reply.env_steps
            agent_steps += reply.batch.agent_steps()
        weights = None
        enough = (max_env_steps is None or env_steps >= max_env_steps) and (
            max_agent_steps is None or agent_steps >= max_agent_steps
        )
        if enough:
            break
    return SampleBatch.concat_samples(batches) if concat else batches
