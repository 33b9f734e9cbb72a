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
    """Override what you need; all but one of the methods run in the training process.

    `callbacks: [{use: "my.code:Record", every: 20}]` calls ``Record(every=20)`` once a run. What a
    callback raises ends the run with its traceback. ``algorithm`` is the `rlrun.Algorithm` of the
    run; a subclass may name its class.
    """

    def on_algorithm_init(self, algorithm: Any) -> None:
        """The algorithm stands, nothing has been sampled."""

    def on_episode_end(self, algorithm: Any, episode: EpisodeRecord) -> None:
        """A training episode has ended, in whichever runner."""

    def on_sample_end(self, algorithm: Any, batch: SampleBatch) -> None:
        """A train batch has been sampled; what is changed in it is learned from."""

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
        """A fragment's piece of one episode is about to become part of a train batch.

        Runs in the env runner, with an instance of its own there that no checkpoint keeps. Change
        `postprocessed_batch` in place; every piece of a policy must end up with the same columns.

        Args:
            worker: the env runner; None in the trial that finds out which columns are needed.
            episode: its id, the `eps_id` of the rows.
            original_batches: agent -> policy id, policy and piece before `postprocess_trajectory`,
                of all agents that have one of the same episode in the fragment.
        """

    def on_train_result(self, algorithm: Any, result: Result) -> None:
        """An iteration has ended. Keys added to ``result`` are reported; add them every time."""

    def on_evaluate_start(self, algorithm: Any) -> None:
        """An evaluation is about to start."""

    def on_evaluate_end(self, algorithm: Any, evaluation: Result) -> None:
        """An evaluation has ended."""

    def on_checkpoint_loaded(self, algorithm: Any) -> None:
        """The algorithm has taken over a checkpoint's state."""


def make_callbacks(specs: Iterable[UseSpec]) -> list[Callbacks]:
    """The callbacks that an experiment names, in its order."""
    return [import_object(spec.use)(**spec.kwargs) for spec in specs]


def postprocessors(specs: Sequence[UseSpec], callbacks: Sequence[Callbacks]) -> tuple[UseSpec, ...]:
    """Those of the callbacks that env runners must call, too."""
    own = Callbacks.on_postprocess_trajectory
    return tuple(
        spec
        for spec, made in zip(specs, callbacks, strict=True)
        if getattr(type(made), "on_postprocess_trajectory", own) is not own
    )
