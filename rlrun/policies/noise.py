"""The noise of noisy networks, in numpy: what learners and runners both draw.

Must not import torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def factorised_noise(
    rng: np.random.Generator, num_inputs: int, num_outputs: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """f(e) for the inputs and for the outputs of a layer, whose product is the weights' noise."""
    draws = rng.standard_normal(num_inputs + num_outputs, dtype=np.float32)
    scaled = np.sign(draws) * np.sqrt(np.abs(draws))
    return scaled[:num_inputs], scaled[num_inputs:]
