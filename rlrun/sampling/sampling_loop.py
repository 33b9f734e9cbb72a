"""SamplingLoop: policies act, environments step, policies observe the results.

The loop of training, evaluation and rollouts, with one agent or several. Knows neither fragments
nor batches; the environments know which episodes to run, and when these end.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any, Protocol

from rlrun.envs.agent_slots import Due, SlotStep
from rlrun.envs.errors import NO_ALLOWED_ACTION, EnvError
from rlrun.policies.action_mask import NoAllowedActionError
from rlrun.sampling.policy_actor import PolicyActor


class SlotEnvs(Protocol):
    """Sub-environments as slots of policies; `LockStepEnvs` or `AgentEnvs`."""

    @property
    def due(self) -> Mapping[str, Due]:
        """The slots that act next, by policy id."""

    @property
    def needs_finish(self) -> bool:
        """Whether `finish_step` must be called after this step."""

    @property
    def stopped(self) -> bool:
        """Whether a recorder has ended the rollout."""

    def start(self, actors: Mapping[str, Any]) -> None:
        """Begin the first episodes, unless some are running."""

    def step(self, actions: Mapping[str, Any]) -> Mapping[str, SlotStep]:
        """Step the sub-environments; returns the results by policy id."""

    def observation_error(self, policy_id: str, due: Due, row: int, reason: str) -> EnvError:
        """An error about the observation in this row of the slots that are due."""

    def finish_step(self, actors: Mapping[str, Any]) -> None:
        """End the episodes that the last step ended, and begin the next ones."""


class SamplingLoop:
    """Steps environments with policies.

    Args:
        actors: by policy id; the dict may change between steps.

    Attributes:
        policy_s, env_s: seconds spent in policies and in environments.
    """

    def __init__(self, envs: SlotEnvs, actors: dict[str, PolicyActor]) -> None:
        self.envs, self.actors = envs, actors
        self.policy_s = self.env_s = 0.0

    def step(self) -> None:
        """Step all sub-environments once."""
        envs, actors = self.envs, self.actors
        clock = perf_counter()
        actions = {}
        for policy_id, due in envs.due.items():
            actor = actors[policy_id]
            try:
                sent = actor.act(due)
            except NoAllowedActionError as error:
                reason = NO_ALLOWED_ACTION
                raise envs.observation_error(policy_id, due, error.row, reason) from None
            if actor.converts:
                sent = actor.to_env(sent)
            actions[policy_id] = sent if due.slots is None else (due.slots, sent)
        acted = perf_counter()
        steps = envs.step(actions)
        stepped = perf_counter()
        self.policy_s += acted - clock
        self.env_s += stepped - acted
        for policy_id, step in steps.items():
            actors[policy_id].observe(step)
        if envs.needs_finish:
            envs.finish_step(actors)
