"""QOptions: the extensions of a Q-network that change its shape. Must not import torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class QOptions:
    """What a Q-network has beyond one number for each action."""

    dueling: bool = False
    """Separate streams for the value of a state and the advantages of its actions."""
    num_atoms: int = 1
    """K, the points of a value's distribution; 1 learns the mean alone."""
    v_min: float = -10.0
    """The lowest of them."""
    v_max: float = 10.0
    """The highest of them."""
    noisy: bool = False
    """Noise in the weights behind the encoder."""
    sigma0: float = 0.5
    """Its scale at the start."""

    @property
    def support(self) -> NDArray[np.float32]:
        """The points, float32 ``[K]``."""
        return np.linspace(self.v_min, self.v_max, self.num_atoms, dtype=np.float32)
