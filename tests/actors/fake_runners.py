"""Runners without environments, and an environment that fails; imported by the actors too."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium

from rlrun.actors.env_runner_group import EnvRunnerGroup
from rlrun.config.schema import EnvRunnersConfig, EnvSpec, FaultToleranceConfig
from rlrun.data.seeding import Role
from rlrun.envs.errors import EnvError


@dataclass(frozen=True)
class FakeSpec:
    env: EnvSpec = field(default_factory=lambda: EnvSpec(use="Fake-v0"))
    settings: EnvRunnersConfig = field(default_factory=EnvRunnersConfig)
    folder: str = ""
    """Where marks of what happened already are kept, so that it happens once."""
    behaviour: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def of_actors(self) -> FakeSpec:
        return self


@dataclass(frozen=True)
class FakeRequest:
    fragment: int
    length: int = 2
    weights_version: int = 0
    connector_state: dict[str, Any] | None = None

    def get_state(self) -> dict[str, Any]:
        return vars(self)


@dataclass(frozen=True)
class FakeReply:
    runner_index: int
    batch: Any
    state: dict[str, Any]
    env_steps: int = 0


@dataclass(frozen=True)
class TimedReply:
    runner_index: int
    fragment: int
    weights_version: int
    weights: Any
    started: float
    """Of the wall clock, as `ended`."""
    ended: float
    state: dict[str, Any]


class FakeRunner:
    """Counts on from its state; its data are a function of index, state, length and weights."""

    def __init__(
        self,
        spec: FakeSpec,
        *,
        runner_index: int = 0,
        role: Any = None,
        num_env_runners: int = 0,
        recreated: bool = False,
    ) -> None:
        self.spec, self.runner_index, self.recreated = spec, runner_index, recreated
        self.count = 0
        self.connector_state: dict[str, Any] | None = None
        if spec.behaviour.get("constructor") == runner_index:
            raise EnvError("Fake-v0", "constructor", "ValueError: no", runner_index=runner_index)

    def sample_fragment(self, request: FakeRequest, weights: Any = None) -> FakeReply:
        if request.connector_state is not None:
            self.connector_state = request.connector_state
        self.count += request.length
        self._misbehave(request)
        total = None if weights is None else float(weights.sum())
        data = (self.runner_index, self.count, request.length, total, self.connector_state)
        return FakeReply(self.runner_index, data, {"count": self.count}, request.length)

    def _misbehave(self, request: FakeRequest) -> None:
        what = self.spec.behaviour.get((self.runner_index, request.fragment))
        always = what is not None and what.startswith("always")
        if what is None or not (always or self._first_time(request.fragment)):
            return
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what in ("sleep", "always sleep"):
            time.sleep(self.spec.behaviour["sleep_s"])
        if what == "bug":
            raise KeyError("a bug of ours")
        if what == "exit":
            sys.exit(0)
        if what == "assert":
            raise AssertionError
        if what in ("raise", "always raise"):
            try:
                {}["missing"]
            except KeyError as error:
                raise EnvError.from_exception(
                    error, "Fake-v0", "step", runner_index=self.runner_index, env_step=7
                ) from None

    def _first_time(self, fragment: int | str) -> bool:
        mark = Path(self.spec.folder) / f"{self.runner_index}-{fragment}"
        if mark.exists():
            return False
        mark.touch()
        return True

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        time.sleep(self.spec.behaviour.get("restore_s", 0.0))
        for i, step in enumerate(self.spec.behaviour.get("restore", {}).get(self.runner_index, ())):
            if self._first_time(f"restore-{i}"):
                raise EnvError(
                    "Fake-v0", "step", "flaky", runner_index=self.runner_index, env_step=step
                )
        self.count = state["count"]

    def ping(self) -> int:
        return self.runner_index

    def stop(self) -> None:
        return


class TimedRunner(FakeRunner):
    """Takes ``behaviour["takes_s"]`` for each fragment, and says when that was."""

    def sample_fragment(self, request: FakeRequest, weights: Any = None) -> Any:
        started = time.time()
        self.count += 1
        self._misbehave(request)
        time.sleep(self.spec.behaviour.get("takes_s", 0.0))
        return TimedReply(
            self.runner_index,
            request.fragment,
            request.weights_version,
            weights,
            started,
            time.time(),
            {"count": self.count},
        )


def doubled_count(runner: FakeRunner, request: FakeRequest, weights: Any) -> Any:
    """A task for the asynchronous sampler that is more than sampling."""
    reply = runner.sample_fragment(request, weights)
    return FakeReply(runner.runner_index, 2 * runner.count, reply.state)


def fake_group(
    behaviour: dict[Any, Any] | None = None,
    folder: Path | str = "",
    *,
    number: int = 2,
    runner_class: Any = FakeRunner,
    role: Role = Role.TRAIN,
    **settings: Any,
) -> EnvRunnerGroup:
    """A group of fake runners.

    Args:
        number: of remote ones; 0 for a local one.
        settings: of ``env_runners`` and ``fault_tolerance``.
    """
    tolerance = {k: settings.pop(k) for k in FaultToleranceConfig.model_fields if k in settings}
    env_runners = EnvRunnersConfig(
        num_env_runners=number,
        num_cpus_per_env_runner=0.1,
        **{"sample_timeout_s": 20.0, **settings},
    )
    return EnvRunnerGroup(
        FakeSpec(settings=env_runners, folder=str(folder), behaviour=behaviour or {}),  # type: ignore[arg-type]
        num_env_runners=number,
        fault_tolerance=FaultToleranceConfig(**tolerance),
        runner_class=runner_class,
        role=role,
    )


def kill(group: EnvRunnerGroup, index: int) -> None:
    """Kill the process of a remote runner, whichever are healthy."""
    process_ids = dict(group.foreach_env_runner(lambda one: (one.runner_index, os.getpid())))
    os.kill(process_ids[index], signal.SIGKILL)


class FailingCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises at the third step of an episode."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.step_in_episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.step_in_episode = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.step_in_episode += 1
        if self.step_in_episode == 3:
            raise ValueError("it fell")
        return super().step(action)
