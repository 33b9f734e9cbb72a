"""What a checkpoint holds of an algorithm besides its weights, and how one goes on from it.

Owns which parts have a state, under which keys, and in which order they take it back. Must not know
what those parts put into it, nor the files that it is written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlrun.sampling.runner_messages import SampleRequest

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm

_COUNTERS = (
    "iteration",
    "env_steps",
    "agent_steps",
    "trained_steps",
    "weights_version",
    "next_fragment",
)


def algorithm_state(algorithm: Algorithm) -> dict[str, Any]:
    """Everything besides the weights that the next iteration depends on."""
    runners = algorithm.env_runner_group.get_states()
    several = algorithm.multi_agent
    return {
        **{name: getattr(algorithm, name) for name in _COUNTERS},
        "time_s": algorithm.time_s,
        "seed": algorithm.seed,
        "episodes": algorithm.episode_statistics.get_state(),
        "runner_statistics": algorithm.runner_statistics.get_state(),
        "connectors": algorithm.connectors.get_state(),
        "learners": {name: learner.get_state() for name, learner in algorithm.learners.items()},
        "env_runners": {str(index): state for index, state in runners.items()},
        "algorithm": algorithm.get_extra_state(),
        "policies": {} if several is None else several.get_state(),
    }


def set_algorithm_state(algorithm: Algorithm, state: Mapping[str, Any]) -> None:
    """Take over what `algorithm_state` returned; the weights have come already."""
    for name in _COUNTERS:
        setattr(algorithm, name, int(state[name]))
    algorithm.time_s = float(state["time_s"])
    algorithm.evaluator.forget_weights()
    algorithm.episode_statistics.set_state(state["episodes"])
    algorithm.runner_statistics.set_state(state["runner_statistics"])
    algorithm.connectors.set_state(state["connectors"])
    for policy_id, learner in algorithm.learners.items():
        learner.set_state(state["learners"][policy_id])
    if algorithm.multi_agent is not None:
        algorithm.multi_agent.set_state(state["policies"])
        algorithm.acting_weights = algorithm.current_weights()
    algorithm.env_runner_group.set_states(
        {int(index): runner for index, runner in state["env_runners"].items()}
    )
    algorithm.set_extra_state(state["algorithm"])


def request_of(algorithm: Algorithm, state: Mapping[str, Any], length: int) -> SampleRequest:
    """The request whose `get_state` this was: the same fragment, for policies there still are.

    Args:
        length: steps of each lane.
    """
    told = state["policies"]
    policies = None
    if told is not None:
        policies = {name: made for name, made in algorithm.policies.items() if name in told}
    changes = {"length": length, "policies": policies, "unneeded": algorithm.unneeded}
    return SampleRequest(**{**state, **changes})
