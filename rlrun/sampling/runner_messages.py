"""What a runner is built from, what it is asked for, and what it answers. Cheap to pickle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlrun.config.schema import ConnectorsConfig, EnvRunnersConfig, EnvSpec, ModelConfig
from rlrun.connectors.rewards import RewardPipeline
from rlrun.data.sample_batch import SampleBatch
from rlrun.policies.numpy_policy import build_policy
from rlrun.policies.policy import Policy
from rlrun.sampling.atari import is_atari_id
from rlrun.sampling.episodes import EpisodeRecord

if TYPE_CHECKING:
    import gymnasium as gym

PolicyFactory = Callable[["gym.Space[Any]", "gym.Space[Any]", ModelConfig], Policy]


@dataclass(frozen=True)
class RunnerSpec:
    """All that a runner needs to know; cheap to pickle, free of the algorithm's settings."""

    env: EnvSpec
    settings: EnvRunnersConfig = field(default_factory=EnvRunnersConfig)
    connectors: ConnectorsConfig = field(default_factory=ConnectorsConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    seed: int = 0
    restart_failed_sub_environments: bool = False
    gamma: float = 0.99
    """Discount of the return whose standard deviation `normalize_rewards` divides by."""
    policy_factory: PolicyFactory = build_policy
    """Called with the preprocessed observation space, the action space and the model settings."""


@dataclass(frozen=True)
class SampleRequest:
    """What a runner is asked for. The weights travel beside it, once for all runners."""

    fragment: int
    """Counts the requests of a run; the action noise is keyed by it."""
    length: int
    """Steps of each lane."""
    weights_version: int = 0
    connector_state: dict[str, Any] | None = None
    """Merged connector statistics to take over first; None keeps the runner's own."""
    exploration: dict[str, float] | None = None
    """What `Policy.set_exploration` is to be told; None for policies that sample by themselves."""


@dataclass(frozen=True)
class SampleReply:
    """One fragment and what happened on the way."""

    runner_index: int
    weights_version: int
    batch: SampleBatch
    env_steps: int
    vector_steps: int
    """Times that all lanes were stepped together."""
    episodes: list[EpisodeRecord]
    connector_deltas: dict[str, Any]
    """Statistics gathered since the last reply, for the central connectors to merge."""
    state: dict[str, Any]
    """Where the runner stands now: `EnvRunner.set_state` continues from there."""
    timings_s: dict[str, float]
    """Seconds of this fragment by part: `policy`, `env`, `other`."""
    longest_running_episode: int
    """Env steps of the longest episode that has not ended."""
    faulty_episodes: int
    """Episodes dropped since the runner was built, because their environment raised."""


def reward_pipeline(spec: RunnerSpec, *, num_lanes: int) -> RewardPipeline:
    """From rewards to what learning sees; null clips on Atari with deepmind preprocessing."""
    clip = spec.connectors.clip_rewards
    if clip is None:
        clip = spec.settings.preprocessor_pref == "deepmind" and is_atari_id(spec.env.use)
    return RewardPipeline(
        clip=clip,
        normalize=spec.connectors.normalize_rewards,
        gamma=spec.gamma,
        num_lanes=num_lanes,
    )
