"""Playing exactly N episodes with several agents; the twin of `evaluation` for one agent.

Episode k belongs to lane k mod B, and all its random numbers follow from its seed, so that neither
the number of lanes nor what was played before changes what it is. Connectors are frozen.
"""

from __future__ import annotations

import numpy as np

from rlrun.envs.errors import EnvError
from rlrun.sampling.agent_play import Lane
from rlrun.sampling.agent_watch import AgentWatch
from rlrun.sampling.episodes import EpisodeRecord
from rlrun.sampling.multi_agent_env_runner import MultiAgentEnvRunner
from rlrun.sampling.played_step import PlayedStep, Recorder
from rlrun.sampling.seeding import Role, episode_seed

_MOST_FAILURES = 100  # of environments that are built again, before an evaluation gives up
_STEPS_KEPT = 256  # steps of the log after which what views do not need is dropped


class MultiAgentPlay:
    """One evaluation; see `play_episodes`."""

    def __init__(
        self,
        runner: MultiAgentEnvRunner,
        num_episodes: int,
        seed: int,
        explore: bool,
        recorder: Recorder | None,
    ) -> None:
        self._runner, self._num_episodes = runner, num_episodes
        self._seed, self._recorder = seed, recorder
        self._actors = {name: actor.for_play(explore) for name, actor in runner.actors.items()}
        self._loop = runner.make_loop(
            on_end=self._end, begin=self._begin, actors=self._actors, soft_horizon=False
        )
        self._watch = AgentWatch()
        if recorder is not None:
            for actor in self._actors.values():
                actor.watch = self._watch
        self._next = list(range(runner.num_lanes))  # the episode that each lane plays next
        self._playing: list[Lane] = []
        self._ended: dict[int, bool] = {}  # lanes whose episode has just ended -> by itself
        self._records: dict[int, EpisodeRecord] = {}
        self._failures = 0

    def run(self) -> list[EpisodeRecord]:
        """The finished episodes, in their order; all N unless the recorder ended the play."""
        loop = self._loop
        for lane in loop.lanes:
            loop.start(lane)
        loop.hear()
        steps = 0
        while len(self._records) < self._num_episodes:
            lanes, self._ended = list(self._playing), {}
            episodes = [lane.episode_id for lane in lanes]
            returns = [lane.total for lane in lanes]
            loop.step(lanes)
            for lane in loop.failed:
                self._play_again(lane)
            steps += 1
            if steps % _STEPS_KEPT == 0:
                for actor in self._actors.values():
                    actor.forget()
            if self._recorder is not None and self._show(lanes, episodes, returns):
                break
        return [self._records[k] for k in sorted(self._records)]

    def _begin(self, lane: Lane) -> bool:
        k = self._next[lane.index]
        if k >= self._num_episodes:
            return False
        self._next[lane.index] += self._runner.num_lanes
        lane.seed = lane.reset_seed = episode_seed(self._seed, Role.EVALUATION, 0, 0, k)
        lane.episode_id = k
        self._playing.append(lane)
        self._playing.sort(key=lambda one: one.index)
        return True

    def _end(self, lane: Lane) -> None:
        self._records[lane.episode_id] = lane.record()
        self._ended[lane.index] = lane.terminated
        self._playing.remove(lane)

    def _play_again(self, lane: Lane) -> None:
        """Start the episode of an environment that raised, and was built again, once more."""
        self._failures += 1
        if self._failures > _MOST_FAILURES:
            reason = f"the environment failed {self._failures} times in one evaluation"
            raise EnvError(self._runner.spec.env.use, "step", reason, lane=lane.index)
        self._next[lane.index] = lane.episode_id
        self._playing.remove(lane)
        self._loop.give_up(lane)
        self._loop.hear()

    def _show(self, lanes: list[Lane], episodes: list[int], returns: list[float]) -> bool:
        """Let the recorder see the step; whether it ends the play."""
        assert self._recorder is not None
        playing: list[int | None] = [None] * self._runner.num_lanes
        rewards = np.zeros(len(playing))
        flags = np.zeros((2, len(playing)), np.bool_)
        for lane, episode, before in zip(lanes, episodes, returns, strict=True):
            playing[lane.index] = episode
            ended = lane.index in self._ended
            after = self._records[episode].episode_return if ended else lane.total
            rewards[lane.index] = after - before
            if ended:
                flags[0 if self._ended[lane.index] else 1, lane.index] = True
        agents = self._watch.take()
        step = PlayedStep(None, None, None, rewards, flags[0], flags[1], playing, agents)
        return bool(self._recorder(step))
