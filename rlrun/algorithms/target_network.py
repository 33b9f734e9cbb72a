"""A slow copy of a learner's network, for what is learned not to chase itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlrun.learning.learner import Learner
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.rl_module import RLModule


class TargetNetwork:
    """Starts as the learner's network is now.

    Args:
        module: another one of its kind, which this object owns.

    Attributes:
        module: it computes without gradients, and as when acting: without dropout.
    """

    def __init__(self, module: RLModule, learner: Learner) -> None:
        self.module = module.to(learner.device).requires_grad_(False).eval()
        self._parameters, self._source = FlatParameters(self.module), learner.parameters
        self._parameters.load(self._source.vector)
        self._copied_at = 0

    def copy_if_due(self, steps: int, every: int) -> None:
        """Become the learner's network, if that is ``every`` steps of the run ago."""
        if steps - self._copied_at >= every:
            self._parameters.load(self._source.vector)
            self._copied_at = steps

    def follow(self, tau: float) -> None:
        """Move the share ``tau`` of the way to the learner's network."""
        self._parameters.vector.lerp_(self._source.vector, tau)

    def get_state(self) -> dict[str, Any]:
        """The weights, and the steps of the run when they were copied last."""
        return {"weights": self._parameters.to_numpy(), "copied_at": self._copied_at}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self._parameters.load(state["weights"])
        self._copied_at = int(state["copied_at"])
