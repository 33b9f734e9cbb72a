"""An algorithm that trains nothing, and other code that configs can name."""

from collections.abc import Iterator
from typing import Any

from rlrun.algorithms.callbacks import Callbacks
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.schema import Count, ExperimentConfig, Schedule, TrainingConfig


class FakeTraining(TrainingConfig):
    """The fake's own settings."""

    clip: Schedule = 0.2
    """A schedule beside lr."""
    num_epochs: Count = 4
    """A whole number."""
    lambda_: float = 0.95
    """A name with an underscore."""


class FakeConfig(AlgorithmConfig):
    """The fake's builder."""

    algorithm = "fake_algorithm:Fake"


class Fake:
    """An algorithm class with everything that configs need of one."""

    Training = FakeTraining
    Config = FakeConfig

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        if config.training.train_batch_size % 8:
            yield "training.train_batch_size", "not a multiple of 8"


class Maze:
    """An environment class with a required and an optional argument."""

    def __init__(self, size: int, walls: float = 0.5, env_context: Any = None) -> None:
        self.size, self.walls = size, walls


def classical(config: dict[str, Any]) -> Maze:
    """An environment function that takes all arguments as one."""
    return Maze(**config)


class Callback(Callbacks):
    """A callback with one argument."""

    def __init__(self, every: int = 1) -> None:
        self.every = every


CONSTANT = 3
