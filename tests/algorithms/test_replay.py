"""Learning from replayed transitions: priorities, beta, noise, target networks, entropy."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from tiny import BATCH, learner_stats

from rlrun import DQNConfig, SACConfig
from rlrun.algorithms.dqn import DQNTraining
from rlrun.algorithms.replay import COLUMNS, replayed_rows
from rlrun.algorithms.replay_settings import least_bytes
from rlrun.algorithms.sequence_replay import sequence_errors
from rlrun.algorithms.targets import TargetNetwork
from rlrun.config import memory_checks
from rlrun.config.problems import ConfigError
from rlrun.config.schema import LearnersConfig, ModelConfig
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import Learner
from rlrun.learning.loaded_batch import as_tensors
from rlrun.policies.layers import QOptions
from rlrun.policies.q_network import build_q_network
from rlrun.replay.prioritized_replay_buffer import PrioritizedReplayBuffer


def replaying(**training):
    """Learns from the first step on."""
    settings = {"minibatch_size": 16, "num_steps_sampled_before_learning_starts": 1}
    config = DQNConfig().environment("CartPole-v1").model(hidden=[8]).debugging(seed=3)
    return config.training(train_batch_size=64, **settings, **training)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_replayed_rows_move_to_the_device_of_the_learner(device):
    batch = SampleBatch({name: np.zeros((3, 2), np.float32) for name in COLUMNS})
    rows = as_tensors(replayed_rows(batch), torch.device(device))
    assert rows.keys() == {*COLUMNS, col.WEIGHTS}
    assert {tensor.device.type for tensor in rows.values()} == {device}


@pytest.mark.parametrize("runners", [1, 2, 3])
def test_epsilon_of_each_runner_is_a_power_of_the_common_one(built, runners):
    """As in Ape-X, from the first power to that by 1 + the exponent."""
    algorithm = built(replaying().exploration(epsilon=0.4, runner_exponent=7.0))
    settings = algorithm.config.env_runners.model_copy(update={"num_env_runners": runners})
    algorithm.config = algorithm.config.model_copy(update={"env_runners": settings})
    expected = {1: 0.4, 2: [0.4, 0.4**8], 3: [0.4, 0.4**4.5, 0.4**8]}[runners]
    found = algorithm.exploration("default_policy")
    epsilons = found["epsilon"] if runners == 1 else [each["epsilon"] for each in found]
    assert epsilons == pytest.approx(expected)


def test_beta_follows_the_env_steps_of_the_run_and_survives_a_restore(built, monkeypatch):
    def betas_of(algorithm, iterations):
        seen, sample = [], PrioritizedReplayBuffer.sample

        def spy(buffer, num_items, rng, *, beta):
            seen.append(beta)
            return sample(buffer, num_items, rng, beta=beta)

        with monkeypatch.context() as patch:
            patch.setattr(PrioritizedReplayBuffer, "sample", spy)
            for _ in range(iterations):
                algorithm.train()
        return seen

    config = replaying().replay(prioritized=True, beta=[[0, 0.4], [256, 1.0]])
    straight, resumed = built(config), built(config)
    first = betas_of(straight, 2)
    assert first == sorted(first)
    assert 0.4 < first[0] < first[-1] == pytest.approx(0.7)
    resumed.set_weights(straight.get_weights())
    resumed.set_state(straight.get_state())
    later = betas_of(resumed, 3)
    assert 0.7 < later[0] < later[-1] == 1.0


def test_whole_episodes_that_fill_a_train_batch_are_enough(built):
    whole = {"batch_mode": "complete_episodes", "horizon": 8}  # no pole falls that soon
    result = built("DQN", env_runners=whole).train()
    assert result["episode_len_mean"] == 8
    assert result["env_steps"] == BATCH


def learner_and_target(**model):
    space = gym.spaces.Box(-1, 1, (4,), np.float32)
    network, copy = (
        build_q_network(space, gym.spaces.Discrete(2), ModelConfig(**model), options=QOptions())
        for _ in range(2)
    )
    learner = Learner(network, DQNTraining(), LearnersConfig(device="cpu"))
    return learner, TargetNetwork(copy, learner)


def test_a_target_network_drops_nothing_out():
    target, rows = learner_and_target(use="tiny:DropsOut")[1].module, {col.OBS: torch.randn(5, 4)}
    first, second = (target.forward_train(rows)[col.ACTION_DIST_INPUTS] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_target_network_moves_every_so_many_steps(share):
    learner, target = learner_and_target(hidden=(3,))
    moves = []
    for steps in (1, 9, 10, 18, 19, 20, 31, 40, 41):
        learner.parameters.vector.fill_(steps)
        before = target.get_state()["weights"]
        if target.due(steps, 10):
            target.follow(share)
        after = target.get_state()["weights"]
        if (after != before).any():
            np.testing.assert_allclose(after, before + share * (steps - before), rtol=1e-5)
            moves.append(steps)
    assert moves == [10, 20, 31, 41]


def test_a_sequence_is_replayed_by_the_greatest_and_the_mean_of_its_errors():
    """Of its steps with a loss."""
    batch = SampleBatch({col.ITEM_IDS: np.arange(20, 25), col.SEQ_LENS: np.array([3, 2])})
    nan = np.nan
    ids, errors = sequence_errors(batch, np.array([nan, 4, 1, nan, 2], np.float32))
    assert ids.tolist() == [20, 23]
    np.testing.assert_allclose(errors, [0.9 * 4 + 0.1 * 2.5, 2.0], rtol=1e-6)


def test_entropy_is_in_units_of_the_squashed_action_for_any_bounds(built):
    """Stretching the bounds of actions changes nothing in what is learned."""
    settings = {
        "train_batch_size": 60,
        "minibatch_size": 16,
        "training_intensity": 16,
        "num_steps_sampled_before_learning_starts": 10,
    }
    config = SACConfig().training(**settings).model(hidden=[8]).debugging(seed=3)
    environments = ("Pendulum-v1", "rlrun.envs.examples:StretchedPendulum")
    rows = [learner_stats(built(config.copy().environment(env))) for env in environments]
    assert rows[0]["num_updates"] == 51
    assert rows[0] == pytest.approx(rows[1], rel=1e-3)


@pytest.mark.parametrize(
    ("shape", "at_least"),
    [((9, 4, 4), 9 * 4 * 4), ((8, 4, 4), 4 * 4), ((4, 4, 9), 4 * 9), ((4, 4), 4 * 4)],
)
def test_of_observations_that_may_be_stacks_a_frame_each_needs_memory(shape, at_least):
    spaces = gym.spaces.Box(0, 255, shape, np.uint8), gym.spaces.Discrete(2)
    assert least_bytes(spaces) == 48 + at_least + 8


def test_a_buffer_holds_at_least_what_is_sampled_before_learning_starts():
    def of_capacity(capacity):
        config = DQNConfig().environment("CartPole-v1").replay(capacity=capacity)
        return config.training(num_steps_sampled_before_learning_starts=100).experiment()

    assert of_capacity(100).replay.capacity == 100
    with pytest.raises(ConfigError, match=r"loses some of the 100 .*set replay.capacity to 100"):
        of_capacity(99)


def test_a_buffer_larger_than_the_memory_is_refused_before_anything_is_sampled(built, monkeypatch):
    monkeypatch.setattr(memory_checks, "memory_bytes", lambda: 3_000_000)
    algorithm = built(replaying())  # it may be there to act alone, as in a rollout
    with pytest.raises(ConfigError, match=r"replay.capacity: 50,000 transitions take at least 0.0"):
        algorithm.train()
    assert algorithm.env_steps == 0


def test_a_buffer_of_more_than_half_the_memory_is_warned_of(built, monkeypatch, caplog):
    monkeypatch.setattr(memory_checks, "memory_bytes", lambda: 5_000_000)
    algorithm = built(replaying())
    algorithm.train()
    algorithm.train()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "replay.capacity: 50,000 transitions take at least 0.0 of 0.0 GB of memory" in warning


def test_buffers_of_several_policies_need_memory_together(built):
    config = replaying().environment("MultiAgentCartPole").replay(capacity=1000)
    algorithm = built(config.multi_agent(policies=["agent_0", "agent_1"]))
    assert algorithm.replay.require_memory() == 2 * 1000 * (48 + 4 * 4 + 8)
