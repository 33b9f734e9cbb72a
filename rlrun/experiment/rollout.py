"""Rollouts: episodes of a trained policy from a checkpoint, recorded if asked for.

Owns the way from a run or a checkpoint to episodes. It must not know how an episode is sampled: the
code that evaluates during training does that (sampling/evaluation.py), with the same
sub-environments and seeds, so that one checkpoint and seed always give the same numbers.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlrun.algorithms.result import evaluation_result
from rlrun.checkpoint.checkpoint import (
    MANIFEST,
    Checkpoint,
    CheckpointError,
    read_checkpoint,
    restore_checkpoint,
)
from rlrun.checkpoint.checkpoint_folder import best_checkpoint
from rlrun.config.loader import load_experiment
from rlrun.envs.played_step import PlayedStep
from rlrun.experiment.recording import RenderScreen, StepLimit, TransitionRecorder, VideoRecorder
from rlrun.experiment.run import build_alone
from rlrun.experiment.run_folder import resolve_run
from rlrun.sampling.episodes import EpisodeRecord
from rlrun.sampling.evaluation import play_episodes

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm

RenderMode = Literal["human", "rgb_array"]


@dataclass(frozen=True)
class RolloutRequest:
    """Which episodes to sample, and what to record of them."""

    episodes: int | None = None
    """Number of episodes; None takes the run's ``evaluation.episodes``."""
    steps: int | None = None
    """Most env steps of the whole rollout; None for no limit."""
    seed: int | None = None
    """Seed of the episodes; None takes the seed of the run's evaluation."""
    explore: bool = False
    """Sample actions instead of taking the most probable ones."""
    render: bool = False
    """Show the environment in a window; one episode at a time."""
    video: Path | None = None
    """Folder for a video of each episode; one episode at a time."""
    save: Path | None = None
    """npz file for all transitions."""


@dataclass(frozen=True)
class Rollout:
    """The episodes of a rollout."""

    checkpoint: Path
    algorithm: str
    env: str
    seed: int
    explore: bool
    episodes: tuple[EpisodeRecord, ...]
    """The finished episodes, without those that a step limit cut off."""
    statistics: dict[str, Any]
    """Means over the episodes, with the keys of a result's ``evaluation``."""
    videos: tuple[Path, ...]

    def to_json(self) -> dict[str, Any]:
        """The rollout as plain JSON values."""
        return {
            "checkpoint": str(self.checkpoint),
            "algorithm": self.algorithm,
            "env": self.env,
            "seed": self.seed,
            "explore": self.explore,
            **self.statistics,
            "played": [
                {"episode_return": e.episode_return, "episode_len": e.length, "seed": e.seed}
                for e in self.episodes
            ],
            "videos": [str(path) for path in self.videos],
        }

    def lines(self) -> list[str]:
        """The rollout as a table of text."""
        actions = "sampled" if self.explore else "deterministic"
        lines = [
            f"{self.algorithm} on {self.env}, checkpoint {self.checkpoint}, "
            f"{actions} actions, seed {self.seed}",
            f"{'episode':>8} {'return':>12} {'length':>8}",
        ]
        for number, episode in enumerate(self.episodes, 1):
            lines.append(f"{number:>8} {episode.episode_return:>12.2f} {episode.length:>8}")
        if self.episodes:
            mean, std, low, high = (
                self.statistics[f"episode_return_{name}"] for name in ("mean", "std", "min", "max")
            )
            ends = f"min {low:.2f}, max {high:.2f}, over {len(self.episodes)} episodes"
            lines.append(f"return {mean:.2f} ± {std:.2f}, {ends}")
        else:
            lines.append("no episode ended within the step limit")
        return [*lines, *(f"video {path}" for path in self.videos)]


def rollout(run_or_checkpoint: Path | str, request: RolloutRequest = RolloutRequest()) -> Rollout:
    """Roll out a checkpoint: the one named, or the best of a run, or its newest if none is best.

    Raises:
        RunFolderError, CheckpointError: there is no checkpoint. EnvError: the environment failed.
        RecordingError: a video cannot be made here.

    """
    checkpoint = find_checkpoint(Path(run_or_checkpoint))
    algorithm = _restored(checkpoint, request)
    try:
        mode: RenderMode | None = None
        if request.render or request.video is not None:
            mode = "human" if request.render else "rgb_array"
        runner = algorithm.evaluator.runner(mode)
        seed = algorithm.evaluator.seed()
        recorders, transitions, video = _recorders(request, runner.envs)
        episodes = play_episodes(
            runner,
            num_episodes=algorithm.config.evaluation.episodes,
            seed=seed,
            explore=request.explore,
            recorder=_Together(recorders) if recorders else None,
        )
        if transitions is not None and request.save is not None:
            transitions.save(request.save)
        return Rollout(
            checkpoint=checkpoint.path,
            algorithm=checkpoint.algorithm,
            env=algorithm.config.env.use,
            seed=seed,
            explore=request.explore,
            episodes=tuple(episodes),
            statistics=evaluation_result(episodes),
            videos=tuple(video.close()) if video is not None else (),
        )
    finally:
        algorithm.stop()


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at ``path``, or the best one of the run at ``path``."""
    if os.path.isfile(path / MANIFEST):
        return read_checkpoint(path.parent / path.readlink() if path.is_symlink() else path)
    run = resolve_run(path)
    checkpoint = best_checkpoint(run / "checkpoints")
    if checkpoint is None:
        raise CheckpointError(f"{run}: the run has no checkpoint yet")
    return checkpoint


def _restored(checkpoint: Checkpoint, request: RolloutRequest) -> "Algorithm":
    """The algorithm of a checkpoint, in this process."""
    overrides = []
    if request.episodes is not None:
        overrides.append(f"evaluation.episodes={request.episodes}")
    if request.seed is not None:
        overrides.append(f"evaluation.seed={request.seed}")
    if request.render or request.video is not None:
        overrides.append("evaluation.num_envs=1")
    algorithm = build_alone(load_experiment(checkpoint.path / "config.yaml", overrides))
    # The training episodes are not needed, and restoring their environments would take time.
    state = {**checkpoint.state, "env_runners": algorithm.get_state()["env_runners"]}
    restore_checkpoint(algorithm, replace(checkpoint, state=state))
    return algorithm


class _Together:
    """Several recorders as one; each of them can end the rollout."""

    def __init__(self, recorders: Sequence[Any]) -> None:
        self._recorders = recorders

    def __call__(self, step: PlayedStep) -> bool:
        ends = [recorder(step) for recorder in self._recorders]  # all of them receive the step
        return any(ends)


def _recorders(
    request: RolloutRequest, envs: Any
) -> tuple[list[Any], TransitionRecorder | None, VideoRecorder | None]:
    transitions = TransitionRecorder() if request.save is not None else None
    video = VideoRecorder(request.video, envs) if request.video is not None else None
    screen = RenderScreen(envs) if request.render else None
    limit = StepLimit(request.steps) if request.steps is not None else None
    found = [recorder for recorder in (transitions, video, screen, limit) if recorder is not None]
    return found, transitions, video
