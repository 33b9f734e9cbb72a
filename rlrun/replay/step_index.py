"""StepIndex: which transitions of each policy ended in which env step.

For buffers that sample all policies' transitions of the same env steps together. Owns numbers
alone: env steps are numbered in the order in which they came, transitions as their policy's buffer
numbers them. An env step is one (eps_id, t).

    s  env steps of a batch      C  env steps that are kept      n  rows of a policy in a batch
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.data.multi_agent_batch import step_ranks
from rlrun.data.sample_batch import SampleBatch

Array = NDArray[Any]

_NEVER = np.iinfo(np.int64).max


class StepIndex:
    """A ring of env steps.

    A step is forgotten as soon as a transition of it, or of one that came in the same batch, has
    been overwritten in its buffer: what is left is whole.

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

    def add(
        self,
        batches: Mapping[str, SampleBatch],
        first: Mapping[str, int],
        oldest: Mapping[str, int],
        capacities: Mapping[str, int],
    ) -> None:
        """Number the env steps of a batch that buffers have taken in.

        Args:
            batches: by policy, each with rows.
            first: number of the first of these transitions, by policy.
            oldest: number of the oldest transition that a buffer holds now.
            capacities: of the buffers.

        Raises:
            ValueError: a buffer is too small to hold the whole batch.
        """
        ranks = step_ranks(batches.values())
        num_steps = int(ranks.max()) + 1
        fits = all(len(rows) <= capacities[policy_id] for policy_id, rows in batches.items())
        if not fits or num_steps > self.capacity:
            sizes = ", ".join(f"{name} {len(rows)}" for name, rows in batches.items())
            raise ValueError(
                f"a batch of {num_steps} env steps ({sizes} rows) does not fit into a buffer of "
                f"{self.capacity}: its steps would not be whole"
            )
        for policy_id in batches:
            if policy_id not in self._of:
                self._of[policy_id] = _PolicySteps(self.capacity, capacities[policy_id])
        places = (self.num_added + np.arange(num_steps)) % self.capacity
        by_policy = np.split(ranks, np.cumsum([len(rows) for rows in batches.values()])[:-1])
        for policy_id, steps in self._of.items():
            steps.count[places], steps.lowest[places] = 0, _NEVER
            if policy_id in batches:
                own = by_policy[list(batches).index(policy_id)]
                steps.add(own, places, first[policy_id])
        self.num_added += num_steps
        self._oldest = max(self._oldest, self.num_added - self.capacity)
        while len(self) and self._is_broken(oldest):
            self._oldest += 1

    def _is_broken(self, oldest: Mapping[str, int]) -> bool:
        place = self._oldest % self.capacity
        return any(steps.lowest[place] < oldest[policy_id] for policy_id, steps in self._of.items())

    def sample(self, num_steps: int, rng: np.random.Generator) -> dict[str, Array]:
        """Numbers of the transitions of so many env steps, drawn uniformly with replacement.

        Returns:
            By policy, in the order of the steps drawn; without policies that have none there.

        Raises:
            ValueError: there is no env step yet.
        """
        if not len(self):
            raise ValueError("an empty replay buffer cannot be sampled; add a batch first")
        places = (self._oldest + rng.integers(len(self), size=num_steps)) % self.capacity
        found = {policy_id: steps.ids_at(places) for policy_id, steps in self._of.items()}
        return {policy_id: ids for policy_id, ids in found.items() if len(ids)}

    def forget(self, policy_id: str) -> None:
        """Know nothing of a policy any more."""
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
        """Take over what `get_state` of an index of the same capacity returned."""
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
    | begin, count | ``[C]`` | where in that order the step's transitions begin, how many they are |
    | lowest | ``[C]`` | number of the first transition of the batch that the step came in |
    """

    def __init__(self, num_steps: int, num_transitions: int) -> None:
        self.ids = np.zeros(num_transitions, np.int64)
        self.begin, self.count = np.zeros((2, num_steps), np.int64)
        self.lowest = np.full(num_steps, _NEVER)

    def add(self, ranks: Array, places: Array, first: int) -> None:
        """Rows ``[n]`` from number ``first`` on, of the steps with these ranks among ``places``."""
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
        """Of the steps in these places."""
        kept = {name: getattr(self, name)[places] for name in ("begin", "count", "lowest")}
        return {"ids": self.ids.copy(), **kept}

    def set_state(self, state: Mapping[str, Any], places: Array) -> None:
        """Take over what `get_state` returned."""
        self.ids[:] = state["ids"]
        for name in ("begin", "count", "lowest"):
            getattr(self, name)[places] = state[name]
