"""Rebuilder: environments in place of those that raised, but not for ever and not without a word.

Owns how often a sub-environment may fail and what the log says of it. Must not know how
environments are stepped, nor which episodes they run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rlrun.envs.errors import EnvFailure

MOST_IN_A_ROW = 100
"""Failures of one sub-environment without a whole episode between them, after which the run ends:
what is sampled then would be the beginnings of episodes alone, or nothing."""

_log = logging.getLogger(__name__)


class Rebuilder:
    """Makes the environments of sub-environments again.

    The log has the first failure with its traceback, and then how many there were at 10, 100, ...

    Args:
        make: makes the environment of a sub-environment.
        env_id: what the experiment calls the environment.
    """

    def __init__(self, make: Callable[[int], Any], env_id: str) -> None:
        self._make, self._env_id = make, env_id
        self._in_a_row: dict[int, int] = {}  # by sub-environment
        self._total = 0

    def build(self, env: Any, env_index: int, error: BaseException) -> Any:
        """Close an environment that raised, and make another; None if it has failed too often."""
        reason = EnvFailure.from_exception(error).reason
        self._total += 1
        self._in_a_row[env_index] = self._in_a_row.get(env_index, 0) + 1
        if self._in_a_row[env_index] > MOST_IN_A_ROW:
            return None
        if self._total == 1:
            message = "%s is built again in sub-env %d: %s"
            _log.warning(message, self._env_id, env_index, reason, exc_info=error)
        elif str(self._total).strip("0") == "1":
            message = "%s has been built again %d times, now in sub-env %d: %s"
            _log.warning(message, self._env_id, self._total, env_index, reason)
        with suppress(Exception):
            env.close()
        return self._make(env_index)

    def episode_ended(self, env_index: int) -> None:
        """A sub-environment has run a whole episode: count its failures from here."""
        self._in_a_row.pop(env_index, None)
