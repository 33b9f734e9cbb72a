"""What a failure of a remote env runner leads to: `RunnerRecovery`.

A restart with the state of the runner's last reply, going on without it, or the end of the run, as
`fault_tolerance` says; the same for synchronous rounds and for asynchronous sampling. Knows nothing
of requests: who asked the runner asks it again.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from rlrun.actors.runner_errors import EnvRunnersError, death_of
from rlrun.envs.errors import EnvError

if TYPE_CHECKING:
    from rlrun.actors.actor_manager import CallResult, FaultTolerantActorManager
    from rlrun.actors.env_runner_group import EnvRunnerGroup

_IDLE_S = 1.0  # pause before another try when no runner is left

_log = logging.getLogger(__name__)


class RunnerRecovery:
    """Judges failures of a group's remote runners, and restarts them."""

    def __init__(self, group: EnvRunnerGroup, manager: FaultTolerantActorManager) -> None:
        self._group, self._manager = group, manager
        self._tolerance = group.tolerance
        self._timeout_s = group.spec.settings.sample_timeout_s

    def recover(self, result: CallResult, fragment: int) -> bool:
        """Whether the runner was replaced, and can be asked for the fragment again.

        Raises:
            EnvError: the environment failed in the same place before, or restarts are not wanted.
            EnvRunnersError: the runner's process died, and nothing covers that.
        """
        index, tolerance, group = result.actor_id, self._tolerance, self._group
        assert result.error is not None
        group.consecutive_failures += 1
        limit = tolerance.num_consecutive_env_runner_failures_tolerance
        happened_before = self._happened_before(result, fragment)
        tolerated = group.consecutive_failures <= limit and not happened_before
        if tolerance.restart_failed_env_runners and tolerated:
            if self._manager.can_restart(index):
                _log.warning("env runner %d is restarted: %s", index, _first_line(result))
                group.restart(index)
                return True
        elif tolerance.ignore_env_runner_failures and tolerated:
            _log.warning("env runner %d is lost: %s", index, _first_line(result))
            self._manager.set_unhealthy(index)
            return False
        if result.actor_failed:
            raise EnvRunnersError(death_of(result)) from None
        raise result.error from None

    def replace_hanging(self) -> list[int]:
        """Replace runners that do not seem to come back; returns those that can be asked again.

        Fetch what has arrived before: a finished call that nobody fetched looks like a hanging one.
        """
        replaced = []
        patience_s = self._timeout_s + self._tolerance.env_runner_health_probe_timeout_s
        for index in self._manager.healthy_actor_ids:
            if self._manager.oldest_call_s(index) > patience_s:
                _log.warning("env runner %d hangs", index)
                self._manager.set_unhealthy(index)
                if self._tolerance.restart_failed_env_runners:
                    self._group.restart(index)
                    replaced.append(index)
        return replaced

    def nothing_came(self, *, late: bool) -> None:
        """No data: the run ends if all are late, and after the tolerated tries if all are lost."""
        if late:
            said = {i: self._group.last_error_line(i) for i in self._manager.healthy_actor_ids}
            lines = [
                f"  env runner {index}: {line or 'nothing on stderr'}"
                for index, line in said.items()
            ]
            raise EnvRunnersError(
                f"no env runner answered within env_runners.sample_timeout_s={self._timeout_s:g}\n"
                + "\n".join(lines)
            )
        self._group.consecutive_failures += 1
        limit = self._tolerance.num_consecutive_env_runner_failures_tolerance
        if self._group.consecutive_failures > limit:
            raise EnvRunnersError(f"no env runner is left, after {limit} tries")
        time.sleep(_IDLE_S)

    def _happened_before(self, result: CallResult, fragment: int) -> bool:
        """Whether it is no accident: the same place failed before, or it is not the environment."""
        error = result.error
        if not isinstance(error, EnvError):
            return not result.actor_failed
        what = (fragment, error.phase, error.lane, error.env_step)
        before = self._group.last_env_errors.get(result.actor_id)
        self._group.last_env_errors[result.actor_id] = what
        return before == what


def _first_line(result: CallResult) -> str:
    return "its process died" if result.actor_failed else str(result.error).splitlines()[-1]
