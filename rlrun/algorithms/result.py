"""The result of an iteration: one dict for the console, metrics.jsonl, `stop:` and callbacks.

Schema version 1. Every key is there from the first row on; a number that does not exist (no episode
has ended, no evaluation was due) is None.

    episodes_in_mean              episodes that episode_return_mean averages
    episode_return_mean_this_iter mean over the episodes that ended in this iteration alone
    *_s                           seconds; these and env_steps_per_s are the only keys in which two
                                  runs of one file with one seed may differ (`is_wall_clock`)
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from rlrun.sampling.episodes import EpisodeRecord
from rlrun.sampling.runner_messages import SampleReply

_log = logging.getLogger(__name__)

SCHEMA_VERSION = 1

Result = dict[str, Any]
AgentReturns = tuple[tuple[str, str, float], ...]
"""Agent, policy and return, for each agent of an episode."""

AgentMetrics = tuple[tuple[str, str, float], ...]
"""Policy, name and number, for each number of an agent's last info."""

IS_SUCCESS = "is_success"
"""Gymnasium's name, in the last info, for whether an episode's goal was reached."""

PHASES = ("sample", "transfer", "learn", "sync", "evaluate", "checkpoint", "report")


class _Ended(NamedTuple):
    """The parts of a finished episode that statistics need."""

    episode_return: float
    length: int
    agents: AgentReturns
    custom: Mapping[str, float]
    agent_metrics: AgentMetrics


class EpisodeStatistics:
    """Statistics over the last finished episodes.

    Args:
        window: episodes in the means; if more end in one iteration, all of them count.
        names: custom metrics to report from the start; others are once an episode has them.
        agent_names: the same for metrics of agents.
    """

    def __init__(
        self, window: int, names: Iterable[str] = (), agent_names: Iterable[str] = ()
    ) -> None:
        self._names, self._agent_names = dict.fromkeys(names), dict.fromkeys(agent_names)
        self._unseen = {*self._names, *self._agent_names}
        self._looked_at = 0  # episodes, for those
        self._size = window
        self._window: deque[_Ended] = deque(maxlen=window)
        self._this_iteration: list[_Ended] = []
        self._counted: list[_Ended] = []  # at the end of the last iteration
        self.total = 0

    def add(self, episodes: Iterable[EpisodeRecord]) -> None:
        """Count finished episodes, in the order of their runners."""
        for e in episodes:
            custom, metrics = {}, []
            for name, value in e.custom_metrics.items():
                custom[name], self._names[name] = _number(name, value), None
            for agent, policy, _ in e.agents if e.agent_metrics else ():
                for name, number in e.agent_metrics.get(agent, {}).items():
                    metrics.append((policy, name, number))
                    self._agent_names[name] = None
            ended = _Ended(e.episode_return, e.length, e.agents, custom, tuple(metrics))
            self._this_iteration.append(ended)

    @property
    def largest_return(self) -> float:
        """The largest absolute return of the last episodes; 0 without any."""
        ended = (*self._window, *self._this_iteration)
        return max((abs(episode.episode_return) for episode in ended), default=0.0)

    def end_iteration(self) -> Result:
        """The episode keys of the iteration's result; begins the next iteration."""
        ended, self._this_iteration = self._this_iteration, []
        self.total += len(ended)
        self._window.extend(ended)
        if self._unseen:
            self._look_for_names(ended)
        self._counted = ended if len(ended) > len(self._window) else list(self._window)
        returns = [episode.episode_return for episode in self._counted]
        return {
            "episodes": self.total,
            "episodes_this_iter": len(ended),
            "episode_return_mean": _mean(returns),
            "episodes_in_mean": len(returns),
            "episode_return_mean_this_iter": _mean([episode.episode_return for episode in ended]),
            "episode_return_min": min(returns, default=None),
            "episode_return_max": max(returns, default=None),
            "episode_len_mean": _mean([episode.length for episode in self._counted]),
        }

    def _look_for_names(self, ended: Sequence[_Ended]) -> None:
        """Warn of a metric to report that a whole window of episodes has lacked."""
        for episode in ended:
            self._unseen -= episode.custom.keys() | {row[1] for row in episode.agent_metrics}
        self._looked_at += len(ended)
        if self._looked_at >= self._size:
            for name in sorted(self._unseen):
                message = "report.info_keys: none of the last infos of %d episodes has %r"
                _log.warning(message, self._looked_at, name)
            self._unseen.clear()

    def custom_metrics(self, policies: Sequence[str] = ()) -> Result:
        """``<name>_mean``, ``_min`` and ``_max`` over the averaged episodes that have the metric.

        For metrics of agents ``policy_<name>_mean``, ..., by policy.
        """
        result: Result = {}
        for name in filter(IS_SUCCESS.__ne__, self._names):
            values = self._finite(name)
            result[f"{name}_mean"] = _mean(values)
            result[f"{name}_min"] = min(values, default=None)
            result[f"{name}_max"] = max(values, default=None)
        for name in filter(IS_SUCCESS.__ne__, self._agent_names):
            result |= _policy_statistics(name, self._by_policy(name, policies))
        return result

    def success_rates(self, policies: Sequence[str] = ()) -> Result:
        """``success_rate``: the share of averaged episodes that succeeded, of those with a result.

        For agents ``policy_success_rate``, by policy. Empty before any episode has had it.
        """
        result: Result = {}
        if IS_SUCCESS in self._names:
            result["success_rate"] = _mean(self._finite(IS_SUCCESS))
        if IS_SUCCESS in self._agent_names:
            of_policies = self._by_policy(IS_SUCCESS, policies)
            rates = {policy: _mean(values) for policy, values in of_policies.items()}
            result["policy_success_rate"] = rates
        return result

    def _finite(self, name: str) -> list[float]:
        values = (episode.custom.get(name, math.nan) for episode in self._counted)
        return [value for value in values if math.isfinite(value)]

    def _by_policy(self, name: str, policies: Sequence[str]) -> dict[str, list[float]]:
        """The finite values of a metric of agents, by policy."""
        found: dict[str, list[float]] = {policy: [] for policy in policies}
        for episode in self._counted:
            for policy, each, number in episode.agent_metrics:
                if each == name and math.isfinite(number):
                    found.setdefault(policy, []).append(number)
        return found

    def agent_returns(self, policies: Sequence[str], agents: Sequence[str]) -> Result:
        """Agents' returns: ``policy_return_mean``, ``_min``, ``_max`` and ``agent_return_mean``.

        Args:
            policies, agents: always named, with None where there is no return. If there are no
                agents, there are no such keys: a single agent's return is the episode's.
        """
        if not agents:
            return {}
        by_policy: dict[str, list[float]] = {policy: [] for policy in policies}
        by_agent: dict[str, list[float]] = {agent: [] for agent in agents}
        for episode in self._counted:
            for agent, policy, value in episode.agents:
                by_policy.setdefault(policy, []).append(value)
                by_agent.setdefault(agent, []).append(value)
        return {
            **_policy_statistics("return", by_policy),
            "agent_return_mean": {name: _mean(values) for name, values in by_agent.items()},
        }

    def hist_stats(self) -> Result:
        """Returns and lengths of the episodes that were averaged last, in order."""
        return {
            "episode_return": [episode.episode_return for episode in self._counted],
            "episode_len": [episode.length for episode in self._counted],
        }

    def get_state(self) -> dict[str, Any]:
        """The window and the count."""
        agents = [(i, *row) for i, episode in enumerate(self._window) for row in episode.agents]
        metrics = [(i, *row) for i, e in enumerate(self._window) for row in e.agent_metrics]
        return {
            "returns": np.array([e.episode_return for e in self._window], np.float64),
            "lengths": np.array([e.length for e in self._window], np.int64),
            "agents": {
                "episode": np.array([row[0] for row in agents], np.int64),
                "agent": [row[1] for row in agents],
                "policy": [row[2] for row in agents],
                "return": np.array([row[3] for row in agents], np.float64),
            },
            "total": self.total,
            "custom": {
                name: np.array([e.custom.get(name, np.nan) for e in self._window], np.float64)
                for name in self._names
            },
            "agent_metrics": {
                "episode": np.array([row[0] for row in metrics], np.int64),
                "policy": [row[1] for row in metrics],
                "name": [row[2] for row in metrics],
                "number": np.array([row[3] for row in metrics], np.float64),
            },
            "agent_names": list(self._agent_names),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        agents = _by_episode(state["agents"], "agent", "policy", "return")
        metrics = _by_episode(state["agent_metrics"], "policy", "name", "number")
        self._window.clear()
        for i, (value, length) in enumerate(zip(state["returns"], state["lengths"], strict=True)):
            custom = {name: float(row[i]) for name, row in state["custom"].items()}
            of_agents = tuple(agents[i]), custom, tuple(metrics[i])
            self._window.append(_Ended(float(value), int(length), *of_agents))
        self._names |= dict.fromkeys(state["custom"])
        names = state.get("agent_names", state["agent_metrics"]["name"])  # of older checkpoints
        self._agent_names |= dict.fromkeys(map(str, names))
        self._this_iteration = []  # of one that failed
        self.total = int(state["total"])


def evaluation_result(
    episodes: Sequence[EpisodeRecord] | None,
    policies: Sequence[str] = (),
    agents: Sequence[str] = (),
    statistics: EpisodeStatistics | None = None,
) -> Result:
    """The `evaluation` part of a result: statistics of these episodes; all None if not due.

    Args:
        policies, agents: as of `EpisodeStatistics.agent_returns`.
        statistics: of the earlier evaluations, with a window of 0; their metrics stay in the
            result. None: there were none.
    """
    statistics = EpisodeStatistics(window=0) if statistics is None else statistics
    statistics.add(episodes or ())
    result = statistics.end_iteration()
    returns = [episode.episode_return for episode in episodes or ()]
    custom = statistics.custom_metrics(policies)
    return {
        "episodes": None if episodes is None else len(episodes),
        "episode_return_mean": result["episode_return_mean"],
        "episode_return_std": float(np.std(returns)) if returns else None,
        "episode_return_min": result["episode_return_min"],
        "episode_return_max": result["episode_return_max"],
        "episode_len_mean": result["episode_len_mean"],
        **statistics.agent_returns(policies, agents),
        **statistics.success_rates(policies),
        **({"custom_metrics": custom} if custom else {}),
    }


def _by_episode(
    columns: Mapping[str, Sequence[Any]], *names: str
) -> dict[int, list[tuple[str, str, float]]]:
    """Rows of two strings and a number from these columns, by episode."""
    found: dict[int, list[tuple[str, str, float]]] = defaultdict(list)
    for i, first, second, number in zip(
        columns["episode"], *(columns[name] for name in names), strict=True
    ):
        found[int(i)].append((str(first), str(second), float(number)))
    return found


def _policy_statistics(name: str, by_policy: Mapping[str, Sequence[float]]) -> Result:
    """``policy_<name>_mean``, ``_min`` and ``_max``, each by policy, or None."""
    return {
        f"policy_{name}_mean": {key: _mean(values) for key, values in by_policy.items()},
        f"policy_{name}_min": {key: min(v, default=None) for key, v in by_policy.items()},
        f"policy_{name}_max": {key: max(v, default=None) for key, v in by_policy.items()},
    }


class Phase:
    """Adds up the seconds of ``with`` blocks, which do not nest."""

    def __init__(self) -> None:
        self.seconds = self._started = 0.0

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._started


class PhaseTimers:
    """Adds up seconds by phase between two calls of `lap`.

    Phases do not nest. `other_s` is the rest, so that the parts add up to the whole.

    Attributes:
        phase: ``with timers.phase(name):`` counts the block towards a phase of `PHASES`.
    """

    def __init__(self) -> None:
        self._phases = {name: Phase() for name in PHASES}
        self.phase = self._phases.__getitem__
        self._lap_started = perf_counter()

    def elapsed(self) -> float:
        """Seconds since the lap began."""
        return perf_counter() - self._lap_started

    def lap(self) -> tuple[dict[str, float], float]:
        """End the lap: seconds by phase as ``<phase>_s``, ``other_s`` included, and their sum."""
        now = perf_counter()
        wall = now - self._lap_started
        seconds = {f"{name}_s": phase.seconds for name, phase in self._phases.items()}
        seconds["other_s"] = wall - sum(seconds.values())
        for phase in self._phases.values():
            phase.seconds = 0.0
        self._lap_started = now
        return seconds, wall


class RunnerStatistics:
    """Statistics that env runners report besides episodes.

    Args:
        ema_coef: weight of a new value in the exponential averages of milliseconds for each part
            of a vector step; None averages since the start.
    """

    PARTS = ("policy", "env", "other")

    def __init__(self, ema_coef: float | None) -> None:
        self._ema_coef, self._count = ema_coef, 0
        self._mean_ms = dict.fromkeys(self.PARTS, 0.0)
        self._running_episodes: dict[int, int] = {}  # by runner: env steps of the longest
        self._faulty_episodes: dict[int, int] = {}

    def add(self, reply: SampleReply) -> None:
        """Count one fragment."""
        self._faulty_episodes[reply.runner_index] = reply.faulty_episodes
        self._running_episodes[reply.runner_index] = reply.longest_running_episode
        self._count += 1
        weight = 1.0 / self._count if self._ema_coef is None else self._ema_coef
        for part in self.PARTS:
            new = 1e3 * reply.timings_s[part] / max(reply.vector_steps, 1)
            self._mean_ms[part] += weight * (new - self._mean_ms[part])

    def result(self, indices: Sequence[int]) -> Result:
        """Their part of `env_runners` in the result.

        Args:
            indices: of the present runners. Episodes of others are paused until a runner of that
                index comes back.
        """
        running = [self._running_episodes.get(index, 0) for index in indices]
        return {
            "longest_running_episode": max(running, default=0),
            "faulty_episodes": sum(self._faulty_episodes.values()),
            **{f"vector_step_{part}_ms": value for part, value in self._mean_ms.items()},
        }

    def get_state(self) -> dict[str, Any]:
        """The counts; milliseconds are of one session."""
        return {
            "running_episodes": dict(self._running_episodes),
            "faulty_episodes": dict(self._faulty_episodes),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        self._running_episodes = dict(state["running_episodes"])
        self._faulty_episodes = dict(state["faulty_episodes"])


def require_counters(result: Result, iteration: int) -> None:
    """Raise ValueError unless callbacks have left what rows and checkpoints are found by."""
    is_whole = isinstance(result.get("env_steps"), int | np.integer)
    if result.get("training_iteration") != iteration or not is_whole:
        message = "on_train_result of a callback must leave training_iteration as it is in the "
        message += "result, and a whole number in env_steps"
        raise ValueError(message)


def is_wall_clock(address: str) -> bool:
    """Whether the number at ``a/b`` depends on the machine's speed, not only on the seed."""
    last = address.rpartition("/")[2]
    return last.endswith(("_s", "_ms")) or last == "in_flight"


def _number(name: str, value: SupportsFloat | str) -> float:
    """A custom metric of an episode; raises TypeError if it is not a number."""
    if isinstance(value, SupportsFloat):
        return float(value)
    raise TypeError(f"a callback's episode.custom_metrics[{name!r}] is not a number: {value!r}")


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
