"""SamplingLoop: policies act, environments step, policies observe the results.

The loop of training, evaluation and rollouts, with one agent or several. Knows neither fragments
nor batches; the environments know which episodes to run, and when these end.
"""

from __future__ import annotations

from time import perf_counter

from rlrun.envs.errors import NO_ALLOWED_ACTION
from rlrun.policies.action_mask import NoAllowedActionError
from rlrun.sampling.agent_envs import AgentEnvs
from rlrun.sampling.lock_step_envs import LockStepEnvs
from rlrun.sampling.policy_actor import PolicyActor

SlotEnvs = LockStepEnvs | AgentEnvs
"""Sub-environments as slots of policies, with one agent each or several."""


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
