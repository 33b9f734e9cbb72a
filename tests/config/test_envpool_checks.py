"""What is wrong with an environment that EnvPool is to make, told before a run starts."""

import importlib.util
from typing import Any

import pytest

from rlrun.config import registry
from rlrun.config.code_checks import check_code
from rlrun.config.schema import (
    EnvRunnersConfig,
    EnvSpec,
    ExperimentConfig,
    MultiAgentConfig,
    TrainingConfig,
)

needs_envpool = pytest.mark.skipif(
    importlib.util.find_spec("envpool") is None, reason="the extra envpool is not installed"
)


def problems(use: str, agents: Any = None, **kwargs: Any) -> list[tuple[str, str]]:
    experiment = ExperimentConfig(
        algorithm="PPO",
        env=EnvSpec(use=use, kwargs=kwargs),
        env_runners=EnvRunnersConfig(gym_env_vectorize_mode="envpool"),
        training=TrainingConfig(),
        multi_agent=agents or MultiAgentConfig(),
    )
    found = check_code(experiment)
    return [(".".join(map(str, finding.path)), finding.message) for finding in found]


@needs_envpool
@pytest.mark.parametrize(
    ("use", "kwargs"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"max_episode_steps": 50, "num_threads": 2}),
        ("Pong-v5", {"stack_num": 1, "repeat_action_probability": 0}),
        ("Ant-v4", {"from_pixels": True, "render_width": 64}),
    ],
)
def test_right_environments(use: str, kwargs: dict[str, Any]) -> None:
    assert problems(use, **kwargs) == []


@needs_envpool
@pytest.mark.parametrize(
    ("use", "kwargs", "key", "message"),
    [
        ("CartPol-v1", {}, "env.use", "did you mean CartPole-v1?"),
        ("ALE/Pong-v5", {}, "env.use", "did you mean Pong-v5?"),
        ("some.module:make", {}, "env.use", "EnvPool has no environment"),
        ("Pong-v5", {"frameskip": 4}, "env.kwargs.frameskip", "did you mean frame_skip?"),
        ("Pong-v5", {"frame_skip": "4"}, "env.kwargs.frame_skip", "got '4'"),
        ("Pong-v5", {"gray_scale": 1}, "env.kwargs.gray_scale", "of True, which is the default"),
        ("Pong-v5", {"reward_clip": True}, "env.kwargs.reward_clip", "connectors.clip_rewards"),
        ("Pong-v5", {"episodic_life": True}, "env.kwargs.episodic_life", "leave it out"),
        ("CartPole-v1", {"seed": 1}, "env.kwargs.seed", "the experiment's `seed`"),
        ("CartPole-v1", {"num_envs": 8}, "env.kwargs.num_envs", "num_envs_per_env_runner"),
        ("CartPole-v1", {"from_pixels": True}, "env", "only supported for MuJoCo"),
        ("Pong-v5", {"max_num_players": 2}, "env.use", "has 2 players"),
    ],
)
def test_what_is_wrong_is_told(use: str, kwargs: dict[str, Any], key: str, message: str) -> None:
    [(where, said)] = problems(use, **kwargs)
    assert where == key
    assert message in said


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "is_installed", lambda module: module != "envpool")
    [(where, said)] = problems("CartPole-v1")
    assert where == "env_runners.gym_env_vectorize_mode"
    assert 'pip install "rlrun[envpool]"' in said


def test_several_agents_do_not_go_into_a_pool() -> None:
    agents = MultiAgentConfig.model_validate({"policies": {"a": {}}})
    [(where, said)] = problems("CartPole-v1", agents)
    assert where == "env_runners.gym_env_vectorize_mode"
    assert "one agent" in said
