"""RemoteEnv: an environment in a Ray actor of its own; no other module here imports Ray.

The actor reserves no CPU, so that Ray never delays its start; it ends with the process that made
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from rlrun.envs.env_process import EnvHost, EnvProxy
from rlrun.envs.errors import EnvFailure


class RemoteEnv(EnvProxy):
    """An environment in a Ray actor."""

    _answer: Any = None

    def _start(self) -> None:
        host_class: Any = ray.remote(num_cpus=0, max_restarts=0)(EnvHost)
        self._host = host_class.remote(self._make, self._env_timeout_s)

    def _send(self, method: str, arguments: tuple[Any, ...]) -> None:
        self._answer = self._host.call.remote(method, *arguments)

    def _wait(self) -> None:
        ray.wait([self._answer])

    def _receive(self) -> Any:
        try:
            return ray.get(self._answer)
        except RayTaskError as error:
            raise error.cause from None
        except RayError:
            raise EnvFailure("the environment's Ray actor ended") from None

    @staticmethod
    def ready(envs: Sequence[RemoteEnv], wait_s: float) -> list[bool]:
        """Whether each environment has answered after ``wait_s``; waits until at least one has."""
        answers = [env._answer for env in envs]
        done, others = ray.wait(answers, num_returns=len(answers), timeout=wait_s)
        if not done:
            done, _ = ray.wait(others, num_returns=1)
        return [answer in done for answer in answers]

    def close(self) -> None:
        if not (self.under_way or self._in_message):
            self.begin("close")
            ray.wait([self._answer], timeout=2.0)
        ray.kill(self._host)
