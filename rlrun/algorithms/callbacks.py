"""Callbacks: the user's own code at fixed points of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlrun.config.registry import import_object
from rlrun.config.schema import UseSpec

if TYPE_CHECKING:
    from rlrun.algorithms.result import Result
    from rlrun.data.sample_batch import SampleBatch
    from rlrun.sampling.episodes import EpisodeRecord


class Callbacks:
    """Methods to override; all but one of them run in the training process.

    `callbacks: [{use: "my.code:Record", every: 20}]` calls ``Record(every=20)`` once a run. An
    exception in a callback ends the run with its traceback. ``algorithm`` is the run's
    `rlrun.Algorithm`; a subclass may annotate it with the class that it expects.
    """

    def on_algorithm_init(self, algorithm: Any) -> None:
        """The algorithm is built; nothing has been sampled."""

    def on_episode_end(self, algorithm: Any, episode: EpisodeRecord) -> None:
        """A training episode has ended, in any runner.

        Numbers added to ``episode.custom_metrics`` are reported, as ``custom_metrics/<name>_mean``,
        ``_min`` and ``_max``.
        """

    def on_create_policy(self, algorithm: Any, policy_id: str) -> None:
        """A policy has been made: at the start, before `on_algorithm_init`, or added later."""

    def on_env_runners_recreated(self, algorithm: Any, num_recreated: int) -> None:
        """So many env runners were lost in this iteration, and have been started again."""

    def on_learn_on_batch(self, algorithm: Any, policy_id: str, batch: SampleBatch) -> None:
        """A policy is about to learn from a train batch, or to store it for replay.

        Changes in it count.
        """

    def on_sample_end(self, algorithm: Any, batch: SampleBatch) -> None:
        """A train batch has been sampled; changes in it are learned from."""

    def on_postprocess_trajectory(
        self,
        *,
        worker: Any,
        episode: int,
        agent_id: Any,
        policy_id: str,
        policies: Mapping[str, Any],
        postprocessed_batch: SampleBatch,
        original_batches: Mapping[Any, tuple[str, Any, SampleBatch]],
        **kwargs: Any,
    ) -> None:
        """A chunk, one agent's part of an episode in a fragment, is about to enter a train batch.

        Runs in the env runner, with an instance of its own there that no checkpoint keeps. Change
        `postprocessed_batch` in place; all chunks of a policy must end up with the same columns.

        Args:
            worker: the env runner; None in the trial that finds out which columns are needed.
            episode: its id, the `eps_id` of the rows.
            original_batches: agent -> policy id, policy and chunk before `postprocess_trajectory`,
                of all agents with a chunk of the same episode in the fragment.
        """

    def on_train_result(self, algorithm: Any, result: Result) -> None:
        """An iteration has ended. Keys added to ``result`` are reported; add them every time."""

    def on_evaluate_start(self, algorithm: Any) -> None:
        """An evaluation is about to start."""

    def on_evaluate_end(self, algorithm: Any, evaluation: Result) -> None:
        """An evaluation has ended."""

    def on_checkpoint_loaded(self, algorithm: Any) -> None:
        """The algorithm has been restored from a checkpoint."""


def make_callbacks(specs: Iterable[UseSpec]) -> list[Callbacks]:
    """The callbacks that an experiment names, in its order."""
    return [import_object(spec.use)(**spec.kwargs) for spec in specs]


def postprocessors(specs: Sequence[UseSpec], callbacks: Sequence[Callbacks]) -> tuple[UseSpec, ...]:
    """Callbacks with an `on_postprocess_trajectory` of their own, which env runners call."""
    own = Callbacks.on_postprocess_trajectory
    return tuple(
        spec
        for spec, made in zip(specs, callbacks, strict=True)
        if getattr(type(made), "on_postprocess_trajectory", own) is not own
    )
