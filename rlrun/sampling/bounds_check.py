"""BoundsCheck: whether observations lie within their space, in a sample of an env runner's steps.

Shape, dtype and NaN are looked at in every step, by the environments' owners in `envs`; comparing
each number with its bounds there would cost too much. Must not know how environments are stepped.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gymnasium.vector.utils import batch_space, iterate

from rlrun.config.schema import EnvRunnersConfig
from rlrun.envs.agent_slots import Due
from rlrun.envs.env import observation_problem
from rlrun.policies.policy_mapping import Spaces
from rlrun.sampling.lock_step_envs import LockStepEnvs
from rlrun.sampling.sampling_loop import SlotEnvs

_log = logging.getLogger(__name__)

_FIRST = 10  # vector steps before the first comparison, so that short runs have one, too


class BoundsCheck:
    """Compares the observations after every n-th vector step with the bounds of their spaces.

    After a warning it compares no more.

    Args:
        spaces: the environment's, by policy id.

    Attributes:
        envs: whose observations it compares.
        left: vector steps until the next comparison.
    """

    def __init__(
        self, settings: EnvRunnersConfig, envs: SlotEnvs, spaces: Callable[[], Mapping[str, Spaces]]
    ) -> None:
        self._interval = settings.observation_check_interval or 0
        self._raises = settings.observations_out_of_bounds == "error"
        self.envs, self._spaces = envs, spaces
        self.left: float = min(_FIRST, self._interval)

    def stepping(self, step: Callable[[], None]) -> Callable[[], None]:
        """A step of the sampling loop, with the comparison where one is due."""

        def checked() -> None:
            step()
            self.left -= 1
            if self.left == 0:
                self.left = self._interval
                self._compare()

        return checked

    def _compare(self) -> None:
        spaces = self._spaces()
        for policy_id, due in self.envs.due.items():
            space = spaces[policy_id][0]
            for row, observation in enumerate(self._observations(policy_id, due, space)):
                problem = observation_problem(space, observation)
                if problem is not None:
                    self._report(policy_id, due, row, problem)
                    return

    def _observations(self, policy_id: str, due: Due, space: Any) -> Iterator[Any]:
        """Raw observations of the slots that are due."""
        if isinstance(self.envs, LockStepEnvs):
            yield from iterate(batch_space(space, self.envs.envs.num_envs), self.envs.raw)
            return
        assert due.slots is not None
        for slot in due.slots:
            yield self.envs.env.policies[policy_id].at(slot).observation

    def _report(self, policy_id: str, due: Due, row: int, problem: str) -> None:
        error = self.envs.observation_error(policy_id, due, row, problem)
        if self._raises:
            raise error
        self.left = math.inf
        _log.warning(
            "%s; the run continues without further checks. Widen the space, or end the run with "
            "env_runners.observations_out_of_bounds=error",
            error,
        )
