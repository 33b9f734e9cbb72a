"""The runner that plays an algorithm's evaluation episodes, in this process.

Owns that runner, and what it is told before it plays: the algorithm's present policies, weights,
connector statistics and exploration. Nothing that training depends on is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlrun.algorithms.runners import make_evaluation_runner
from rlrun.sampling.episodes import EpisodeRecord
from rlrun.sampling.evaluation import play_episodes
from rlrun.sampling.runner_messages import RunnerSpec, tell_exploration
from rlrun.sampling.seeding import evaluation_seed

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm


class Evaluator:
    """Plays episodes with an algorithm as it is now.

    Args:
        spec: what the training runners are built from.
    """

    def __init__(self, algorithm: Algorithm, spec: RunnerSpec) -> None:
        self._algorithm, self._spec = algorithm, spec
        self._runner: Any = None

    def play(self) -> list[EpisodeRecord]:
        """`evaluation.episodes` fresh episodes."""
        settings = self._algorithm.config.evaluation
        return play_episodes(
            self.runner(),
            num_episodes=settings.episodes,
            seed=self.seed(),
            explore=settings.explore,
        )

    def seed(self) -> int:
        """The seed of evaluation episodes: the experiment's own, or one derived from its seed."""
        seed = self._algorithm.config.evaluation.seed
        return evaluation_seed(self._algorithm.seed) if seed is None else seed

    def runner(self, render_mode: str | None = None) -> Any:
        """The runner, which knows what the algorithm does."""
        algorithm = self._algorithm
        if self._runner is None or render_mode is not None:
            settings = algorithm.config.evaluation
            self._runner = make_evaluation_runner(self._spec, settings, render_mode)
        if algorithm.multi_agent is not None:
            self._runner.set_policies(algorithm.policies)
        self._runner.load(
            algorithm.acting_weights,
            algorithm.weights_version,
            algorithm.connectors.get_state(),
        )
        # Where runners differ, the last one explores least.
        last = algorithm.config.env_runners.num_env_runners
        tell_exploration(self._runner.policies, algorithm.explorations(), last)
        return self._runner

    def forget_weights(self) -> None:
        """Weights of any version are new: those of another run may have the same number."""
        if self._runner is not None:
            self._runner.weights_version = -1

    def stop(self) -> None:
        """Close the environments; the next call makes others."""
        if self._runner is not None:
            self._runner.stop()
            self._runner = None
