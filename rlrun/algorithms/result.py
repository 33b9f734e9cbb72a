"""The result of an iteration: one dict for the console, metrics.jsonl, `stop:` and callbacks.

Schema version 1. Every key is there from the first row on; a number that does not exist (no episode
has ended, no evaluation was due) is None.

    episodes_in_mean              episodes that episode_return_mean averages
    episode_return_mean_this_iter mean over the episodes that ended in this iteration alone
    *_s                           seconds; these and env_steps_per_s are the only keys in which two
                                  runs of one file with one seed may differ (`is_wall_clock`)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.config.schema import ReportConfig
from rlrun.sampling.episodes import EpisodeRecord
from rlrun.sampling.runner_messages import SampleReply

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm
    from rlrun.algorithms.multi_agent import MultiAgentPolicies

SCHEMA_VERSION = 1

Result = dict[str, Any]

PHASES = ("sample", "transfer", "learn", "sync", "evaluate", "checkpoint", "report")


def iteration_result(algorithm: Algorithm, new_steps: int, wall_s: float) -> Result:
    """What an iteration of so many env steps and seconds adds up to.

    The keys of what went on in it, `learners`, `evaluation` and `timers`, come behind these.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "training_iteration": algorithm.iteration,
        "env_steps": algorithm.env_steps,
        "agent_steps": algorithm.agent_steps,
        "env_steps_this_iter": new_steps,
        **algorithm.episode_statistics.end_iteration(),
        "env_steps_per_s": new_steps / wall_s,
        "time_s": algorithm.time_s,
        "weights_version": algorithm.weights_version,
        "env_runners": _env_runner_result(algorithm),
    }


def _env_runner_result(algorithm: Algorithm) -> Result:
    group, several = algorithm.env_runner_group, algorithm.multi_agent
    return {
        "healthy": group.num_healthy,
        "restarts": group.num_restarts,
        "in_flight": group.num_in_flight,
        **algorithm.runner_statistics.result(),
        **({} if several is None else several.end_iteration()),
    }


class EpisodeStatistics:
    """Statistics over the last finished episodes.

    Args:
        window: episodes in the means; if more end in one iteration, all of those count.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._returns: deque[float] = deque(maxlen=window)
        self._lengths: deque[int] = deque(maxlen=window)
        self._this_iteration: list[EpisodeRecord] = []
        self.total = 0

    def add(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Count finished episodes, in the order of their runners."""
        self._this_iteration.extend(episodes)

    def end_iteration(self) -> Result:
        """The episode keys of the iteration's result; the next one starts empty."""
        ended, self._this_iteration = self._this_iteration, []
        self.total += len(ended)
        self._returns.extend(episode.episode_return for episode in ended)
        self._lengths.extend(episode.length for episode in ended)
        new_returns = [episode.episode_return for episode in ended]
        returns: Sequence[float] = self._returns
        lengths: Sequence[int] = self._lengths
        if len(ended) > self._window:
            returns, lengths = new_returns, [episode.length for episode in ended]
        return {
            "episodes": self.total,
            "episodes_this_iter": len(ended),
            "episode_return_mean": _mean(returns),
            "episodes_in_mean": len(returns),
            "episode_return_mean_this_iter": _mean(new_returns),
            "episode_return_min": min(returns, default=None),
            "episode_return_max": max(returns, default=None),
            "episode_len_mean": _mean(lengths),
        }

    def get_state(self) -> dict[str, Any]:
        """The window and the count."""
        return {
            "returns": np.array(self._returns, dtype=np.float64),
            "lengths": np.array(self._lengths, dtype=np.int64),
            "total": self.total,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self._returns = deque((float(x) for x in state["returns"]), maxlen=self._window)
        self._lengths = deque((int(x) for x in state["lengths"]), maxlen=self._window)
        self.total = int(state["total"])


def evaluation_result(
    episodes: Sequence[EpisodeRecord] | None, several: MultiAgentPolicies | None = None
) -> Result:
    """What `evaluation` holds: statistics of these episodes; None everywhere if none were due.

    Args:
        several: the policies whose returns belong to it, where there are several.
    """
    returns = [episode.episode_return for episode in episodes or ()]
    return {
        "episodes": len(returns) if episodes is not None else None,
        "episode_return_mean": _mean(returns),
        "episode_return_std": float(np.std(returns)) if returns else None,
        "episode_return_min": min(returns, default=None),
        "episode_return_max": max(returns, default=None),
        "episode_len_mean": _mean([episode.length for episode in episodes or ()]),
        **({} if several is None else several.evaluation_result(episodes)),
    }


def minimums_met(report: ReportConfig, elapsed_s: float, sampled: int, trained: int) -> bool:
    """Whether an iteration has done as much as the report asks of one."""
    return (
        elapsed_s >= (report.min_time_s_per_iteration or 0)
        and sampled >= (report.min_sample_timesteps_per_iteration or 0)
        and trained >= (report.min_train_timesteps_per_iteration or 0)
    )


class PhaseTimers:
    """Adds up seconds by phase between two calls of `lap`.

    Phases do not nest. What no phase covers is `other_s`, so that the parts add up to the whole.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._lap_started = perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the ``with`` block towards a phase of `PHASES`."""
        started = perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += perf_counter() - started

    def restart(self) -> None:
        """Begin a lap now and forget what was counted."""
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._lap_started = perf_counter()

    def elapsed(self) -> float:
        """Seconds since the lap began."""
        return perf_counter() - self._lap_started

    def lap(self) -> tuple[dict[str, float], float]:
        """End the lap: seconds by phase as ``<phase>_s``, ``other_s`` included, and their sum."""
        now = perf_counter()
        wall = now - self._lap_started
        seconds = {f"{name}_s": value for name, value in self._seconds.items()}
        seconds["other_s"] = wall - sum(seconds.values())
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._lap_started = now
        return seconds, wall


class RunnerStatistics:
    """What env runners report besides episodes.

    Args:
        ema_coef: see `SamplerTimes`.
    """

    def __init__(self, ema_coef: float | None) -> None:
        self._times = SamplerTimes(ema_coef)
        self._running_episodes: dict[int, int] = {}  # by runner: env steps of the longest
        self._faulty_episodes: dict[int, int] = {}

    def add(self, reply: SampleReply) -> None:
        """Take in what came with one fragment."""
        self._times.add(reply)
        self._faulty_episodes[reply.runner_index] = reply.faulty_episodes
        self._running_episodes[reply.runner_index] = reply.longest_running_episode

    def result(self) -> Result:
        """Their part of `env_runners` in the result."""
        return {
            "longest_running_episode": max(self._running_episodes.values(), default=0),
            "faulty_episodes": sum(self._faulty_episodes.values()),
            **self._times.result(),
        }

    def get_state(self) -> dict[str, Any]:
        """The counts; milliseconds are those of one session."""
        return {
            "running_episodes": dict(self._running_episodes),
            "faulty_episodes": dict(self._faulty_episodes),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self._running_episodes = dict(state["running_episodes"])
        self._faulty_episodes = dict(state["faulty_episodes"])


class SamplerTimes:
    """Milliseconds of a vector step in the runners, by part.

    Args:
        ema_coef: weight of a new value in an exponential average; None averages since the start.
    """

    PARTS = ("policy", "env", "other")

    def __init__(self, ema_coef: float | None) -> None:
        self._ema_coef = ema_coef
        self._count = 0
        self._mean_ms = dict.fromkeys(self.PARTS, 0.0)

    def add(self, reply: SampleReply) -> None:
        """Take in one fragment's timings."""
        self._count += 1
        weight = 1.0 / self._count if self._ema_coef is None else self._ema_coef
        for part in self.PARTS:
            new = 1e3 * reply.timings_s[part] / max(reply.vector_steps, 1)
            self._mean_ms[part] += weight * (new - self._mean_ms[part])

    def result(self) -> Result:
        """``vector_step_<part>_ms``."""
        return {f"vector_step_{part}_ms": value for part, value in self._mean_ms.items()}


def is_wall_clock(address: str) -> bool:
    """Whether the number at ``a/b`` depends on the machine's speed rather than on the seed."""
    last = address.rpartition("/")[2]
    return last.endswith(("_s", "_ms")) or last == "in_flight"


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
