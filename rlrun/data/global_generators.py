"""The global generators of this process: those of `random`, `numpy.random` and torch.

rlrun draws nothing from them. User code may, so they are seeded wherever it runs: in an actor or a
sub-process, which belong to the run, once and for all; in the user's own process only for as long
as rlrun works there (`seeded_generators`). Torch's is seeded where torch has been imported.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class Generators:
    """States of the three generators, to be swapped with the present ones.

    At first they are the present states.
    """

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_bit_generator()
        torch = _torch()
        self._torch = None if torch is None else torch.random.default_generator.get_state()

    def swap(self) -> None:
        """Put these states into effect, and keep the ones that were."""
        python, self._python = self._python, random.getstate()
        numpy, self._numpy = self._numpy, np.random.get_bit_generator()
        random.setstate(python)
        np.random.set_bit_generator(numpy)
        torch = _torch()
        if torch is None:
            return
        generator = torch.random.default_generator
        state, self._torch = self._torch, generator.get_state()
        if state is not None:
            generator.set_state(state)


def seed_generators(seed: int) -> None:
    """Seed all global generators of this process; ``seed`` has 32 bits at most."""
    random.seed(seed)
    np.random.seed(seed)
    torch = _torch()
    if torch is not None:
        torch.random.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed all global generators for the ``with`` block; afterwards they go on as before it."""
    before = Generators()
    np.random.set_bit_generator(np.random.MT19937(seed))
    seed_generators(seed)
    try:
        yield
    finally:
        before.swap()


def _torch() -> Any:
    return sys.modules.get("torch")
