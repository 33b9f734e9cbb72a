"""The Ray actor around an env runner.

Owns the runner inside of an actor's process. The runner is built by a call, not by the actor's
constructor, so that what its constructor raises reaches the driver as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any


class RunnerHost:
    """Builds a runner and passes calls on to it."""

    def __init__(self) -> None:
        self._make: Callable[[], Any]
        self._runner: Any = None
        self._failure: Exception | None = None

    def process_id(self) -> int:
        """Answers as soon as the process runs, before the runner is built."""
        return os.getpid()

    def build(
        self,
        runner_class: Callable[..., Any],
        spec: Any,
        arguments: Mapping[str, Any],
        env_creators: Mapping[str, Callable[..., Any]],
    ) -> None:
        """Build the runner; what its constructor raises is raised by the first call to it.

        Environments registered by name in the driver are known here too.
        """
        from rlrun.config import registry

        registry.ENVS.update(env_creators)
        self._make = partial(runner_class, spec, **arguments)
        try:
            self._runner = self._make()
        except Exception as error:
            self._failure = error

    def ping(self) -> Any:
        """Answer a health probe."""
        return self._built().ping()

    def sample_fragment(self, request: Any, weights: Any) -> Any:
        """See `EnvRunner.sample_fragment`."""
        return self._built().sample_fragment(request, weights)

    def set_state(self, state: Any) -> None:
        """See `EnvRunner.set_state`; None is the state in which a runner is built."""
        if state is None:
            self._built().stop()
            self._runner = self._make()
        else:
            self._built().set_state(state)

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(runner, *arguments)``."""
        return function(self._built(), *arguments)

    def stop(self) -> None:
        """Close the environments."""
        if self._runner is not None:
            self._runner.stop()

    def _built(self) -> Any:
        if self._failure is not None:
            raise self._failure
        return self._runner
