"""Playing exactly N episodes, for evaluation and rollouts.

Episode k is reset with a seed of its own and belongs to lane k mod B from the start, so that short
episodes cannot push long ones out of the mean, and so that neither the number of lanes nor what was
played before changes what it is. Connectors are frozen: nothing here moves training.

    B  lanes of the runner
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlrun.envs.episode_vector_env import LaneInfos
from rlrun.envs.errors import EnvError
from rlrun.envs.vector_env import take_lanes
from rlrun.sampling.action_noise import ActionNoise
from rlrun.sampling.episodes import EpisodeRecord
from rlrun.sampling.multi_agent_env_runner import MultiAgentEnvRunner
from rlrun.sampling.multi_agent_evaluation import MultiAgentPlay
from rlrun.sampling.played_step import PlayedStep, Recorder
from rlrun.sampling.policy_inputs import PlayedInputs
from rlrun.sampling.sample_collector import step_columns
from rlrun.sampling.seeding import Role, episode_noise, episode_seed

if TYPE_CHECKING:
    from rlrun.sampling.env_runner import EnvRunner

Array = NDArray[Any]

_MOST_FAILURES = 100  # of environments that are built again, before an evaluation gives up


def play_episodes(
    runner: EnvRunner | MultiAgentEnvRunner,
    *,
    num_episodes: int,
    seed: int,
    explore: bool = False,
    recorder: Recorder | None = None,
) -> list[EpisodeRecord]:
    """Play episodes 0..N-1 of ``seed`` with the runner's present weights.

    Returns:
        The finished episodes, in their order; all N unless the recorder ended the play.
    """
    if isinstance(runner, MultiAgentEnvRunner):
        return MultiAgentPlay(runner, num_episodes, seed, explore, recorder).run()
    return _Play(runner, num_episodes, seed, explore, recorder).run()


class _Play:
    def __init__(
        self,
        runner: EnvRunner,
        num_episodes: int,
        seed: int,
        explore: bool,
        recorder: Recorder | None,
    ) -> None:
        self._runner, self._seed, self._recorder = runner, seed, recorder
        self._explore = explore
        self._num_episodes = num_episodes
        lanes = runner.num_lanes
        self._episode = list(range(lanes))  # also counts on in lanes that have played all theirs
        self._failures = 0
        self._returns = np.zeros(lanes)
        self._lengths = np.zeros(lanes, dtype=np.int64)
        self._inputs = PlayedInputs(runner.policy, lanes)
        self._noise = ActionNoise(runner.policy)
        self._noise.resize(lanes)
        for lane in range(lanes):
            self._begin_noise(lane)

    def run(self) -> list[EpisodeRecord]:
        runner, envs = self._runner, self._runner.envs
        records: dict[int, EpisodeRecord] = {}
        raw = envs.reset(self._seeds())
        lanes = np.arange(runner.num_lanes)
        obs = np.array(runner.observations.first(raw, lanes, update=False))
        while len(records) < self._num_episodes:
            noise = self._noise.next(lanes) if self._explore else None
            actions = self._act(obs, noise)
            env_actions = runner.actions(actions)
            raw_before = _copied(raw) if self._recorder is not None else None
            raw, rewards, terminateds, truncateds, infos = envs.step(env_actions)
            counted = np.ones(len(obs), np.bool_) if envs.valid is None else envs.valid
            self._returns += rewards * counted
            self._lengths += counted
            if runner.horizon is not None:
                terminateds, truncateds = runner.horizon.flags(
                    self._lengths, terminateds, truncateds, envs.valid
                )
                truncateds = truncateds | runner.horizon.passed  # nothing goes on here
            if runner.connectors.custom is not None:
                runner.connectors.custom.stepped(actions, rewards, envs.valid, record=False)
            next_obs = np.array(runner.observations(raw, update=False))
            self._remember(rewards, terminateds, truncateds, counted, infos)
            if envs.failed_lanes:
                self._play_again(envs.failed_lanes, next_obs)
            ended = False
            if self._recorder is not None:
                playing = [
                    k if k < self._num_episodes and bool(counted[lane]) else None
                    for lane, k in enumerate(self._episode)
                ]
                step = PlayedStep(
                    raw_before, env_actions, raw, rewards, terminateds, truncateds, playing
                )
                ended = bool(self._recorder(step))
            done = terminateds | truncateds
            if done.any():
                raw, next_obs = self._next_episodes(done, raw, next_obs, records)
            obs = next_obs
            if ended:
                break
        return [records[k] for k in sorted(records)]

    def _act(self, obs: Array, noise: Array | None) -> Array:
        policy, inputs = self._runner.policy, self._inputs
        if inputs.views is None:
            return policy.compute_actions(obs, explore=self._explore, noise=noise)[0]
        return inputs.act_on(obs, explore=self._explore, noise=noise)[0]

    def _remember(
        self,
        rewards: Array,
        terminateds: Array,
        truncateds: Array,
        counted: Array,
        infos: LaneInfos | None,
    ) -> None:
        """Let the policy's views see how the step ended."""
        runner, inputs = self._runner, self._inputs
        if inputs.views is None:
            return
        over = terminateds | truncateds | ~counted
        over[list(runner.envs.failed_lanes)] = True
        rewards = runner.rewards(rewards, terminateds, truncateds, update=False)
        lanes, fragment = np.arange(runner.num_lanes), np.zeros(runner.num_lanes, np.int64)
        places = np.stack([lanes, fragment, np.array(self._episode)], axis=1)
        by_lane = None if infos is None else infos.by_lane
        columns = step_columns(
            places, rewards, terminateds, truncateds, self._lengths - 1, fragment, by_lane
        )
        inputs.stepped(over, columns)

    def _play_again(self, lanes: Sequence[int], next_obs: Array) -> None:
        """Start the episodes of environments that raised, and were built again, once more."""
        runner = self._runner
        failed = np.zeros(runner.num_lanes, np.bool_)
        failed[list(lanes)] = True
        for lane in lanes:
            self._failures += 1
            if self._failures > _MOST_FAILURES:
                raise EnvError(
                    runner.spec.env.use,
                    "step",
                    f"the environment failed {self._failures} times in one evaluation",
                    lane=lane,
                )
            self._returns[lane], self._lengths[lane] = 0.0, 0
            self._begin_noise(lane)
        fresh = runner.envs.reset_lanes(failed, self._seeds())
        rows, indices = take_lanes(fresh, failed), np.flatnonzero(failed)
        next_obs[failed] = runner.observations.first(rows, indices, update=False)

    def _begin_noise(self, lane: int) -> None:
        self._noise.begin_episode(lane, episode_noise(self._seed, self._episode[lane]))

    def _seeds(self) -> Sequence[int]:
        return [episode_seed(self._seed, Role.EVALUATION, 0, 0, k) for k in self._episode]

    def _next_episodes(
        self, done: Array, raw: Any, next_obs: Array, records: dict[int, EpisodeRecord]
    ) -> tuple[Any, Array]:
        runner = self._runner
        lanes = np.flatnonzero(done)
        for lane in lanes.tolist():
            k = self._episode[lane]
            if k < self._num_episodes:
                records[k] = EpisodeRecord(
                    episode_id=k,
                    lane=lane,
                    seed=episode_seed(self._seed, Role.EVALUATION, 0, 0, k),
                    episode_return=float(self._returns[lane]),
                    length=int(self._lengths[lane]),
                )
            self._returns[lane] = 0.0
            self._lengths[lane] = 0
            self._episode[lane] = k + runner.num_lanes
            self._begin_noise(lane)
        fresh = runner.envs.reset_lanes(done, self._seeds())
        if fresh is None:
            return raw, next_obs
        rows = take_lanes(fresh, lanes)
        next_obs[lanes] = runner.observations.first(rows, lanes, update=False)
        return fresh, next_obs


def _copied(observations: Any) -> Any:
    if isinstance(observations, dict):
        return {key: _copied(part) for key, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_copied(part) for part in observations)
    return np.array(observations)
