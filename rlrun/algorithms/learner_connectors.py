"""LearnerConnectors: what `training.learner_connectors` does to a policy's train batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rlrun.algorithms.parts import State, Stateful
from rlrun.config.registry import import_object
from rlrun.config.schema import UseSpec
from rlrun.data.sample_batch import SampleBatch


class LearnerConnector(Protocol):
    """An object that `training.learner_connectors` names."""

    def __call__(self, batch: SampleBatch) -> SampleBatch:
        """The train batch to learn from."""


class LearnerConnectors:
    """A policy's learner connectors, applied in their order.

    Args:
        specs: an import path and arguments for each.
    """

    def __init__(self, specs: Sequence[UseSpec]) -> None:
        self._names = [spec.use for spec in specs]
        self._connectors: list[LearnerConnector] = [
            import_object(spec.use)(**spec.arguments()) for spec in specs
        ]

    def __call__(self, batch: SampleBatch) -> SampleBatch:
        """The train batch after all connectors.

        Raises:
            ValueError: a connector has left columns of different lengths.
        """
        for name, connector in zip(self._names, self._connectors, strict=True):
            batch = connector(batch)
            require_valid(batch, f"learner connector {name}")
        return batch

    def get_state(self) -> list[State | None]:
        """The state of each connector; None for one that has none."""
        return [
            made.get_state() if isinstance(made, Stateful) else None for made in self._connectors
        ]

    def set_state(self, states: Sequence[Any]) -> None:
        """Restore the states from `get_state`."""
        for made, state in zip(self._connectors, states, strict=True):
            if isinstance(made, Stateful):
                made.set_state(state)


def require_valid(batch: SampleBatch, changed_by: str) -> None:
    """Raise ValueError, which says what has changed the batch, unless its columns fit together."""
    try:
        batch.check_valid()
    except ValueError as error:
        raise ValueError(f"{changed_by}: {error}") from None
