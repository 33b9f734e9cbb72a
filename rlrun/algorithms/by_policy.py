"""What the learner of each policy needs beside it: target networks, critics, coefficients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar


class Stateful(Protocol):
    """What can be written into a checkpoint."""

    def get_state(self) -> dict[str, Any]:
        """Plain numbers, text, arrays, and dicts and lists of them."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned."""


Kept = TypeVar("Kept", bound=Stateful)


class ByPolicy(dict[str, Kept]):
    """Policy id -> what is kept for it, made when it is asked for: policies come and go.

    Args:
        make: makes it, given the id.
        policies: for which it is made at once.
    """

    def __init__(self, make: Callable[[str], Kept], policies: Iterable[str] = ()) -> None:
        super().__init__()
        self._make = make
        for policy_id in policies:
            self[policy_id]

    def __missing__(self, policy_id: str) -> Kept:
        self[policy_id] = made = self._make(policy_id)
        return made

    def get_state(self) -> dict[str, Any]:
        """All states, by policy."""
        return {policy_id: kept.get_state() for policy_id, kept in self.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        for policy_id, of_policy in state.items():
            self[policy_id].set_state(of_policy)
