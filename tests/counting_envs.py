"""Environments whose every number follows from seed, step and action, and runners of one of them.

Environments are imported by import path.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.policies.policy import Policy
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest


class Counter(gymnasium.Env[Any, Any]):
    """Observes (seed % 1000, step); lasts 2 + seed % 3 steps; odd seeds truncate."""

    observation_space = spaces.Box(-1.0, 1000.0, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, fail_at: int = -1, nan_at: int = -1) -> None:
        self.fail_at, self.nan_at = fail_at, nan_at
        self._seed = self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        # Without a seed the next episode follows from this one: also closed-form.
        self._seed = self._seed + 1 if seed is None else seed
        self._step = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        if self._step == self.fail_at:
            raise ValueError("the counter stopped")
        self._step += 1
        done = self._step >= 2 + self._seed % 3
        odd = self._seed % 2 == 1
        reward = float(self._step + 10 * int(action))
        info = {"last": self._step} if done else {}
        return self._observation(), reward, done and not odd, done and odd, info

    def _observation(self) -> Any:
        step = np.nan if self._step == self.nan_at else self._step
        return np.array([self._seed % 1000, step], np.float32)


class Observes(Counter):
    """Observes `value` after the second step of each episode, in a space without bounds."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, value: Any) -> None:
        super().__init__()
        self._value = value

    def _observation(self) -> Any:
        return self._value if self._step == 2 else super()._observation()


class Pays(Counter):
    """Its reward is `value` in the second step of each episode."""

    def __init__(self, value: Any, step: int = 2) -> None:
        super().__init__()
        self._value, self._paid_at = value, step

    def step(self, action: Any) -> Any:
        observation, reward, *further = super().step(action)
        return observation, self._value if self._step == self._paid_at else reward, *further


class ObservesDoubles(Observes):
    """The same in float64."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)


class ObservesBytes(Observes):
    """The same in int8, given as int64."""

    observation_space = spaces.Box(-128, 127, (2,), np.int8)

    def _observation(self) -> Any:
        return self._value if self._step == 2 else np.array([100, -1])


class ObservesNested(Observes):
    """The same in a Dict."""

    observation_space = spaces.Dict(  # type: ignore[assignment]
        {"x": Observes.observation_space, "n": spaces.Discrete(3)}
    )

    def _observation(self) -> Any:
        return self._value if self._step == 2 else {"x": np.zeros(2, np.float32), "n": 1}


class ObservesNestedBytes(Observes):
    """The same in a Tuple in a Dict, in int8 given as int64."""

    observation_space = spaces.Dict(  # type: ignore[assignment]
        {"y": spaces.Tuple([ObservesBytes.observation_space])}
    )

    def _observation(self) -> Any:
        return self._value if self._step == 2 else {"y": (np.array([100, -1]),)}


class NestedCounter(Counter):
    """The same in nested spaces."""

    observation_space = spaces.Dict(  # type: ignore[assignment]
        {
            "pair": Counter.observation_space,
            "odd": spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(2))),
        }
    )
    action_space = spaces.Dict(  # type: ignore[assignment]
        {"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (1,))}
    )

    def step(self, action: Any) -> Any:
        return super().step(action["a"])

    def _observation(self) -> Any:
        odd = self._seed % 2
        return {"pair": super()._observation(), "odd": (odd, np.array([odd, 1 - odd], np.int8))}


class ContinuousCounter(Counter):
    """Takes a Box, and tries to write to the action it is handed."""

    action_space = spaces.Box(-1, 1, (2,))  # type: ignore[assignment]

    def step(self, action: Any) -> Any:
        action[0] = 0.0
        return super().step(0)


class LeavesItsSpace(Counter):
    def _observation(self) -> Any:
        return np.array([0.0, 2000.0], np.float32)


class FailsAtReset(Counter):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise RuntimeError("no start")


class FailsInConstructor(Counter):
    def __init__(self) -> None:
        raise RuntimeError("no env")


class FailsElsewhere(FailsInConstructor):
    """Can be made in one process only."""

    def __init__(self, process_id: int) -> None:
        if os.getpid() != process_id:
            super().__init__()
        Counter.__init__(self)


class FailsOnce(Counter):
    """Raises in the step of this process before which `left` others were made; then no more."""

    left: ClassVar[int] = -1

    def step(self, action: Any) -> Any:
        FailsOnce.left -= 1
        if FailsOnce.left == -1:
            raise ValueError("once")
        return super().step(action)


class FailsBySeed(Counter):
    """Raises with every fourth seed, in the reset or in this step."""

    def __init__(self, in_step: int = -1) -> None:
        super().__init__()
        self._in_step = in_step

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        if self._in_step < 0:
            self._fail()
        return result

    def step(self, action: Any) -> Any:
        if self._step == self._in_step:
            self._fail()
        return super().step(action)

    def _fail(self) -> None:
        if self._seed % 4 == 1:
            raise ValueError(f"cannot run seed {self._seed}")


class ReusesItsArray(Counter):
    """Writes every observation into the same array."""

    def __init__(self) -> None:
        super().__init__()
        self._array = np.zeros(2, np.float32)

    def _observation(self) -> Any:
        self._array[:] = super()._observation()
        return self._array


class DiesInStep(Counter):
    def step(self, action: Any) -> Any:
        import os

        os._exit(3)


class NoTuple(Counter):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class NoInfo(Counter):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0], None


class AutonomousCounters(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A third-party vector env: ignores `reset_mask`, takes one int as its seed."""

    def __init__(
        self, num_envs: int, mode: Any = AutoresetMode.NEXT_STEP, make: Any = Counter
    ) -> None:
        self.inner = SyncVectorEnv([make] * num_envs, autoreset_mode=mode)
        self.num_envs = num_envs
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.single_observation_space = self.inner.single_observation_space
        self.single_action_space = self.inner.single_action_space
        self.observation_space, self.action_space = (
            self.inner.observation_space,
            self.inner.action_space,
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None and not isinstance(seed, int):
            raise TypeError("one int, please")
        return self.inner.reset(seed=seed)

    def step(self, actions: Any) -> Any:
        return self.inner.step(actions)


def autonomous(num_envs: int, mode: str = "NEXT_STEP") -> Any:
    return AutonomousCounters(num_envs, AutoresetMode[mode])


class PaysTexts(AutonomousCounters):
    """Its rewards are texts."""

    def step(self, actions: Any) -> Any:
        observations, _, *further = super().step(actions)
        return observations, ["1.0"] * self.num_envs, *further


class PaysAtReset(AutonomousCounters):
    """The steps that it spends on its own resets, which are not transitions, bring a reward."""

    done: Any = False

    def step(self, actions: Any) -> Any:
        resetting = self.done
        obs, rewards, terminateds, truncateds, infos = super().step(actions)
        self.done = terminateds | truncateds
        return obs, rewards + 100.0 * resetting, terminateds, truncateds, infos


def without_mode(num_envs: int) -> Any:
    env = AutonomousCounters(num_envs)
    env.metadata = {}
    return env


def gymnasium_sync(num_envs: int, mode: str, nested: bool = False) -> Any:
    make = NestedCounter if nested else Counter
    return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode[mode])


def gymnasium_async(num_envs: int, mode: str, shared_memory: bool = True) -> Any:
    return AsyncVectorEnv(
        [Counter] * num_envs, autoreset_mode=AutoresetMode[mode], shared_memory=shared_memory
    )


def three_sub_envs() -> Any:
    return SyncVectorEnv([Counter] * 3)


def told_its_place(context: Any, size: int = 1) -> Any:
    env = Counter()
    env.place = (context.worker_index, context.vector_index, context.num_workers, context.remote)
    env.size = size
    return env


def classical(config: Any) -> Any:
    env = Counter(fail_at=config["fail_at"])
    env.place = config.vector_index
    return env


class CountingEnv(gymnasium.Env):
    """Observation = [episode's seed mod 1000, step]; reward = step; ends after ``length`` steps."""

    observation_space = spaces.Box(0, 1e9, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length=3, truncates=False, random_length=False):
        self.length, self.truncates, self.random_length = length, truncates, random_length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.tag = seed % 1000
        self.t = 0
        if self.random_length:
            self.length = int(self.np_random.integers(1, 6))
        return np.array([self.tag, 0], np.float32), {}

    def step(self, action):
        self.t += 1
        over = self.t >= self.length
        obs = np.array([self.tag, self.t], np.float32)
        return obs, float(self.t), over and not self.truncates, over and self.truncates, {}


class AlwaysOne(Policy):
    """Knows nothing of torch, has no weights and takes action 1."""

    def compute_actions(self, obs_batch, state_batches=None, *, explore=True, noise=None):
        return np.ones(len(obs_batch), np.int64), [], {}


def counting_spec(
    num_envs=2,
    *,
    use="counting_envs:CountingEnv",
    policy=AlwaysOne,
    settings=None,
    more=None,
    **kwargs,
):
    """A runner of `CountingEnv` or another environment.

    Args:
        settings: of ``env_runners``.
        more: further arguments of `RunnerSpec`.
        kwargs: of the environment.
    """
    return RunnerSpec(
        EnvSpec(use=use, kwargs=kwargs),
        EnvRunnersConfig(num_envs_per_env_runner=num_envs, **(settings or {})),
        policy_factory=lambda observation_space, action_space, model: policy(
            observation_space, action_space
        ),
        **(more or {}),
    )


def collect(runner, lengths):
    return [runner.sample_fragment(SampleRequest(i, length)) for i, length in enumerate(lengths)]
