"""Connector: a step that data takes between the environments and the policy.

Owns the interface: how a connector is called is told by its place (observations, actions, rewards),
how its state is saved and shared is the same everywhere. Numpy only; must not know of torch, Ray or
who calls it.

State that is learned from data (a filter's statistics) exists once in the centre and once in each
env runner. Once an iteration the runners' `flush_deltas()` are given to the centre's
`apply_deltas()`, and the centre's `get_state()` goes back into the runners' `set_state()`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

State = dict[str, Any]
"""Nested dict of str to numpy arrays and numbers."""


class Connector(ABC):
    """Base class of everything between the environments and the policy.

    Only ``__call__`` must be written; a connector that learns nothing keeps the other defaults.

    Attributes:
        identity: True when calling it returns its first argument; callers may skip the call.
    """

    identity: bool = False

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Transform one batch."""

    def get_state(self) -> State:
        """Everything that makes another object of the same construction act the same."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - an optional hook
        """Take over what `get_state` returned."""

    def flush_deltas(self) -> State:
        """What was learned since the last flush, which is forgotten as news by this call."""
        return {}

    def apply_deltas(self, deltas: Iterable[Mapping[str, Any]]) -> None:  # noqa: B027 - likewise
        """Take in what others learned; exactly as if this object had seen their data."""
