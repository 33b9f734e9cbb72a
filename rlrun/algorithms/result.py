"""The result of an iteration: one dict for the console, metrics.jsonl, `stop:` and callbacks.

Schema version 1. Every key is there from the first row on; a number that does not exist (no episode
has ended, no evaluation was due) is None.

    episodes_in_mean              episodes that episode_return_mean averages
    episode_return_mean_this_iter mean over the episodes that ended in this iteration alone
    *_s                           seconds; these and env_steps_per_s are the only keys in which two
                                  runs of one file with one seed may differ (`is_wall_clock`)
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from rlrun.sampling.episodes import EpisodeRecord
from rlrun.sampling.runner_messages import SampleReply

SCHEMA_VERSION = 1

Result = dict[str, Any]
AgentReturns = tuple[tuple[str, str, float], ...]
"""Agent, policy and return, for each agent of an episode."""

PHASES = ("sample", "transfer", "learn", "sync", "evaluate", "checkpoint", "report")


class EpisodeStatistics:
    """Statistics over the last finished episodes.

    Args:
        window: episodes in the means; if more end in one iteration, all of those count.
    """

    def __init__(self, window: int) -> None:
        self._returns: deque[float] = deque(maxlen=window)
        self._lengths: deque[int] = deque(maxlen=window)
        self._agents: deque[AgentReturns] = deque(maxlen=window)
        self._this_iteration: list[EpisodeRecord] = []
        self._last_iteration: list[EpisodeRecord] = []
        self.total = 0

    def add(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Count finished episodes, in the order of their runners."""
        self._this_iteration.extend(episodes)

    def end_iteration(self) -> Result:
        """The episode keys of the iteration's result; the next one starts empty."""
        ended, self._this_iteration = self._this_iteration, []
        self._last_iteration = ended
        self.total += len(ended)
        new_returns = [episode.episode_return for episode in ended]
        self._returns.extend(new_returns)
        self._lengths.extend(episode.length for episode in ended)
        self._agents.extend(episode.agents for episode in ended)
        returns: Sequence[float] = self._returns
        lengths: Sequence[int] = self._lengths
        if self._more_than_the_window:
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

    @property
    def _more_than_the_window(self) -> bool:
        return len(self._last_iteration) > len(self._returns)

    def agent_returns(self, policies: Sequence[str], agents: Sequence[str]) -> Result:
        """`agent_return_means` of the episodes that the last `end_iteration` averaged."""
        counted: Sequence[AgentReturns] = self._agents
        if self._more_than_the_window:
            counted = [episode.agents for episode in self._last_iteration]
        return agent_return_means(counted, policies, agents)

    def get_state(self) -> dict[str, Any]:
        """The window and the count."""
        rows = [(i, *agent) for i, agents in enumerate(self._agents) for agent in agents]
        return {
            "returns": np.array(self._returns, dtype=np.float64),
            "lengths": np.array(self._lengths, dtype=np.int64),
            "agents": {
                "episode": np.array([row[0] for row in rows], np.int64),
                "agent": [row[1] for row in rows],
                "policy": [row[2] for row in rows],
                "return": np.array([row[3] for row in rows], np.float64),
            },
            "total": self.total,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        window, table = self._returns.maxlen, state["agents"]
        self._returns = deque((float(x) for x in state["returns"]), window)
        self._lengths = deque((int(x) for x in state["lengths"]), window)
        agents: dict[int, list[tuple[str, str, float]]] = defaultdict(list)
        columns = (table[name] for name in ("episode", "agent", "policy", "return"))
        for episode, agent, policy, value in zip(*columns, strict=True):
            agents[int(episode)].append((str(agent), str(policy), float(value)))
        self._agents = deque((tuple(agents[i]) for i in range(len(state["returns"]))), window)
        self.total = int(state["total"])


def evaluation_result(
    episodes: Sequence[EpisodeRecord] | None,
    policies: Sequence[str] = (),
    agents: Sequence[str] = (),
) -> Result:
    """What `evaluation` holds: statistics of these episodes; None everywhere if none were due.

    Args:
        policies, agents: as of `agent_return_means`.
    """
    played = episodes or ()
    returns = [episode.episode_return for episode in played]
    return {
        "episodes": len(returns) if episodes is not None else None,
        "episode_return_mean": _mean(returns),
        "episode_return_std": float(np.std(returns)) if returns else None,
        "episode_return_min": min(returns, default=None),
        "episode_return_max": max(returns, default=None),
        "episode_len_mean": _mean([episode.length for episode in played]),
        **agent_return_means([episode.agents for episode in played], policies, agents),
    }


def agent_return_means(
    episodes: Sequence[AgentReturns], policies: Sequence[str], agents: Sequence[str]
) -> Result:
    """``policy_return_mean`` and ``agent_return_mean``: an agent's return in an episode, averaged.

    Args:
        policies, agents: always named, with None where nothing is known. Without named agents the
            environment has a single one, whose return is the episode's: there are no such keys.
    """
    if not agents:
        return {}
    by_policy: dict[str, list[float]] = {policy: [] for policy in policies}
    by_agent: dict[str, list[float]] = {agent: [] for agent in agents}
    for returns in episodes:
        for agent, policy, value in returns:
            by_policy.setdefault(policy, []).append(value)
            by_agent.setdefault(agent, []).append(value)
    return {
        "policy_return_mean": {name: _mean(values) for name, values in by_policy.items()},
        "agent_return_mean": {name: _mean(values) for name, values in by_agent.items()},
    }


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
