"""What an algorithm keeps because there are several policies.

Owns the policies that are written from scratch, who learns, which policies were added while the run
went on, and the returns of agents. Networks and their learners are the algorithm's, one for each
policy, as with one agent.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlrun.algorithms.agent_returns import AgentReturns, return_means
from rlrun.algorithms.central_connectors import ConnectorsByPolicy
from rlrun.config.registry import import_object
from rlrun.data.multi_agent_batch import MultiAgentBatch
from rlrun.data.sample_batch import SampleBatch
from rlrun.policies.multi_agent_rl_module import MultiAgentRLModule
from rlrun.policies.policy import Policy
from rlrun.sampling.episodes import EpisodeRecord

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm


class MultiAgentPolicies:
    """`Algorithm.multi_agent`; None in algorithms of one agent.

    Attributes:
        agents: names of all who may take part.
        scratch: policies written from scratch, by id; they learn by `Policy.learn_on_batch`.
    """

    def __init__(self, algorithm: Algorithm, agents: Sequence[str]) -> None:
        self._algorithm = algorithm
        self.agents = list(agents)
        self._returns = AgentReturns(algorithm.config.report.smoothing_episodes, agents)
        self.scratch: dict[str, Policy] = {}
        self._learned: dict[str, Any] = {}
        to_train = algorithm.config.multi_agent.policies_to_train
        self._to_train: Any = import_object(to_train) if isinstance(to_train, str) else None
        for policy_id, settings in algorithm.policies.items():
            if settings.use is not None:
                self.scratch[policy_id] = self._make_scratch(policy_id)

    def _make_scratch(self, policy_id: str) -> Policy:
        algorithm, settings = self._algorithm, self._algorithm.policies[policy_id]
        assert settings.use is not None  # that is what written from scratch means
        space = algorithm.connectors.output_space(policy_id)
        action_space = algorithm.connectors.action_space(policy_id)
        policy: Policy = import_object(settings.use)(space, action_space, dict(settings.kwargs))
        return policy

    # -- learning ------------------------------------------------------------------------------

    def train_batches(
        self, batch: SampleBatch | MultiAgentBatch
    ) -> Iterator[tuple[str, SampleBatch]]:
        """What each network is to learn from; policies written from scratch learn here."""
        several = batch.as_multi_agent()
        batches = several.policy_batches
        for policy_id, settings in self._algorithm.policies.items():
            if not settings.train:
                continue
            if policy_id not in batches or not self.is_policy_to_train(policy_id, several):
                nothing = {"num_agent_steps_trained": 0, "learner_stats": {}}
                self._learned.setdefault(policy_id, nothing)
            elif policy_id in self.scratch:
                self._learn(policy_id, batches[policy_id])
            else:
                yield policy_id, batches[policy_id]

    def is_policy_to_train(self, policy_id: str, batch: MultiAgentBatch | None = None) -> bool:
        """Whether a policy learns: from this train batch, or at present if none is given."""
        if not self._algorithm.policies[policy_id].train:
            return False
        return self._to_train is None or bool(self._to_train(policy_id, batch))

    def _learn(self, policy_id: str, batch: SampleBatch) -> None:
        algorithm, policy = self._algorithm, self.scratch[policy_id]
        with algorithm.timers.phase("learn"):
            statistics = policy.learn_on_batch(batch)
        row = algorithm.learner_result(len(batch), statistics or {}, policy_id)[policy_id]
        if policy_id in self._learned:  # from an earlier batch of this iteration
            row["num_agent_steps_trained"] += self._learned[policy_id]["num_agent_steps_trained"]
        self._learned[policy_id] = row

    def learned(self, learners: Mapping[str, Any]) -> dict[str, Any]:
        """The `learners` part of an iteration's result: that of its networks, and all others."""
        known, self._learned = {**self._learned, **learners}, {}
        return {
            policy_id: known[policy_id]
            for policy_id in self._algorithm.policies
            if policy_id in known
        }

    def modules(self) -> MultiAgentRLModule:
        """The networks of all policies that have one, as they learn."""
        learners = self._algorithm.learners
        return MultiAgentRLModule({name: learner.module for name, learner in learners.items()})

    # -- weights -------------------------------------------------------------------------------

    def weights(self) -> dict[str, Any]:
        """What env runners act with, by policy; a network's weights are one flat vector."""
        learners = self._algorithm.learners
        # A copy: a policy may change in place what it hands out, and would change the past.
        scratch = {name: copy.deepcopy(made.get_weights()) for name, made in self.scratch.items()}
        return {**{name: learner.get_weights() for name, learner in learners.items()}, **scratch}

    def named_weights(self) -> dict[str, Any]:
        """Copies of all networks' weights, as ``<policy id>/<parameter>``."""
        return {
            f"{policy_id}/{name}": array
            for policy_id, learner in self._algorithm.learners.items()
            for name, array in learner.named_weights().items()
        }

    def load_named_weights(self, weights: Mapping[str, Any]) -> None:
        """Take over what `named_weights` returned."""
        for policy_id, learner in self._algorithm.learners.items():
            prefix = f"{policy_id}/"
            learner.load_named_weights(
                {
                    name.removeprefix(prefix): array
                    for name, array in weights.items()
                    if name.startswith(prefix)
                }
            )

    # -- results -------------------------------------------------------------------------------

    def count(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Take finished episodes into the books."""
        self._returns.add(episodes)

    def end_iteration(self) -> dict[str, Any]:
        """Returns of policies and agents, for the result of the iteration."""
        return self._returns.end_iteration(self._algorithm.policies)

    def evaluation_result(self, episodes: Sequence[EpisodeRecord] | None) -> dict[str, Any]:
        """The same of these episodes."""
        played = [episode.agents for episode in episodes or ()]
        return return_means(played, self._algorithm.policies, self.agents)

    # -- policies that come and go -------------------------------------------------------------

    def add(self, policy_id: str, like: str, train: bool) -> None:
        """See `Algorithm.add_policy`."""
        algorithm = self._algorithm
        if policy_id in algorithm.policies:
            raise ValueError(f"there is a policy {policy_id!r} already")
        if not policy_id or "/" in policy_id:
            raise ValueError(f"a policy id is not empty and has no slash: {policy_id!r}")
        root = algorithm.policies[like].like or like
        algorithm.policies[policy_id] = replace(algorithm.policies[like], train=train, like=root)
        algorithm.spaces[policy_id] = algorithm.spaces[like]
        self._connectors().add(policy_id, like)
        if like in self.scratch:
            policy = self._make_scratch(policy_id)
            policy.set_state(self.scratch[like].get_state())
            self.scratch[policy_id] = policy
        else:
            learner = algorithm.make_learner(policy_id)
            learner.load_named_weights(algorithm.learners[like].named_weights())
            algorithm.learners[policy_id] = learner

    def remove(self, policy_id: str) -> None:
        """See `Algorithm.remove_policy`."""
        algorithm = self._algorithm
        if policy_id not in algorithm.policies:
            raise ValueError(f"there is no policy {policy_id!r}")
        if algorithm.policies[policy_id].like is None:
            raise ValueError(f"the policy {policy_id!r} is one of the experiment's own")
        self._connectors().remove(policy_id)
        tables: list[dict[str, Any]] = [algorithm.policies, algorithm.spaces, algorithm.learners]
        for table in (*tables, self.scratch):
            table.pop(policy_id, None)
        algorithm.forget_policy(policy_id)

    def _connectors(self) -> ConnectorsByPolicy:
        connectors = self._algorithm.connectors
        assert isinstance(connectors, ConnectorsByPolicy)  # of several policies
        return connectors

    def match(self, state: Mapping[str, Any]) -> None:
        """Have the policies that there were at `get_state`, here and in env runners."""
        policies = self._algorithm.policies
        for policy_id in [name for name in policies if name not in state["ids"]]:
            self.remove(policy_id)
        for policy_id, made in state["added"].items():
            if policy_id not in policies:
                self.add(policy_id, str(made["like"]), bool(made["train"]))
        now = dict(policies)
        self._algorithm.env_runner_group.foreach_env_runner(lambda runner: runner.set_policies(now))

    # -- state ---------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Everything besides networks and their learners."""
        policies = self._algorithm.policies
        return {
            "ids": list(policies),
            "added": {
                policy_id: {"like": policy.like, "train": policy.train}
                for policy_id, policy in policies.items()
                if policy.like is not None
            },
            "returns": self._returns.get_state(),
            "scratch": {name: policy.get_state() for name, policy in self.scratch.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self._returns.set_state(state["returns"])
        for policy_id, policy_state in state["scratch"].items():
            self.scratch[policy_id].set_state(policy_state)


def several_policies(algorithm: Algorithm) -> MultiAgentPolicies:
    """The algorithm's; raises ValueError if it has one agent."""
    if algorithm.multi_agent is None:
        raise ValueError("policies come and go only where multi_agent.policies names some")
    return algorithm.multi_agent
