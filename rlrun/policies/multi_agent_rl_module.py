"""MultiAgentRLModule: the networks of several policies, by id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from rlrun.policies.rl_module import RLModule


class MultiAgentRLModule(nn.Module, Mapping[str, RLModule]):
    """A mapping of policy ids to modules, and a torch module itself: its parameters are all theirs.

    Args:
        modules: policy id -> module; an id may hold any characters.
    """

    def __init__(self, modules: Mapping[str, RLModule]) -> None:
        super().__init__()
        self._ids = list(modules)
        self._list = nn.ModuleList(modules.values())

    def __getitem__(self, policy_id: str) -> RLModule:
        if policy_id not in self._ids:
            raise KeyError(policy_id)
        module: Any = self._list[self._ids.index(policy_id)]
        return module

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def add(self, policy_id: str, module: RLModule) -> None:
        """Have a further module; raises ValueError for an id that is taken."""
        if policy_id in self._ids:
            raise ValueError(f"there is a module {policy_id!r} already")
        self._ids.append(policy_id)
        self._list.append(module)

    def remove(self, policy_id: str) -> None:
        """Forget a module; raises KeyError for an id that nobody has."""
        if policy_id not in self._ids:
            raise KeyError(policy_id)
        index = self._ids.index(policy_id)
        del self._list[index], self._ids[index]

    def forward_inference(self, batch: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
        """`RLModule.forward_inference` of each module that has a part of the batch."""
        return {name: self[name].forward_inference(dict(part)) for name, part in batch.items()}

    def forward_exploration(self, batch: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
        """`RLModule.forward_exploration` of each module that has a part of the batch."""
        return {name: self[name].forward_exploration(dict(part)) for name, part in batch.items()}

    def forward_train(self, batch: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
        """`RLModule.forward_train` of each module that has a part of the batch."""
        return {name: self[name].forward_train(dict(part)) for name, part in batch.items()}
