"""MultiAgentReplayBuffer: a replay buffer for each policy; with one agent, for one policy.

In lockstep, all policies' transitions of the same env steps are sampled together. For this, env
steps are numbered in the order in which they were added, as each buffer numbers its transitions. An
env step is one (eps_id, t).

    C  env steps that are kept      n  rows of a policy in a batch
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from rlrun.config.problems import misfit
from rlrun.data.column_data import Array
from rlrun.data.sample_batch import MultiAgentBatch, SampleBatch, step_ranks
from rlrun.replay.replay_buffer import ReplayBuffer


class MultiAgentReplayBuffer:
    """One replay buffer for each policy.

    Args:
        make_buffer: makes the buffer of a policy, given its id. In lockstep it must be a
            `ReplayBuffer`, which samples single transitions uniformly.
        mode: "independent" samples each policy's transitions by themselves; "lockstep" draws env
            steps and takes all policies' transitions of these.

    Attributes:
        buffers: policy id -> its buffer; made when its first transitions are added.
    """

    def __init__(
        self,
        make_buffer: Callable[[str], ReplayBuffer],
        *,
        mode: Literal["independent", "lockstep"] = "independent",
    ) -> None:
        if mode not in ("independent", "lockstep"):
            raise ValueError(f"mode {mode!r} is neither independent nor lockstep")
        self._make_buffer = make_buffer
        self.mode = mode
        self.buffers: dict[str, ReplayBuffer] = {}
        self._steps: _StepIndex | None = None  # in lockstep, once there is a buffer

    def __len__(self) -> int:
        """Transitions of all policies."""
        return sum(len(buffer) for buffer in self.buffers.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of the transitions held."""
        return sum(buffer.size_bytes for buffer in self.buffers.values())

    def add(self, batch: MultiAgentBatch | SampleBatch) -> None:
        """Append the rows of each policy to its buffer; a plain batch is the default policy's.

        Raises:
            ConfigError: in lockstep, for a batch that the buffers cannot hold as a whole.
        """
        batches = batch.as_multi_agent().policy_batches
        lengths = {}
        for policy_id, rows in batches.items():
            if length := len(rows):
                if policy_id not in self.buffers:
                    self.buffers[policy_id] = self._make_buffer(policy_id)
                self.buffers[policy_id].add(rows)
                lengths[policy_id] = length
        if lengths and self.mode == "lockstep":
            self._index().add({name: batches[name] for name in lengths}, self.buffers)

    def _index(self) -> _StepIndex:
        if self._steps is None:
            self._steps = _StepIndex(max(buffer.capacity for buffer in self.buffers.values()))
        return self._steps

    def sample(
        self,
        num_items: int,
        rng: np.random.Generator,
        *,
        policies: Iterable[str] | None = None,
        **options: Any,
    ) -> MultiAgentBatch:
        """Sample ``num_items`` of each policy, or in lockstep the transitions of as many env steps.

        Args:
            policies: ids of the policies to sample; None: all that have transitions.
            options: arguments of the buffers' `sample`, such as ``beta``; none in lockstep.

        Returns:
            A batch whose ``count`` is the longest policy's number of rows; in lockstep the number
            of env steps.

        Raises:
            KeyError: for a policy without transitions.
            ValueError: nothing can be sampled yet.
        """
        chosen = sorted(self.buffers) if policies is None else list(policies)
        if self.mode == "lockstep":
            ids = self._index().sample(num_items, rng)
            drawn = {name: self.buffers[name].gather(ids[name]) for name in chosen if name in ids}
            return MultiAgentBatch(drawn, num_items)
        batches = {
            policy_id: self.buffers[policy_id].sample(num_items, rng, **options)
            for policy_id in chosen
        }
        return MultiAgentBatch(batches, max(map(len, batches.values()), default=0))

    def forget(self, policy_id: str) -> None:
        """Drop the transitions of a policy."""
        self.buffers.pop(policy_id, None)
        if self._steps is not None:
            self._steps.forget(policy_id)

    def clear(self) -> None:
        """Drop all transitions."""
        self.buffers, self._steps = {}, None

    def get_state(self) -> dict[str, Any]:
        """All transitions, and in lockstep their env steps."""
        return {
            "buffers": {name: buffer.get_state() for name, buffer in self.buffers.items()},
            "steps": None if self._steps is None else self._steps.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self.clear()
        for policy_id, held in state["buffers"].items():
            self.buffers[policy_id] = self._make_buffer(policy_id)
            self.buffers[policy_id].set_state(held)
        if state["steps"] is not None:
            self._index().set_state(state["steps"])


class _StepIndex:
    """A ring of env steps, with the transitions of each policy that ended in them.

    A step is dropped as soon as any transition of its batch or a later one has been overwritten in
    its buffer, so that all transitions of the remaining steps are available.

    Args:
        capacity: C.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_added = 0
        self._oldest = 0
        self._of: dict[str, _PolicySteps] = {}

    def __len__(self) -> int:
        return self.num_added - self._oldest

    def add(self, batches: Mapping[str, SampleBatch], buffers: Mapping[str, ReplayBuffer]) -> None:
        """Number the env steps of batches, by policy id, that have just been added to the buffers.

        Raises:
            ConfigError: a buffer is too small to hold the whole batch.
        """
        ranks = step_ranks(batches.values())
        num_steps = int(ranks.max()) + 1
        needed = max(num_steps, *map(len, batches.values()))
        fits = all(len(rows) <= buffers[name].capacity for name, rows in batches.items())
        if not fits or num_steps > self.capacity:
            sizes = ", ".join(f"{len(rows)} of {name}" for name, rows in batches.items())
            message = f"in lockstep it must hold a round of sampling, {num_steps} env steps"
            message += f" (transitions: {sizes}); set it to {needed} or more"
            raise misfit("replay.capacity", message)
        places = (self.num_added + np.arange(num_steps)) % self.capacity
        for policy_id, steps in self._of.items():
            steps.count[places], steps.lowest[places] = 0, buffers[policy_id].num_added
        by_policy = np.split(ranks, np.cumsum([len(rows) for rows in batches.values()])[:-1])
        for policy_id, own in zip(batches, by_policy, strict=True):
            buffer = buffers[policy_id]
            if policy_id not in self._of:
                self._of[policy_id] = _PolicySteps(self.capacity, buffer.capacity)
            self._of[policy_id].add(own, places, buffer.num_added - len(own))
        self.num_added += num_steps
        self._oldest = max(self._oldest, self.num_added - self.capacity)
        oldest = {name: buffer.num_added - len(buffer) for name, buffer in buffers.items()}
        while len(self) and self._is_broken(oldest):
            self._oldest += 1

    def _is_broken(self, oldest: Mapping[str, int]) -> bool:
        place = self._oldest % self.capacity
        return any(steps.lowest[place] < oldest[policy_id] for policy_id, steps in self._of.items())

    def sample(self, num_steps: int, rng: np.random.Generator) -> dict[str, Array]:
        """Numbers of the transitions of ``num_steps`` env steps, drawn uniformly with replacement.

        Returns:
            Numbers by policy id, in the order of the steps drawn; without policies that have none.

        Raises:
            ValueError: there is no env step yet.
        """
        if not len(self):
            raise ValueError("an empty replay buffer cannot be sampled; add a batch first")
        places = (self._oldest + rng.integers(len(self), size=num_steps)) % self.capacity
        found = {policy_id: steps.ids_at(places) for policy_id, steps in self._of.items()}
        return {policy_id: ids for policy_id, ids in found.items() if len(ids)}

    def forget(self, policy_id: str) -> None:
        """Drop the transitions of a policy."""
        self._of.pop(policy_id, None)

    def get_state(self) -> dict[str, Any]:
        """The env steps that are kept, from the oldest on."""
        places = np.arange(self._oldest, self.num_added) % self.capacity
        return {
            "num_added": self.num_added,
            "oldest": self._oldest,
            "policies": {name: steps.get_state(places) for name, steps in self._of.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of an index of the same capacity."""
        self.num_added, self._oldest = int(state["num_added"]), int(state["oldest"])
        places = np.arange(self._oldest, self.num_added) % self.capacity
        self._of = {}
        for policy_id, held in state["policies"].items():
            self._of[policy_id] = _PolicySteps(self.capacity, len(held["ids"]))
            self._of[policy_id].set_state(held, places)


class _PolicySteps:
    """One policy's transitions, in the order of their env steps.

    | attribute | shape | meaning |
    |---|---|---|
    | ids | ``[capacity of its buffer]`` | a ring of transitions' numbers |
    | begin, count | ``[C]`` | place in `ids` and number of the step's transitions |
    | lowest | ``[C]`` | number of the first transition from the step's batch on |
    """

    def __init__(self, num_steps: int, num_transitions: int) -> None:
        self.ids = np.zeros(num_transitions, np.int64)
        self.begin, self.count, self.lowest = np.zeros((3, num_steps), np.int64)

    def add(self, ranks: Array, places: Array, first: int) -> None:
        """Add rows ``[n]`` from number ``first`` on, by the rank of their step in ``places``."""
        order = np.argsort(ranks, kind="stable")
        self.ids[(first + np.arange(len(ranks))) % len(self.ids)] = first + order
        count = np.bincount(ranks, minlength=len(places))
        self.count[places] = count
        self.begin[places] = first + np.cumsum(count) - count
        self.lowest[places] = first

    def ids_at(self, places: Array) -> Array:
        """The transitions of these steps, one step after the other."""
        count = self.count[places]
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        return self.ids[(np.repeat(self.begin[places], count) + within) % len(self.ids)]

    def get_state(self, places: Array) -> dict[str, Any]:
        """The steps in these places."""
        kept = {name: getattr(self, name)[places] for name in ("begin", "count", "lowest")}
        return {"ids": self.ids.copy(), **kept}

    def set_state(self, state: Mapping[str, Any], places: Array) -> None:
        """Restore a state of `get_state`."""
        self.ids[:] = state["ids"]
        for name in ("begin", "count", "lowest"):
            getattr(self, name)[places] = state[name]
