"""An algorithm with the interface of rlrun's own; its numbers are a pure function of its state."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from rlrun.algorithms.result import PhaseTimers
from rlrun.config.schema import ExperimentConfig, TrainingConfig


class CountingTraining(TrainingConfig):
    """Settings of the fake."""

    gain: float = 1.0
    """Return gained each iteration."""
    fail_at: int | None = None
    """Iteration that raises."""
    pause_s: float = 0.0
    """Seconds an iteration takes."""


class CountingAlgorithm:
    """Its return rises by ``gain`` plus noise from a generator that is part of the state."""

    Training = CountingTraining
    optional_sections: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: ExperimentConfig, *, address: str | None = None) -> None:
        self.config = config
        self.timers = PhaseTimers()
        self.policies = SimpleNamespace(masked=False)
        self.progress = SimpleNamespace(interrupt=lambda: None)
        self.env_runner_group = self.evaluator = self.progress
        self.iteration = 0
        self.rng = np.random.default_rng(config.seed)
        self.weights = self.rng.normal(size=(3, 2)).astype(np.float32)
        self.noise = 0.0
        self.stopped = False

    @staticmethod
    def validate(config: ExperimentConfig) -> list[Any]:
        return []

    def train(self) -> dict[str, Any]:
        training: Any = self.config.training
        if training.fail_at == self.iteration + 1:
            raise RuntimeError("the fake fails as planned")
        time.sleep(training.pause_s)
        self.iteration += 1
        self.noise = float(self.rng.normal())
        self.weights = self.weights + np.float32(self.noise)
        batch = training.train_batch_size
        seconds, wall = self.timers.lap()
        mean = self.iteration * training.gain
        return {
            "training_iteration": self.iteration,
            "env_steps": self.iteration * batch,
            "agent_steps": self.iteration * batch,
            "env_steps_this_iter": batch,
            "episodes": self.iteration * 40,
            "episodes_this_iter": 40,
            "episode_return_mean": np.float64(mean),
            "episodes_in_mean": min(100, self.iteration * 40),
            "episode_return_mean_this_iter": mean + self.noise,
            "episode_return_min": mean - 1,
            "episode_return_max": float("nan"),
            "episode_len_mean": 20.0,
            "env_steps_per_s": batch / wall,
            "time_s": wall,
            "weights_version": self.iteration,
            "env_runners": {"healthy": 2, "restarts": 0, "longest_running_episode": 7},
            "learners": {
                "default_policy": {"learner_stats": {"entropy": 0.5, "approx_kl": 0.01, "lr": 3e-4}}
            },
            "evaluation": {"episode_return_mean": None, "episode_return_std": None},
            "timers": seconds,
        }

    def get_state(self) -> dict[str, Any]:
        return {
            "iteration": self.iteration,
            "rng": self.rng.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.iteration = state["iteration"]
        self.rng.bit_generator.state = state["rng"]

    def after_restore(self) -> None:
        """There are no callbacks."""

    def match_policies(self, state: dict[str, Any]) -> None:
        """It has none."""

    def buffer_names(self) -> frozenset[str]:
        return frozenset()

    def get_weights(self) -> dict[str, np.ndarray]:
        return {"pi.0.weight": self.weights.copy()}

    def set_weights(self, weights: dict[str, np.ndarray]) -> None:
        self.weights = weights["pi.0.weight"]

    def stop(self) -> None:
        self.stopped = True


class CollectingSink:
    """A user's sink."""

    written: ClassVar[list[tuple[Path, dict[str, Any]]]] = []
    closed: ClassVar[int] = 0

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def write(self, result: dict[str, Any]) -> None:
        self.written.append((self.run_dir, result))

    def close(self) -> None:
        type(self).closed += 1
