"""Parts of an algorithm: what its checkpoints hold besides learners, networks and progress.

Owns what a part must be able to do, `Parts`, which `Algorithm.keep` adds to, and `ByPolicy`, which
has a part for each policy. Must not know what a part is for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rlrun.learning.learner import Learner

State = dict[str, Any]

_log = logging.getLogger(__name__)


@runtime_checkable
class Stateful(Protocol):
    """An object whose state can be saved in checkpoints."""

    def get_state(self) -> State:
        """Plain numbers, text, arrays, and dicts and lists of them."""

    def set_state(self, state: State) -> None:
        """Restore a state from `get_state`."""


Part = Stateful | Learner | nn.Module | Optimizer
"""A part of an algorithm that is saved in checkpoints. A method ``forget(policy_id)``, if it has
one, drops what belongs to a removed policy."""


class Parts:
    """The parts of an algorithm by name, and the states of parts that are still to be made."""

    def __init__(self) -> None:
        self._kept: list[Part] = []
        self._made: dict[str, Stateful] = {}
        self._to_come: dict[str, State] = {}

    def add(self, name: str, part: Part) -> None:
        """Add a part; one that is made only after a checkpoint is restored gets its state here.

        Raises:
            ValueError: there is a part of that name. TypeError: it has no state.
        """
        if name in self._made:
            raise ValueError(f"keep({name!r}, ...): there is a part of that name already")
        if not isinstance(part, Part):
            raise TypeError(f"{name} has no get_state() and set_state(): {type(part).__name__}")
        stateful: Stateful
        if isinstance(part, Learner):
            stateful = _WithWeights(part)
        else:
            stateful = part if isinstance(part, Stateful) else _StateDict(part)
        self._made[name] = stateful
        self._kept.append(part)
        if name in self._to_come:
            stateful.set_state(self._to_come.pop(name))

    def warn_of_others(self, attributes: Mapping[str, Any], networks: nn.Module) -> None:
        """Warn of modules that learn, and optimizers, that no checkpoint will have.

        Args:
            attributes: what `Algorithm.setup` made, by name.
            networks: what checkpoints have besides the parts.
        """
        saved: list[Any] = [networks, *self._kept]
        for part in self._kept:  # a part of the user's own saves what it holds
            saved += getattr(part, "__dict__", {}).values()
        optimizers = {id(each) for each in saved if isinstance(each, Optimizer)}
        modules = [each for each in saved if isinstance(each, nn.Module)]
        parameters = {id(parameter) for module in modules for parameter in module.parameters()}
        for name, value in attributes.items():
            own = value.parameters() if isinstance(value, nn.Module) else ()
            forgotten = any(each.requires_grad and id(each) not in parameters for each in own)
            if forgotten or (isinstance(value, Optimizer) and id(value) not in optimizers):
                _log.warning(
                    "%s, made by setup(), is in no checkpoint, so that a resumed run will differ: "
                    "write self.%s = self.keep(%r, ...)",
                    *(name, name, name),
                )

    def forget(self, policy_id: str) -> None:
        """Drop what belongs to a removed policy."""
        for part in self._made.values():
            if (forget := getattr(part, "forget", None)) is not None:
                forget(policy_id)

    def get_state(self) -> State:
        """The states of all parts, by name."""
        return {**self._to_come, **{name: part.get_state() for name, part in self._made.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`; raises KeyError if it lacks a part."""
        for name, part in self._made.items():
            part.set_state(state[name])
        self._to_come = {name: state[name] for name in state if name not in self._made}


class _WithWeights:
    """A learner as a `Stateful`: its own state, and the weights, which that lacks."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def get_state(self) -> State:
        """The learner's state and weights."""
        return {"learner": self._learner.get_state(), "weights": self._learner.named_weights()}

    def set_state(self, state: State) -> None:
        """Restore a state from `get_state`."""
        self._learner.load_named_weights(state["weights"])
        self._learner.set_state(state["learner"])


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
