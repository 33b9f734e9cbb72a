"""Settings without effect in the spaces of an environment, which are known once it is built."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from nested_envs import RandomObservations

from rlrun.envs.multi_agent_examples import RockPaperScissors

PICTURES, SIGHTS = "test_unused_settings:Pictures", "nested_envs:Sights"


class OneSteers(RockPaperScissors):
    def __init__(self):
        super().__init__()
        self.action_spaces["player_1"] = gym.spaces.Box(-1.0, 1.0, ())


class Pictures(RandomObservations):
    observation_space = gym.spaces.Box(0, 255, (8, 6), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def step(self, action):
        return self.see(), 0.0, False, False, {}


def found(caplog):
    messages = (record.getMessage() for record in caplog.records)
    return [message.split(" has no effect: ")[0] for message in messages if "no effect" in message]


@pytest.mark.parametrize(
    ("name", "env", "sections", "unused"),
    [
        ("PPO", "CartPole-v1", {}, []),
        ("PPO", "CartPole-v1", {"model": {"log_std_init": -1.0}}, ["model.log_std_init"]),
        ("PPO", "Pendulum-v1", {"model": {"log_std_init": -1.0, "free_log_std": False}}, []),
        ("PPO", "CartPole-v1", {"model": {"free_log_std": False}}, ["model.free_log_std"]),
        ("DQN", "CartPole-v1", {"model": {"use_sde": True}}, ["model.use_sde"]),
        ("DQN", "CartPole-v1", {"model": {"init": "uniform"}}, ["model.init"]),
        ("SAC", "Pendulum-v1", {"model": {"init": "uniform"}}, []),
        ("PPO", "CartPole-v1", {"model": {"conv_head": 8}}, ["model.conv_head"]),
        ("DQN", "CartPole-v1", {"model": {"conv_dtype": "bfloat16"}}, ["model.conv_dtype"]),
        ("PPO", PICTURES, {"model": {"conv_head": 8, "hidden": [8]}}, ["model.hidden"]),
        ("SAC", PICTURES, {"model": {"conv_head": 8, "hidden": [8]}}, []),
        ("PPO", SIGHTS, {"model": {"conv_head": 8, "hidden": [8]}}, []),
        ("PPO", "Pendulum-v1", {"connectors": {"clip_actions": True}}, []),
        ("A2C", "CartPole-v1", {"connectors": {"clip_actions": True}}, ["connectors.clip_actions"]),
    ],
)
def test_settings_that_the_spaces_give_no_effect(built, caplog, name, env, sections, unused):
    built(name, env, **sections)
    assert found(caplog) == unused


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_graphs_have_no_effect_without_a_gpu(built, caplog):
    built("PPO", "CartPole-v1", learners={"cuda_graphs": True})
    assert found(caplog) == ["learners.cuda_graphs"]


def test_a_setting_has_an_effect_if_it_has_one_on_any_policy(built, caplog):
    policies = {"agent_0": {"model": {"conv_head": 8}}, "agent_1": {}}
    built("PPO", "MultiAgentCartPole", multi_agent={"policies": policies})
    assert found(caplog) == ["model.conv_head"]
    caplog.clear()
    built("PPO", "nested_envs:two_sights", multi_agent={"policies": policies})
    assert found(caplog) == []
    one_steers = {"policies": ["player_0", "player_1"]}
    env, clips = "test_unused_settings:OneSteers", {"clip_actions": True}
    built("PPO", env, multi_agent=one_steers, connectors=clips)
    assert found(caplog) == []
