"""Callbacks: the user's own code at fixed points of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlrun.config.registry import import_object
from rlrun.config.schema import UseSpec
from rlrun.sampling.episode_callbacks import METHODS, LiveEpisode
from rlrun.sampling.runner_messages import RunnerCallbacks

if TYPE_CHECKING:
    from rlrun.algorithms.result import Result
    from rlrun.data.sample_batch import MultiAgentBatch, SampleBatch
    from rlrun.envs.env import EnvContext
    from rlrun.sampling.episodes import EpisodeRecord

_log = logging.getLogger(__name__)


class Callbacks:
    """Methods to override; those with an ``env_runner`` or ``worker`` run in the env runners.

    There they are called on an instance of the env runner's own, which no checkpoint keeps; the
    others run in the training process.

    `callbacks: [{use: "my.code:Record", every: 20}]` calls ``Record(every=20)`` once a run. An
    exception in a method that takes part in training ends the run with its traceback; after one in
    a method that observes (`OBSERVING`) the run goes on without these callbacks, the log says so,
    and ``callbacks_set_aside`` in the result counts them. ``algorithm`` is the run's
    `rlrun.Algorithm`; a subclass may annotate it with the class that it expects.
    """

    def on_algorithm_init(self, algorithm: Any) -> None:
        """The algorithm is built; nothing has been sampled."""

    def on_episode_end(self, algorithm: Any, episode: EpisodeRecord) -> None:
        """A training episode has ended, in any runner.

        Numbers added to ``episode.custom_metrics`` are reported, as ``custom_metrics/<name>_mean``,
        ``_min`` and ``_max``.
        """

    def on_environment_created(self, env_runner: Any, env: Any, env_context: EnvContext) -> None:
        """An env runner has made its environments, ``env``; it has no policies yet.

        In each env runner, of training, of evaluation, or one that replaces another.
        """

    def on_sub_environment_created(
        self, env_runner: Any, sub_environment: Any, env_context: EnvContext, env_index: int
    ) -> None:
        """One of its environments has been made, or made again after an error.

        Refused where sub-environments run in processes of their own or are part of a vector.
        """

    def on_episode_created(self, env_runner: Any, episode: LiveEpisode) -> None:
        """An episode is about to be shown; nothing of it is known yet. In the env runner."""

    def on_episode_start(self, env_runner: Any, episode: LiveEpisode) -> None:
        """An episode has begun, of training or of an evaluation (`env_runner.role`)."""

    def on_episode_step(self, env_runner: Any, episode: LiveEpisode) -> None:
        """A step of an episode has been made; the last one has `terminated` or `truncated` set.

        What `episode.custom_metrics` holds after the last step is reported, as in `on_episode_end`.
        """

    def on_create_policy(self, algorithm: Any, policy_id: str) -> None:
        """A policy has been made: at the start, before `on_algorithm_init`, or added later."""

    def on_env_runners_recreated(self, algorithm: Any, num_recreated: int) -> None:
        """So many env runners were lost in this iteration, and have been started again."""

    def on_learn_on_batch(self, algorithm: Any, policy_id: str, batch: SampleBatch) -> None:
        """A policy is about to learn from a train batch, or to store it for replay.

        Changes in it count.
        """

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

        Change `postprocessed_batch` in place; all chunks of a policy must end up with the same
        columns.

        Args:
            worker: the env runner; None in the trial that finds out which columns are needed.
            episode: its id, the `eps_id` of the rows.
            original_batches: agent -> policy id, policy and chunk before `postprocess_trajectory`,
                of all agents with a chunk of the same episode in the fragment.
        """

    def on_sample_end(self, env_runner: Any, samples: SampleBatch | MultiAgentBatch) -> None:
        """An env runner has sampled a fragment for training, which is about to be sent.

        Called once for each fragment, after `on_postprocess_trajectory`. What is changed in it is
        learned from: columns may be replaced, and new ones added in each fragment, while the number
        of rows stays. `obs` and `new_obs` may share memory: assign a new array instead of writing
        into one.

        Args:
            samples: the rows of the default policy, or a MultiAgentBatch of several policies.
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
    return [import_object(spec.use)(**spec.arguments()) for spec in specs]


OBSERVING = frozenset(
    (
        *("on_episode_end", "on_train_result", "on_evaluate_start", "on_evaluate_end"),
        "on_env_runners_recreated",
    )
)
"""Methods on whose outcome training does not depend."""


def call_back(callbacks: list[Callbacks], name: str, *arguments: Any) -> None:
    """Call this method of each; one that raises while it only observes leaves the list."""
    for each in tuple(callbacks):
        try:
            getattr(each, name)(*arguments)
        except Exception as error:
            if name not in OBSERVING:
                raise
            callbacks.remove(each)
            _log.warning(
                "%s.%s raised %r: these callbacks are set aside, the log has the traceback",
                type(each).__name__,
                name,
                error,
                exc_info=True,
            )


_IN_RUNNERS = (
    *METHODS,
    "on_environment_created",
    "on_sub_environment_created",
    "on_postprocess_trajectory",
    "on_sample_end",
)


def runner_callbacks(
    specs: Sequence[UseSpec], callbacks: Sequence[Callbacks]
) -> tuple[RunnerCallbacks, ...]:
    """The callbacks that env runners call, with the methods that they define themselves."""
    found = []
    for spec, made in zip(specs, callbacks, strict=True):
        own = {
            name
            for name in _IN_RUNNERS
            if getattr(type(made), name, None) not in (None, getattr(Callbacks, name))
        }
        if own:
            found.append(RunnerCallbacks(spec, frozenset(own)))
    return tuple(found)
