"""TensorBoard: every number of every result as a scalar over env steps.

Owns the translation into event files, an extra (``pip install "rlrun[tensorboard]"``). It must not
know which numbers there are.
"""

from pathlib import Path
from typing import Any

from rlrun.data.results import addresses, number_at
from rlrun.experiment.errors import MissingExtraError


class TensorBoardSink:
    """Writes scalars named as the result addresses them: ``evaluation/episode_return_mean``."""

    def __init__(self, directory: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError(
                'report.sinks: tensorboard: not installed: pip install "rlrun[tensorboard]"'
            ) from None
        self._writer = SummaryWriter(str(directory))

    def write(self, result: dict[str, Any]) -> None:
        """Add one result's numbers; null and text are left out."""
        step = int(result["env_steps"])
        for address in addresses(result):
            value = number_at(result, address)
            if value is not None:
                self._writer.add_scalar(address, value, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()
