"""Episodes as they run, shown to callbacks in the process of their env runner.

Owns the live episodes of a runner's sub-environments and the order of the calls. A runner without
such callbacks has none of this and pays nothing for it. Must not know how environments are stepped:
it receives recorded steps, and sees by the episodes' ids which have ended and begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlrun.checkpoint.state_codec import StateError, encode
from rlrun.data.column_data import map_leaves
from rlrun.data.sample_batch import DEFAULT_POLICY_ID
from rlrun.envs.recorded_step import RecordedStep
from rlrun.sampling.episodes import EpisodeRecord, Episodes
from rlrun.sampling.postprocessing import ONLY_AGENT

METHODS = ("on_episode_created", "on_episode_start", "on_episode_step")
"""Methods of callbacks that are called here."""
_OF_CALLBACKS = ("user_data", "custom_metrics", "hist_data")


@dataclass
class LiveEpisode:
    """An episode that runs.

    What callbacks keep in `user_data`, `custom_metrics` and `hist_data` lasts as long as the
    episode, over fragments, checkpoints and restarts of its env runner: numbers, text, lists,
    dicts, sets and arrays do, and anything else is an error at the end of the fragment.
    """

    id: int
    env_index: int
    length: int = 0
    """Env steps so far."""
    returns: dict[Any, float] = field(default_factory=dict)
    """Rewards so far, by agent."""
    terminated: bool = False
    truncated: bool = False
    """Whether this was the last step; one of them, or none."""
    policies: dict[Any, str] = field(default_factory=dict)
    """Policy ids of the agents that have acted."""
    observations: dict[Any, Any] = field(default_factory=dict)
    """Raw observations that this step returned, by agent; only of agents that had acted."""
    actions: dict[Any, Any] = field(default_factory=dict)
    """Their last actions, as the environment received them."""
    rewards: dict[Any, float] = field(default_factory=dict)
    """Their rewards since then."""
    infos: dict[Any, Mapping[str, Any]] = field(default_factory=dict)
    """Their infos."""
    user_data: dict[str, Any] = field(default_factory=dict)
    """For the callback's own use."""
    custom_metrics: dict[str, float] = field(default_factory=dict)
    """Numbers that the result has the mean, minimum and maximum of, over episodes."""
    hist_data: dict[str, list[float]] = field(default_factory=dict)
    """Numbers that `on_episode_end` receives as lists."""

    @property
    def episode_return(self) -> float:
        """Rewards of all agents so far."""
        return sum(self.returns.values())

    def get_state(self) -> dict[str, Any]:
        """What lasts."""
        kept = ("id", "length", *_OF_CALLBACKS)
        return {
            **{name: deepcopy(getattr(self, name)) for name in kept},
            "returns": [list(pair) for pair in self.returns.items()],
            "policies": [list(pair) for pair in self.policies.items()],
        }


class EpisodeCallbacks:
    """Shows the episodes of one runner to callbacks; a `Recorder`.

    Args:
        callbacks: those that define each of `METHODS`, by its name.
        runner: the env runner, an argument of each call.
    """

    def __init__(self, callbacks: Mapping[str, Sequence[Any]], runner: Any) -> None:
        self._callbacks, self._runner = callbacks, runner
        self._live: dict[int, LiveEpisode] = {}  # by sub-environment

    def __call__(self, shown: RecordedStep) -> None:
        """A step has been made; episodes that end with it are still the live ones."""
        by_id = {}
        for i in shown.dropped:
            self._live.pop(i, None)
        for i, number in enumerate(shown.episodes):
            episode = self._live.get(i)
            if number is None or episode is None:
                continue
            by_id[episode.id] = episode
            for latest in (episode.observations, episode.actions, episode.rewards, episode.infos):
                latest.clear()
            episode.length += 1
            episode.terminated = bool(shown.terminateds[i])
            episode.truncated = bool(shown.truncateds[i])
            if shown.obs is not None:
                seen, action = _row(shown.next_obs, i), _row(shown.actions, i)
                info = (shown.infos or {}).get(i, {})
                self._take(episode, ONLY_AGENT, seen, action, shown.rewards[i], info)
                episode.policies[ONLY_AGENT] = DEFAULT_POLICY_ID
        for done in shown.agents:
            episode = by_id.get(done.episode)
            if episode is not None:
                episode.policies[done.agent] = done.policy_id
                seen, info = done.next_obs, done.info
                self._take(episode, done.agent, seen, done.action, done.reward, info)
        for episode in by_id.values():
            self._call("on_episode_step", episode)

    @staticmethod
    def _take(
        episode: LiveEpisode,
        agent: Any,
        obs: Any,
        action: Any,
        reward: float,
        info: Mapping[str, Any],
    ) -> None:
        episode.observations[agent], episode.actions[agent] = obs, action
        episode.rewards[agent], episode.infos[agent] = float(reward), info
        episode.returns[agent] = episode.returns.get(agent, 0.0) + float(reward)

    def stepping(self, step: Callable[[], None], episodes: Episodes) -> Callable[[], None]:
        """A step of the sampling loop, after which episodes that have ended make room."""
        self.turn(episodes)

        def watched() -> None:
            step()
            self.turn(episodes)

        return watched

    def turn(self, episodes: Episodes) -> None:
        """Let go of episodes that no longer run, and begin those that do."""
        running, asked_for = episodes.ids.tolist(), episodes.plan.num_episodes
        if all(i in self._live and self._live[i].id == id_ for i, id_ in enumerate(running)):
            return
        records = {record.episode_id: record for record in episodes.records}
        for i, id_ in enumerate(running):
            old = self._live.get(i)
            if old is not None and old.id == id_:
                continue
            if old is not None:
                self._file(old, records.get(old.id))
                del self._live[i]
            if episodes.number[i] >= asked_for:
                continue  # of an evaluation, whose other episodes still run
            self._live[i] = new = LiveEpisode(id_, i)
            self._call("on_episode_created", new)
            self._call("on_episode_start", new)

    @staticmethod
    def _file(episode: LiveEpisode, record: EpisodeRecord | None) -> None:
        """Give the episode's record what callbacks have found; there is none if it was dropped."""
        if record is not None:
            record.custom_metrics.update(episode.custom_metrics)
            record.hist_data.update(episode.hist_data)

    def _call(self, method: str, episode: LiveEpisode) -> None:
        for callbacks in self._callbacks.get(method, ()):
            getattr(callbacks, method)(self._runner, episode)

    def require_lasting(self) -> None:
        """Raise TypeError if callbacks keep in an episode what no checkpoint can hold."""
        for episode in self._live.values():
            try:
                encode({name: getattr(episode, name) for name in _OF_CALLBACKS})
            except StateError as error:
                every = [each for found in self._callbacks.values() for each in found]
                names = " or ".join(dict.fromkeys(type(each).__name__ for each in every))
                raise TypeError(f"what {names} keeps in an episode: {error}") from None

    def get_state(self) -> list[dict[str, Any]]:
        """The live episodes."""
        return [episode.get_state() for _, episode in sorted(self._live.items())]

    def set_state(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Restore a state from `get_state`."""
        self._live = {}
        for i, one in enumerate(state):
            kept: dict[str, Any] = deepcopy(dict(one))
            for name in ("returns", "policies"):
                kept[name] = dict(kept[name])
            self._live[i] = LiveEpisode(env_index=i, **kept)


def _row(batch: Any, i: int) -> Any:
    """A copy of one row of an array, or of nested arrays: the next step may overwrite it."""
    return map_leaves(lambda leaf: np.array(leaf[i]), batch)
