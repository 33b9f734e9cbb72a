"""Rollouts: episodes of a trained policy from a checkpoint, recorded if asked for.

Owns the way from a run or a checkpoint to episodes. It must not know how an episode is sampled: the
code that evaluates during training does that (sampling/evaluation.py), with the same
sub-environments and seeds, so that one checkpoint and seed always give the same numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from gymnasium.error import DependencyNotInstalled

from rlrun.algorithms.result import evaluation_result
from rlrun.checkpoint.checkpoint import Checkpoint, restore_checkpoint
from rlrun.checkpoint.checkpoint_folder import checkpoint_at
from rlrun.config.layers import require_list
from rlrun.config.loader import load_experiment, load_to_act
from rlrun.config.problems import InputError
from rlrun.config.registry import algorithm_class
from rlrun.config.schema import ExperimentConfig
from rlrun.data.results import flat_numbers
from rlrun.envs.errors import EnvError
from rlrun.envs.recorded_step import RecordedStep
from rlrun.envs.spaces_only import spaces_only
from rlrun.experiment.recording import StepLimit, TransitionRecorder, VideoRecorder, rendered
from rlrun.experiment.run_folder import RunFolder, is_checkpoint, resolve_run
from rlrun.sampling.acting_policy import ActingPolicy
from rlrun.sampling.episodes import EpisodeRecord
from rlrun.sampling.evaluation import run_episodes

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm

_LOADING = RLock()
"""Held while a policy is loaded, since that exchanges the states of the global generators. An
environment may load another policy, of its opponent, when it is built."""


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
            "per_episode": [
                {
                    "episode_return": e.episode_return,
                    "episode_len": e.length,
                    "seed": e.seed,
                    "custom_metrics": flat_numbers(e.custom_metrics),
                    "agents": {
                        name: {"policy": policy_id, "return": its_return}
                        for name, policy_id, its_return in e.agents
                    },
                }
                for e in self.episodes
            ],
            "videos": [str(path) for path in self.videos],
        }

    def lines(self) -> list[str]:
        """The rollout as a table of text."""
        actions = "sampled" if self.explore else "deterministic"
        names = dict.fromkeys(name for each in self.episodes for name in each.custom_metrics)
        lines = [
            f"{self.algorithm} on {self.env}, checkpoint {self.checkpoint}, "
            f"{actions} actions, seed {self.seed}",
            f"{'episode':>8} {'return':>12} {'length':>8}" + "".join(f" {n:>12}" for n in names),
        ]
        for number, episode in enumerate(self.episodes, 1):
            values = (episode.custom_metrics.get(name, math.nan) for name in names)
            metrics = "".join(
                f" {x:>{max(12, len(n))}.4g}" for n, x in zip(names, values, strict=True)
            )
            lines.append(
                f"{number:>8} {episode.episode_return:>12.2f} {episode.length:>8}{metrics}"
            )
        if self.episodes:
            mean, std, low, high = (
                self.statistics[f"episode_return_{name}"] for name in ("mean", "std", "min", "max")
            )
            count = len(self.episodes)
            episodes = f"{count} episode{'' if count == 1 else 's'}"
            ends = f"min {low:.2f}, max {high:.2f}, over {episodes}"
            lines.append(f"return {mean:.2f} ± {std:.2f}, {ends}")
            if (success := self.statistics.get("success_rate")) is not None:
                lines.append(f"success rate {success:.3g}")
            by_policy = self.statistics.get("policy_return_mean", {})
            means = [f"{k} {v:.2f}" for k, v in by_policy.items() if v is not None]
            if means:
                lines.append(f"return of an agent, by policy: {', '.join(means)}")
        else:
            lines.append("no episode ended within the step limit")
        return [*lines, *(f"video {path}" for path in self.videos)]


def rollout(  # noqa: PLR0913 - one parameter for each option
    run_or_checkpoint: Path | str,
    overrides: Sequence[str] = (),
    *,
    episodes: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    explore: bool | None = None,
    render: bool = False,
    video: Path | str | None = None,
    save: Path | str | None = None,
    trust: bool = False,
) -> Rollout:
    """Roll out a checkpoint: the one named, or the best of a run, else its newest.

    Args:
        run_or_checkpoint: run folder, or one checkpoint.
        overrides: settings laid over the run's, such as ``"env.max_episode_steps=50"``.
        episodes: number of episodes; None takes as many as the run's `evaluation`.
        steps: most env steps of the whole rollout, which then runs one episode at a time.
        seed: seed of the episodes; None takes the seed of the run's evaluation.
        explore: sample actions, or take the most probable ones; None: as in the run's evaluation.
        render: show the environment in a window, one episode at a time.
        video: folder for a video of each episode, one episode at a time.
        save: npz file for all transitions.
        trust: import the code that the run names, even if this user has not signed it.

    Raises:
        TrustError: the run names code that this user has not signed.
        RunFolderError, CheckpointError: there is no checkpoint. EnvError: the environment failed.
        InputError: a video cannot be made here, or the environment cannot be shown.
    """
    checkpoint = find_checkpoint(Path(run_or_checkpoint))
    mode = "human" if render else None if video is None else "rgb_array"
    alone = 1 if mode is not None or steps is not None else None
    words = _with_evaluation(overrides, episodes=episodes, seed=seed, num_envs=alone)
    algorithm = restored(checkpoint, words, trust=trust)
    try:
        runner = algorithm.evaluator.runner(mode)
        transitions = None if save is None else TransitionRecorder()
        videos = None if video is None else VideoRecorder(Path(video), runner.envs)
        limit = None if steps is None else StepLimit(steps)
        recorders = [each for each in (transitions, videos, limit) if each is not None]

        def record(step: RecordedStep) -> bool:
            if render:  # cheap for environments that already render in `step`
                rendered(runner.envs, "--render")
            return any(recorder(step) for recorder in recorders)

        seed, recorder = algorithm.evaluator.seed(), record if recorders or render else None
        explores = algorithm.config.evaluation.explore if explore is None else explore

        def run(numbers: range) -> list[EpisodeRecord]:
            if limit is not None and limit.reached:  # by the last step of an episode
                return []
            return run_episodes(runner, numbers, seed=seed, explore=explores, recorder=recorder)

        records = algorithm.evaluator.episodes_by(run)
        if transitions is not None and save is not None:
            if limit is None:  # sub-environments may have played more episodes than it takes
                transitions.forget(len(records))
            transitions.save(Path(save))
        return Rollout(
            checkpoint=checkpoint.path,
            algorithm=checkpoint.algorithm,
            env=algorithm.config.env.use,
            seed=seed,
            explore=explores,
            episodes=tuple(records),
            statistics=evaluation_result(records, [*algorithm.policies], algorithm.policies.agents),
            videos=() if videos is None else tuple(videos.close()),
        )
    except (EnvError, DependencyNotInstalled) as error:
        missing = error.__context__ if isinstance(error, EnvError) else error
        if mode is None or not isinstance(missing, DependencyNotInstalled):
            raise
        raise InputError(f"{'--render' if render else '--video'}: {missing}") from None
    finally:
        algorithm.stop()


def _with_evaluation(overrides: Sequence[str], **changes: int | None) -> list[str]:
    """Overrides, and of `evaluation`; None changes nothing, `episodes` unset `env_steps`."""
    require_list(overrides)
    changed = [f"evaluation.{key}={value}" for key, value in changes.items() if value is not None]
    words = [*overrides, *changed]
    return words if changes["episodes"] is None else [*words, "evaluation.env_steps=null"]


def load_policy(
    run_or_checkpoint: Path | str,
    policy_id: str | None = None,
    *,
    num_envs: int = 1,
    explore: bool | None = False,
    seed: int = 0,
    trust: bool = False,
) -> ActingPolicy:
    """A trained policy, with its connectors, for environments that the caller steps; without Ray.

    Args:
        run_or_checkpoint, trust: see `rollout`.
        policy_id, num_envs, explore, seed: see `Algorithm.acting_policy`.

    Raises:
        InputError, CheckpointError: there is no checkpoint. KeyError: no such policy, or several.
    """
    with _LOADING:
        algorithm = restored_to_act(find_checkpoint(Path(run_or_checkpoint)), trust=trust)
        try:
            return algorithm.acting_policy(policy_id, num_envs=num_envs, explore=explore, seed=seed)
        finally:
            algorithm.stop()


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at ``path``, or the best of the run there, without its replay buffer."""
    return checkpoint_at(path if is_checkpoint(path) else resolve_run(path), replay=False)


def restored(checkpoint: Checkpoint, overrides: Sequence[str] = (), *, trust: bool) -> "Algorithm":
    """The algorithm of a checkpoint, in this process, with overrides of its settings."""
    experiment = load_experiment(checkpoint.path / RunFolder.CONFIG, overrides, trust=trust)
    return _restored(experiment, checkpoint)


def restored_to_act(checkpoint: Checkpoint, *, trust: bool) -> "Algorithm":
    """The algorithm of a checkpoint, whose policies act in environments of the caller.

    Where the checkpoint holds their spaces, no environment is built, and its code is not imported.
    """
    policies = checkpoint.state["policies"]
    if policies.get("spaces") is None:  # of an own class, or the checkpoint is older
        no_limit = ["fault_tolerance.env_timeout_s=null"]  # it would need the main thread
        return restored(checkpoint, no_limit, trust=trust)
    own = {
        name: plain for name, plain in policies["spaces"].items() if name not in policies["added"]
    }
    replacing = {
        "env": spaces_only(own, several=policies["several"]),
        "env_runners": {"disable_env_checking": True},
        "connectors": {"clip_rewards": policies["clip_rewards"]},
    }
    experiment = load_to_act(checkpoint.path / RunFolder.CONFIG, replacing, trust=trust)
    state = {**policies, "learner_connectors": {}}
    return _restored(experiment, replace(checkpoint, state={**checkpoint.state, "policies": state}))


def _restored(experiment: ExperimentConfig, checkpoint: Checkpoint) -> "Algorithm":
    algorithm = build_alone(experiment.begun)
    # The training episodes are not needed, and restoring their environments would take time.
    state = {**checkpoint.state, "env_runners": algorithm.get_state()["env_runners"]}
    restore_checkpoint(algorithm, replace(checkpoint, state=state))
    return algorithm


def build_alone(experiment: ExperimentConfig) -> "Algorithm":
    """The algorithm with one sub-environment in this process, on the CPU and without Ray.

    For rollouts, and to see whether an experiment can be built.
    """
    one_env = {
        "num_env_runners": 0,
        "num_envs_per_env_runner": 1,
        "rollout_fragment_length": "auto",
        "sample_async": False,
        "remote_worker_envs": False,
        "remote_env_batch_wait_ms": None,
    }
    on_cpu = {"num_learners": 0, "device": "cpu", "compile": False}
    changes = {
        "env_runners": experiment.env_runners.model_copy(update=one_env),
        "learners": experiment.learners.model_copy(update=on_cpu),
        "evaluation": experiment.evaluation.model_copy(
            update={"num_env_runners": 0, "parallel_to_training": False}
        ),
    }
    alone = experiment.model_copy(update=changes)
    return algorithm_class(experiment.algorithm)(alone)
