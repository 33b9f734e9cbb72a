"""Parts of an algorithm: what its checkpoints hold besides learners, networks and progress.

Owns what a part must be able to do, and `ByPolicy`, which has a part for each policy. Must not know
what a part is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

State = dict[str, Any]


@runtime_checkable
class Stateful(Protocol):
    """An object whose state can be saved in checkpoints."""

    def get_state(self) -> State:
        """Plain numbers, text, arrays, and dicts and lists of them."""

    def set_state(self, state: State) -> None:
        """Restore a state from `get_state`."""


Part = Stateful | nn.Module | Optimizer
"""A part of an algorithm that is saved in checkpoints. A method ``forget(policy_id)``, if it has
one, drops what belongs to a removed policy."""


def as_stateful(name: str, part: Part) -> Stateful:
    """The part itself, or an adapter of a torch module or optimizer.

    Raises:
        TypeError: it has no state.
    """
    if not isinstance(part, Part):
        raise TypeError(f"{name} has no get_state() and set_state(): {type(part).__name__}")
    return part if isinstance(part, Stateful) else _StateDict(part)


class _StateDict:
    """A torch module or optimizer as a `Stateful`, by its ``state_dict``."""

    def __init__(self, owner: nn.Module | Optimizer) -> None:
        self._owner: Any = owner

    def get_state(self) -> State:
        """The ``state_dict``, with arrays in place of tensors."""
        state: State = _mapped(self._owner.state_dict(), Tensor, lambda x: x.cpu().numpy().copy())
        return state

    def set_state(self, state: State) -> None:
        """Restore a state from `get_state`."""
        self._owner.load_state_dict(_mapped(state, np.ndarray, torch.tensor))


def _mapped(nest: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Nested dicts, lists and tuples with ``change`` applied to all leaves of a type."""
    if isinstance(nest, Mapping):
        return {key: _mapped(value, kind, change) for key, value in nest.items()}
    if isinstance(nest, list | tuple):
        return type(nest)(_mapped(value, kind, change) for value in nest)
    return change(nest) if isinstance(nest, kind) else nest


Kept = TypeVar("Kept", bound=Stateful)


class ByPolicy(dict[str, Kept]):
    """Policy id -> what an algorithm has besides the learner: a target network, a coefficient.

    Values are made when they are first asked for, since policies come and go.

    Args:
        make: makes a policy's value, given its id.
        policies: policies for which values are made at once.
    """

    def __init__(self, make: Callable[[str], Kept], policies: Iterable[str] = ()) -> None:
        self._make = make
        for policy_id in policies:
            self[policy_id]

    def __missing__(self, policy_id: str) -> Kept:
        self[policy_id] = made = self._make(policy_id)
        return made

    def forget(self, policy_id: str) -> None:
        """Drop a policy's value; a later policy of the same id gets a new one."""
        self.pop(policy_id, None)

    def get_state(self) -> State:
        """The states of all values, by policy."""
        return {policy_id: kept.get_state() for policy_id, kept in self.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`; drop what it does not have."""
        for policy_id in self.keys() - state.keys():
            self.forget(policy_id)
        for policy_id, of_policy in state.items():
            self[policy_id].set_state(of_policy)
