"""Postprocessing: a fragment's batch goes through the user's hands, episode by episode.

A *piece* is what a fragment holds of one episode: the policy's `postprocess_trajectory` and the
callbacks' `on_postprocess_trajectory` see pieces, hence never two episodes, once at the end of each
episode and of each fragment. Rewards are as learning sees them; views that are not for training are
there. Knows nothing of losses; callbacks are whatever has the method.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rlrun.config.registry import import_object
from rlrun.data import columns as col
from rlrun.data.multi_agent_batch import DEFAULT_POLICY_ID
from rlrun.data.sample_batch import SampleBatch, concat_samples
from rlrun.data.sequences import change_points
from rlrun.policies.policy import Policy

if TYPE_CHECKING:
    from rlrun.config.schema import UseSpec

ONLY_AGENT = "agent0"
"""What the agent of an environment without names for agents is called."""


class Postprocessing:
    """What is done to each piece.

    Args:
        callbacks: each with an `on_postprocess_trajectory`, called in this order.
        worker: the env runner that callbacks are told of; None in a dummy pass.
    """

    def __init__(self, policy: Policy, callbacks: Sequence[Any], worker: Any = None) -> None:
        self._policy, self._callbacks, self._worker = policy, callbacks, worker

    @property
    def does_nothing(self) -> bool:
        """Whether neither the policy nor a callback wants to see the pieces."""
        own = type(self._policy).postprocess_trajectory is not Policy.postprocess_trajectory
        return not own and not self._callbacks

    def __call__(self, batch: SampleBatch) -> SampleBatch:
        """The batch of the postprocessed pieces; all must come out with the same columns."""
        cuts = {*change_points(batch[col.EPS_ID]), *change_points(batch[col.UNROLL_ID])}
        bounds = [0, *sorted(cuts), len(batch)]
        pieces = [self._postprocessed(batch.slice(a, b)) for a, b in pairwise(bounds)]
        joined = concat_samples(pieces)
        assert isinstance(joined, SampleBatch)
        return joined

    def _postprocessed(self, piece: SampleBatch) -> SampleBatch:
        original, episode = piece.copy(shallow=True), int(piece[col.EPS_ID][0])
        policy = self._policy
        done: SampleBatch = policy.postprocess_trajectory(piece, {}, episode)
        for callbacks in self._callbacks:
            callbacks.on_postprocess_trajectory(
                worker=self._worker,
                episode=episode,
                agent_id=ONLY_AGENT,
                policy_id=DEFAULT_POLICY_ID,
                policies={DEFAULT_POLICY_ID: policy},
                postprocessed_batch=done,
                original_batches={ONLY_AGENT: (DEFAULT_POLICY_ID, policy, original)},
            )
        return done


def make_postprocessors(specs: Sequence[UseSpec]) -> list[Any]:
    """The callbacks that these name, for one process."""
    return [import_object(spec.use)(**spec.kwargs) for spec in specs]
