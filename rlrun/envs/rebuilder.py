"""Rebuilder: new environments in place of those that raised, within limits and with warnings.

Owns which failures of environments are tolerated, and how they are logged. Must not know how
environments are stepped, nor which episodes they run.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

from rlrun.envs.errors import RAISED, EnvFailure, TooManyFailures, is_of_reading
from rlrun.envs.watchdog import end_forked_copy

_UNPROVEN = (
    "it has not run a whole episode yet; fault_tolerance.restart_failed_sub_environments=true "
    "rebuilds it anyway"
)

_COUNTERS = ("env_steps", "proven", "_failures", "_spent", "_spent_at")
_MOST_IN_EVALUATION = 100  # an episode of it is repeated, and may fail again at the same step

_log = logging.getLogger(__name__)


class Rebuilder:
    """Rebuilds sub-environments whose environment raised, as far as failures are tolerated.

    The first failure is logged with its traceback, then the 10th, the 100th, ...

    Failures are limited by a token bucket: each costs one token, and env steps bring tokens back at
    the tolerated rate, up to the number of failures that are tolerated in 1,000 env steps.

    Args:
        env_id: name of the environment in the experiment.
        when: whether failures are tolerated; "auto" does so once an episode has been completed.
        per_1000_steps: failures tolerated in 1,000 env steps of all sub-environments.
        runner_index: of the env runner, for the log.

    Attributes:
        env_steps: env steps of all sub-environments so far.
        proven: whether any sub-environment has run a whole episode.
    """

    def __init__(
        self,
        env_id: str,
        when: bool | Literal["auto"] = False,
        per_1000_steps: float = 0.0,
        runner_index: int = 0,
    ) -> None:
        self._env_id, self._runner_index = env_id, runner_index
        self.when, self._per_1000_steps = when, per_1000_steps
        self.env_steps, self.proven = 0, False
        self._failures = 0
        self._left = math.inf  # failures that are tolerated at any rate
        self._spent, self._spent_at = 0.0, 0  # tokens spent, as of this env step
        self._process_id = os.getpid()

    def begin_evaluation(self) -> None:
        """Tolerate a bounded number of failures until the next call."""
        self._left = _MOST_IN_EVALUATION

    def build(
        self, make: Callable[[int], Any] | None, env: Any, env_index: int, error: BaseException
    ) -> Any:
        """Close an environment that raised, and make another.

        Raises:
            TooManyFailures: this failure is not tolerated.
        """
        end_forked_copy(self._process_id)
        if not self.when or make is None or is_of_reading(error):
            raise TooManyFailures
        if self.when == "auto" and not self.proven:
            raise TooManyFailures(_UNPROVEN)
        self._left -= 1
        if self._left < 0:
            raise TooManyFailures(f"it failed {_MOST_IN_EVALUATION + 1} times in one evaluation")
        earned = (self.env_steps - self._spent_at) * self._per_1000_steps / 1000
        self._spent, self._spent_at = max(0.0, self._spent - earned) + 1, self.env_steps
        if self._spent > self._per_1000_steps:
            key = "fault_tolerance.max_sub_environment_failures_per_1000_steps"
            raise TooManyFailures(f"it fails more often than {key}={self._per_1000_steps:g}")
        self._failures += 1
        failure = EnvFailure.from_exception(error)
        place = f"runner {self._runner_index}, sub-env {env_index}"
        if self._failures == 1:
            said = failure.user_traceback.rstrip() or failure.reason
            _log.warning("%s is rebuilt in %s: %s", self._env_id, place, said)
        elif str(self._failures).strip("0") == "1":  # 10, 100, 1,000, ...
            message = "%s has been rebuilt %d times, now in %s: %s"
            _log.warning(message, self._env_id, self._failures, place, failure.reason)
        with suppress(*RAISED):
            env.close()
        return make(env_index)

    def get_state(self) -> dict[str, Any]:
        """The counters that decide whether the next failure is tolerated."""
        return {name.lstrip("_"): getattr(self, name) for name in _COUNTERS}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        for name in _COUNTERS:
            setattr(self, name, state[name.lstrip("_")])
