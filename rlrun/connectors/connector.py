"""Connector: transforms data between the environments and the policy.

Owns the interface: how a connector is called depends on its place, how its state is saved and
shared does not. Numpy only; must not know of torch, Ray or its callers.

| place                                        | called with                                    |
|----------------------------------------------|------------------------------------------------|
| `env_runners.env_to_module_connector`        | observations of n slots, and a `SlotHistory`   |
| `env_runners.module_to_env_connector`        | the policy's actions [B, ...], and the same    |
| `observations`, `actions`, `rewards` (built in) | see there                                    |

State that is learned from data (a filter's statistics) exists once in the training process and once
in each env runner. Each iteration the training process merges what the runners' connectors return
from `flush_deltas()` by `apply_deltas()`, and sends its `get_state()` to their `set_state()`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium as gym

State = dict[str, Any]
"""Nested dict of str to numpy arrays and numbers."""


class Connector(ABC):
    """Base class of all connectors.

    Only ``__call__`` must be defined; a connector that learns nothing keeps the other defaults.

    Attributes:
        identity: whether calling it returns its first argument; callers may skip the call then.
    """

    identity: bool = False

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Transform one batch."""

    def connect(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """The space on the policy's side, given the one on the environments' side.

        Called once, before any data. A connector of observations turns those in ``space`` into ones
        in the returned space. A connector of actions works the other way: it turns actions in the
        returned space, in which the policy then acts, into ones in ``space``.
        """
        return space

    def get_state(self) -> State:
        """Everything that another object with the same arguments needs to act in the same way.

        In an env runner that includes what belongs to single slots. The training process's copy has
        no slots (``env.num_envs`` is 0), so its state is only what was learned.
        """
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - an optional hook
        """Restore a state from `get_state`, which has no slots if the training process sent it."""

    def flush_deltas(self) -> State:
        """What was learned since the last flush."""
        return {}

    def apply_deltas(self, deltas: Iterable[Mapping[str, Any]]) -> None:  # noqa: B027 - likewise
        """Merge what other copies learned, exactly as if this one had seen their data."""
