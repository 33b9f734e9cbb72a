"""Log messages about running episodes that are restored by repeating their actions.

An environment that does not hand out its state is a function of the seed that it was reset with and
of the actions since. Must not know how these are repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from rlrun.data.column_data import Array
from rlrun.sampling.episodes import Episodes

_WORTH_TELLING = 10_000  # env steps of one sub-environment

_log = logging.getLogger(__name__)


def warn_of_length(env_id: str, longest: int, limit: int) -> None:
    """Warn of a running episode that has become too long to be brought back."""
    _log.warning(
        "%s: an episode has %s env steps. A resumed run, or a restarted env runner, begins it "
        "afresh, since it repeats no more than fault_tolerance.max_replayed_env_steps=%d. An env "
        "with get_state() and set_state() goes on where it was",
        env_id,
        f"{longest:,}",
        limit,
    )


def log_replay(
    episodes: Episodes,
    strayed: Iterable[int],
    lengths: Sequence[int] | Array,
    env_id: str,
    runner_index: int,
) -> None:
    """Say what repeating actions has cost, and which sub-environments begin afresh, and why.

    Args:
        strayed: sub-environments that begin afresh.
        lengths: env steps of each since its reset.
    """
    limit = episodes.max_replayed
    longest = max((int(length) for length in lengths if length <= limit), default=0)
    if longest > _WORTH_TELLING:
        message = "%s: up to %s env steps of each running episode were repeated; get_state() and "
        _log.warning(message + "set_state() would spare that", env_id, f"{longest:,}")
    for env_index in strayed:
        reason = "repeating the episode's actions led to another observation"
        if lengths[env_index] > limit:
            reason = f"its episode has {lengths[env_index]:,} env steps, too many to repeat"
            reason += f" (fault_tolerance.max_replayed_env_steps={limit})"
        message = "%s, sub-env %d of runner %d: %s, it starts a fresh episode"
        _log.warning(message, env_id, env_index, runner_index, reason)
