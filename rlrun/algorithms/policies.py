"""Policies: everything that an algorithm has for each of its policies, one or several.

Owns settings, learners, custom policies, connectors and acting weights, all by policy
id, which policies learn, and adding and removing policies. Must not know how anything is sampled or
counted. The only policy of a single agent has the id `default_policy`.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from rlrun.algorithms.central_connectors import CentralConnectors
from rlrun.algorithms.learner_connectors import LearnerConnectors, require_valid
from rlrun.algorithms.progress import Progress
from rlrun.algorithms.runners import require_form
from rlrun.config.policies import PolicySettings, policy_settings
from rlrun.config.registry import import_object
from rlrun.config.schema import ExperimentConfig
from rlrun.data import columns as col
from rlrun.data.column_reads import ReadsByPolicy
from rlrun.data.nested import has_action_mask
from rlrun.data.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch
from rlrun.data.seeding import policy_key, weights_seed
from rlrun.envs.spaces_only import plain_spaces, spaces_of
from rlrun.learning.learner import Learner
from rlrun.learning.learner_group import LearnerGroup
from rlrun.learning.losses import require_numbers
from rlrun.policies.catalog import seeded_torch
from rlrun.policies.policy import Policy
from rlrun.policies.policy_mapping import Spaces
from rlrun.policies.rl_module import MultiAgentRLModule
from rlrun.sampling.runner_messages import RunnerSpec, custom_policy

State = dict[str, Any]

_LARGE_RETURN = 1e6  # value losses grow with its square
_DROWNING = 1e5  # as a multiple of `grad_clip`; Adam's epsilon is then a match for what is left

_log = logging.getLogger(__name__)


class DivergedError(RuntimeError):
    """A loss, a gradient or a weight is no longer a finite number."""

    exit_code = 1


class Policies(Mapping[str, PolicySettings]):
    """Policy id -> settings; everything else that belongs to a policy is in the attributes.

    Attributes:
        settings: of each policy; all mappings here have policy ids as keys.
        several: whether `multi_agent.policies` names policies, so that others can be added.
        agents: names of all agents that may act; empty for environments with a single agent.
        spaces: observation and action space of the policy's agents, as in the environment.
        connectors: the training process's.
        learners: one for each policy that is a network.
        custom: policies that the user has written, which learn by `Policy.learn_on_batch`.
        reads: which columns of train batches were read, and so which are left out.
        acting_weights: weights that env runners act with from the next request on.
        weights_version: number of updates of `acting_weights`.
        before_learning: called with a policy's id and its train batch after learner connectors.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        self.settings = policy_settings(config, DEFAULT_POLICY_ID)
        self.several = bool(config.multi_agent.policies)
        self.agents: list[str] = []
        self.spaces: dict[str, Spaces] = {}
        self.connectors: CentralConnectors
        self.learners: dict[str, Learner] = {}
        self.custom: dict[str, Policy] = {}
        self.reads = ReadsByPolicy()
        self.acting_weights: dict[str, Any] = {}
        self.weights_version = 0
        to_train = config.multi_agent.policies_to_train
        self._to_train: Callable[[str, MultiAgentBatch | None], Any] | None = (
            import_object(to_train) if isinstance(to_train, str) else None
        )
        self.before_learning: Callable[[str, SampleBatch], None] | None = None
        self._seed, self._num_added = config.seed or 0, 0
        self._learner_connectors: dict[str, LearnerConnectors] = {}
        self._warned: set[str] = set()
        self._rows: dict[str, Any] = {}  # of the result, for policies without a gradient step here

    def __getitem__(self, policy_id: str) -> PolicySettings:
        return self.settings[policy_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.settings)

    def __len__(self) -> int:
        return len(self.settings)

    def build(
        self,
        spec: RunnerSpec,
        spaces: Mapping[str, Spaces],
        agents: Sequence[str],
        make_learner: Callable[[str], Learner],
    ) -> None:
        """Make connectors, learners and custom policies.

        Args:
            spec: specification of the env runners.
            spaces: the environment's, by policy.
            make_learner: makes a policy's learner, given its id.
        """
        self.spaces, self.agents = dict(spaces), list(agents)
        self._make_learner = make_learner
        self.connectors = CentralConnectors(spec, self.settings, self.spaces)
        for policy_id in self.settings:
            self._make(policy_id)

    def _make(self, policy_id: str) -> None:
        """Make a network's learner, or a custom policy."""
        settings = self.settings[policy_id]
        if settings.use is None:
            self.learners[policy_id] = self._make_learner(policy_id)
            return
        with seeded_torch(weights_seed(self._seed, policy_key(policy_id))):
            self.custom[policy_id] = custom_policy(settings, *self.module_spaces(policy_id))

    def stop(self) -> None:
        """Stop the learners' processes, if they have any."""
        for learner in self.learners.values():
            learner.stop()

    @property
    def masked(self) -> bool:
        """Whether any policy's observations have an action mask."""
        return any(has_action_mask(observations) for observations, _ in self.spaces.values())

    def module_spaces(self, policy_id: str) -> Spaces:
        """Observation and action space of the policy itself, on its side of the connectors."""
        return self.connectors.module_spaces(policy_id)

    @property
    def trained(self) -> list[str]:
        """Ids of the policies whose networks learn."""
        return [policy_id for policy_id in self.learners if self.settings[policy_id].train]

    def is_policy_to_train(self, policy_id: str, batch: MultiAgentBatch | None = None) -> bool:
        """Whether a policy learns from this train batch, or learns at present if none is given."""
        if policy_id not in self.settings or not self.settings[policy_id].train:
            return False
        return self._to_train is None or bool(self._to_train(policy_id, batch))

    def _connected(self, policy_id: str, batch: SampleBatch) -> SampleBatch | None:
        """A policy's train batch after its learner connectors; None if they leave no rows.

        Raises:
            ValueError: a connector or callback has left columns of different lengths.
        """
        batch = self._learner_connectors_of(policy_id)(batch)
        if self.before_learning is not None:
            self.before_learning(policy_id, batch)
            require_valid(batch, "on_learn_on_batch")
        batch.discard(col.WEIGHTS_CHECKSUM)  # observations may have been changed
        return batch if len(batch) else None

    def _learner_connectors_of(self, policy_id: str) -> LearnerConnectors:
        if policy_id not in self._learner_connectors:
            specs = self.settings[policy_id].training.learner_connectors
            self._learner_connectors[policy_id] = LearnerConnectors(specs)
        return self._learner_connectors[policy_id]

    def train_batches(
        self, batch: MultiAgentBatch, progress: Progress, *, replayed: bool = False
    ) -> Iterator[tuple[str, SampleBatch]]:
        """Each network's policy id and part of a batch; custom policies learn from theirs here.

        Args:
            replayed: networks learn from buffers, so whether one learns is not asked here.
        """
        for policy_id, settings in list(self.settings.items()):  # callbacks may add and remove some
            if not settings.train or policy_id not in self.settings:
                continue
            rows = batch.policy_batches.get(policy_id)
            is_asked = policy_id in self.custom or not replayed
            if rows is not None and is_asked and not self.is_policy_to_train(policy_id, batch):
                rows = None
            changed = settings.training.learner_connectors or self.before_learning is not None
            if rows is not None and changed:
                rows = self._connected(policy_id, rows)
            if rows is None:
                nothing = {"num_agent_steps_trained": 0, "learner_stats": {}}
                self._rows.setdefault(policy_id, nothing)
                continue
            if policy_id in self.custom:
                self._learn_custom(policy_id, rows, progress)
            elif policy_id in self.learners:
                yield policy_id, rows

    def _learn_custom(self, policy_id: str, batch: SampleBatch, progress: Progress) -> None:
        with progress.timers.phase("learn"):
            statistics = self.custom[policy_id].learn_on_batch(batch)
        row = progress.learner_result(len(batch), statistics or {}, policy_id)[policy_id]
        if policy_id in self._rows:  # from an earlier batch of this iteration
            row["num_agent_steps_trained"] += self._rows[policy_id]["num_agent_steps_trained"]
        self._rows[policy_id] = row

    def learner_results(self, learners: Any) -> dict[str, Any]:
        """The `learners` part of an iteration's result, with the rows that `learners` lacks.

        Args:
            learners: the return value of `training_step`.

        Raises:
            TypeError: it is not a mapping, or has a row that is none.
        """
        of_each = learners.values() if isinstance(learners, Mapping) else [learners]
        if not all(isinstance(row, Mapping) for row in of_each):
            message = "training_step() must return a dict, policy id -> its learner's results"
            raise TypeError(f"{message}, not {learners!r}")
        rows, self._rows = {**self._rows, **learners}, {}
        for policy_id, learner in self.learners.items():
            if isinstance(learner, LearnerGroup) and policy_id in rows:
                rows[policy_id] = {**rows[policy_id], "restarts": learner.num_restarts}
        order = [*self.settings, *(name for name in rows if name not in self.settings)]
        return {name: rows[name] for name in order if name in rows}

    def require_finite(self, learners: Mapping[str, Any], progress: Progress) -> None:
        """Raise unless losses, gradients and weights are finite numbers after an iteration.

        Nothing of such an iteration is saved, so training can resume from the last checkpoint.

        Args:
            learners: the iteration's results by policy.

        Raises:
            DivergedError: names the statistic, the policy and what to try.
        """
        for policy_id, learner in self.learners.items():
            statistics = learners.get(policy_id, {}).get("learner_stats", {})
            numbers = {
                name: value
                for name, value in statistics.items()
                if value is not None and str(name).endswith(("loss", "grad_norm"))
            }
            try:
                bad = [f"{name} is {x}" for name, x in numbers.items() if not math.isfinite(x)]
            except (TypeError, ValueError, RuntimeError):
                require_numbers(numbers)
                raise
            if not learner.has_finite_weights():
                bad.append("weights are not finite")
            if bad:
                remedy = "a smaller training.lr or a bound on the gradients, training.grad_clip,"
                if (largest := progress.episodes.largest_return) > _LARGE_RETURN:
                    scaled = "connectors.normalize_rewards or connectors.clip_rewards"
                    remedy = f"returns reach {largest:.2g}: {scaled}"
                raise DivergedError(
                    f"training diverged in iteration {progress.iteration + 1}: {', '.join(bad)} "
                    f"(policy {policy_id}); {remedy} may help"
                )
            self._warn_of_clipping(policy_id, statistics)

    def _warn_of_clipping(self, policy_id: str, statistics: Mapping[str, Any]) -> None:
        """Warn once if clipping the value function's gradient leaves the policy's next to nothing.

        Args:
            statistics: of the policy's learner.
        """
        if policy_id in self._warned or "vf_loss" not in statistics:
            return
        training, norm = self[policy_id].training, statistics.get("grad_norm")
        bound = training.grad_clip
        if bound is None or norm is None or training.grad_clip_by != "global_norm":
            return
        if norm > _DROWNING * bound:
            self._warned.add(policy_id)
            _log.warning(
                "gradients of policy %s have a norm of %.2g, mostly from the value function, and "
                "training.grad_clip makes it %g: the policy may hardly learn. Rewards are large; "
                "connectors.normalize_rewards divides them",
                policy_id,
                norm,
                bound,
            )

    def leave_out_unread(self, learners: Mapping[str, Any], columns_read: frozenset[str]) -> None:
        """Leave unread columns out of the batches of policies that have learned for the first time.

        Args:
            learners: the iteration's results by policy.
            columns_read: always kept, except for policies that never learn.
        """
        kept = {}
        for policy_id, settings in self.settings.items():
            if not settings.train:
                kept[policy_id] = frozenset[str]()
            elif learners.get(policy_id, {}).get("num_agent_steps_trained"):
                kept[policy_id] = columns_read
        self.reads.settle(kept)

    def modules(self) -> MultiAgentRLModule:
        """The networks that learn, of all policies that have one."""
        return MultiAgentRLModule({name: made.module for name, made in self.learners.items()})

    def sync(self) -> None:
        """Act with the present weights from the next request on, as a new version."""
        self.acting_weights = self.present_weights()
        self.weights_version += 1

    def present_weights(self) -> dict[str, Any]:
        """The present weights; a network's are one flat vector."""
        weights: dict[str, Any] = {}
        for policy_id, learner in self.learners.items():
            weights[policy_id] = learner.get_weights()
        for policy_id, policy in self.custom.items():
            # A copy: a policy may return its own arrays, and later change them in place.
            weights[policy_id] = copy.deepcopy(policy.get_weights())
        return weights

    def named_weights(self) -> dict[str, Any]:
        """Copies of all networks' weights, as ``<policy id>/<parameter>``."""
        return {
            f"{policy_id}/{name}": array
            for policy_id, learner in self.learners.items()
            for name, array in learner.named_weights().items()
        }

    def buffer_names(self) -> set[str]:
        """Names in `named_weights` that are buffers."""
        return {
            f"{policy_id}/{name}"
            for policy_id, learner in self.learners.items()
            for name in learner.parameters.buffers
        }

    def load_named_weights(self, weights: Mapping[str, Any]) -> None:
        """Load weights from `named_weights`.

        Raises:
            ValueError: they are of other networks; then none is loaded.
        """
        if others := [name for name in weights if name.partition("/")[0] not in self.learners]:
            known = ", ".join(self.learners) or "none"
            raise ValueError(f"no network has the weights {others[0]!r}; networks: {known}")
        by_policy: dict[str, dict[str, Any]] = {policy_id: {} for policy_id in self.learners}
        for name, array in weights.items():
            policy_id, _, parameter = name.partition("/")
            by_policy[policy_id][parameter] = array
        for policy_id, own in by_policy.items():
            self.learners[policy_id].parameters.require_named(own)
        for policy_id, own in by_policy.items():
            self.learners[policy_id].load_named_weights(own)

    def add(self, policy_id: str, like: str, train: bool, number: int | None = None) -> None:
        """Add a policy with the settings and present weights of another.

        Args:
            number: see `PolicySettings`; None takes the next one.

        Raises:
            ValueError: there is one agent only, no such other, or the id is taken or impossible.
        """
        if not self.several:
            raise ValueError(
                "policies can be added or removed only if multi_agent.policies names some"
            )
        if policy_id in self.settings:
            raise ValueError(f"there is a policy {policy_id!r} already")
        if like not in self.settings:
            raise ValueError(f"there is no policy {like!r}; policies: {', '.join(self)}")
        if not policy_id or "/" in policy_id:
            raise ValueError(f"a policy id is not empty and has no slash: {policy_id!r}")
        if number is None:
            number = self._num_added = self._num_added + 1
        root = self.settings[like].like or like
        self.settings[policy_id] = replace(
            self.settings[like], train=train, like=root, number=number
        )
        self.spaces[policy_id] = self.spaces[like]
        self.connectors.add(policy_id, like)
        self._make(policy_id)
        if like in self.custom:
            self.custom[policy_id].set_state(self.custom[like].get_state())
        else:
            weights = self.learners[like].named_weights()
            self.learners[policy_id].load_named_weights(weights)

    def match(self, state: Mapping[str, Any], remove: Callable[[str], None]) -> None:
        """Add the policies that a state has, and call `remove` for those that it lacks.

        Raises:
            ConfigError: the environment has other spaces than the state's policies.
        """
        if (stored := state.get("spaces")) is not None:
            require_form(self.spaces, spaces_of(stored), "env", "in the checkpoint")
        for policy_id in [name for name in self if name not in state["ids"]]:
            if self.settings[policy_id].like is None:
                found = ", ".join(state["ids"])
                raise ValueError(f"it has no policy {policy_id!r}; it has {found}")
            remove(policy_id)
        now, then = list(self._added().items()), list(state["added"].items())
        same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(now, then, strict=False))))
        for policy_id, _ in now[same:]:  # also those that only come in another order
            remove(policy_id)
        for policy_id, made in then[same:]:  # in older checkpoints they have no number
            self.add(policy_id, str(made["like"]), bool(made["train"]), made.get("number"))

    def remove(self, policy_id: str) -> None:
        """Remove a policy that was added; raises ValueError for any other."""
        if policy_id not in self.settings:
            raise ValueError(f"there is no policy {policy_id!r}")
        if self.settings[policy_id].like is None:
            raise ValueError(f"the policy {policy_id!r} is one of the experiment's own")
        if policy_id in self.learners:
            self.learners[policy_id].stop()
        tables: list[dict[str, Any]] = [self.settings, self.spaces, self.learners, self.custom]
        for table in (*tables, self.connectors, self._learner_connectors):
            table.pop(policy_id, None)
        self.reads.forget(policy_id)

    def _added(self) -> State:
        """What tells the policies that were added from others of their ids, by id."""
        return {
            policy_id: {name: getattr(settings, name) for name in ("like", "train", "number")}
            for policy_id, settings in self.settings.items()
            if settings.like is not None
        }

    def get_state(self) -> State:
        """Everything besides the networks' weights."""
        return {
            "spaces": plain_spaces(self.spaces),
            "several": self.several,
            "clip_rewards": self.connectors.clip_rewards,
            "ids": list(self.settings),
            "added": self._added(),
            "num_added": self._num_added,
            "weights_version": self.weights_version,
            "connectors": self.connectors.get_state(),
            "learners": {name: learner.get_state() for name, learner in self.learners.items()},
            "scratch": {name: policy.get_state() for name, policy in self.custom.items()},
            "learner_connectors": {
                name: self._learner_connectors_of(name).get_state()
                for name, settings in self.settings.items()
                if settings.training.learner_connectors
            },
            "columns_left_out": self.reads.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`, for policies of the same ids."""
        self._rows = {}
        self._num_added = int(state.get("num_added", self._num_added))  # older checkpoints lack it
        self.connectors.set_state(state["connectors"])
        for policy_id, learner in self.learners.items():
            learner.set_state(state["learners"][policy_id])
        for policy_id, policy_state in state["scratch"].items():
            self.custom[policy_id].set_state(policy_state)
        for policy_id, states in state.get("learner_connectors", {}).items():
            self._learner_connectors_of(policy_id).set_state(states)
        self.reads.set_state(state["columns_left_out"])
        self.acting_weights = self.present_weights()
        self.weights_version = int(state["weights_version"])
