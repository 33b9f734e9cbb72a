"""Connector: a step that data takes between the environments and the policy.

Owns the interface: how a connector is called depends on its place; how its state is saved and
shared does not. Numpy only; must not know of torch, Ray or its callers.

| place                                        | called with                                    |
|----------------------------------------------|------------------------------------------------|
| `env_runners.env_to_module_connector`        | observations of n slots, and a `SlotHistory`   |
| `env_runners.module_to_env_connector`        | the policy's actions [B, ...], and the same    |
| `observations`, `actions`, `rewards` (built in) | see each of them                            |

State that is learned from data (a filter's statistics) exists once in the centre and once in each
env runner. Once an iteration the runners' `flush_deltas()` are given to the centre's
`apply_deltas()`, and the centre's `get_state()` goes back into the runners' `set_state()`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium as gym

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

    def connect(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """Learn the space on the environments' side and tell the one on the policy's side.

        Called once, before any data. Observations come in ``space`` and leave in the space that is
        returned. Actions go the other way: they have to leave in ``space`` and come in the space
        that is returned, which is then the one that the policy acts in.
        """
        return space

    def get_state(self) -> State:
        """Everything that makes another object of the same construction act the same.

        What belongs to single slots is part of it in an env runner. The centre's copy has no slots
        (``env.num_envs`` is 0), so its state is what was learned alone.
        """
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - an optional hook
        """Take over what `get_state` returned, as far as it goes: the centre's has no slots."""

    def flush_deltas(self) -> State:
        """What was learned since the last flush; the next one begins anew."""
        return {}

    def apply_deltas(self, deltas: Iterable[Mapping[str, Any]]) -> None:  # noqa: B027 - likewise
        """Take in what others learned; exactly as if this object had seen their data."""
