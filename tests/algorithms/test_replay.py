"""Learning from replayed transitions: priorities, beta, noise, target networks, entropy."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from tiny import learner_stats

from rlrun import DQNConfig, SACConfig
from rlrun.algorithms import dqn
from rlrun.algorithms.dqn import DQNTraining
from rlrun.algorithms.targets import TargetNetwork
from rlrun.config import memory_checks
from rlrun.config.problems import ConfigError
from rlrun.config.schema import LearnersConfig, ModelConfig
from rlrun.data import columns as col
from rlrun.learning.learner import Learner
from rlrun.policies.layers import QOptions
from rlrun.policies.q_network import build_q_network
from rlrun.replay.prioritized_replay_buffer import PrioritizedReplayBuffer


def replaying(**training):
    """Learns from the first step on."""
    settings = {"minibatch_size": 16, "num_steps_sampled_before_learning_starts": 1}
    config = DQNConfig().environment("CartPole-v1").model(hidden=[8]).debugging(seed=3)
    return config.training(train_batch_size=64, **settings, **training)


@pytest.mark.parametrize("memory", [False, True])
def test_priorities_are_unweighted_errors_and_a_little_more(built, memory):
    config = replaying().replay(prioritized=True, beta=1.0, epsilon=0.25)
    algorithm = built(config.model(use_lstm=memory, lstm_cell_size=8, max_seq_len=4))
    algorithm.train()
    buffer, step, found = algorithm.replay.buffers["default_policy"], algorithm.learner.step, []
    expected, report = [], buffer.update_priorities

    def spy_on_step(rows, *arguments, **settings):
        assert rows[col.WEIGHTS].unique().numel() > 1
        statistics = step(rows, *arguments, **settings)
        errors = statistics["td_errors"].abs().double()
        if memory:  # eta max + (1 - eta) mean of each sequence
            sequences = errors.split((rows[col.SEQ_LENS] - 1).tolist())
            errors = torch.stack([0.9 * each.max() + 0.1 * each.mean() for each in sequences])
        expected.append(errors.numpy() + 0.25)
        return statistics

    algorithm.learner.step = spy_on_step
    buffer.update_priorities = lambda ids, values: found.append(values) or report(ids, values)
    algorithm.train()
    assert len(found) == len(expected) > 4
    for mine, slow in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, slow, rtol=1e-5)


def test_both_networks_and_all_updates_have_noise_of_their_own(built, monkeypatch):
    seen, real = [], dqn.dqn_loss

    def spy(module, rows, *, target, **arguments):
        with torch.no_grad():  # the target starts as a copy, and is not renewed in 64 steps
            values = [each.forward_train({col.OBS: torch.ones(1, 4)}) for each in (module, target)]
        seen.append([tuple(each[col.ACTION_DIST_INPUTS].flatten().tolist()) for each in values])
        return real(module, rows, target=target, **arguments)

    monkeypatch.setattr(dqn, "dqn_loss", spy)
    algorithm = built(replaying(noisy=True).exploration(epsilon=0))
    seen.clear()
    updates = int(learner_stats(algorithm)["num_updates"])
    assert len(seen) == updates > 10
    assert seen[0][0] != seen[0][1]
    assert len({target for _, target in seen}) == updates


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


def test_a_target_network_drops_nothing_out():
    space = gym.spaces.Box(-1, 1, (4,), np.float32)
    model = ModelConfig(use="tiny:DropsOut")
    network, copy = (
        build_q_network(space, gym.spaces.Discrete(2), model, options=QOptions()) for _ in range(2)
    )
    learner = Learner(network, DQNTraining(), LearnersConfig(device="cpu"))
    target, rows = TargetNetwork(copy, learner).module, {col.OBS: torch.randn(5, 4)}
    first, second = (target.forward_train(rows)[col.ACTION_DIST_INPUTS] for _ in range(2))
    assert torch.equal(first, second)


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


def test_a_buffer_larger_than_the_memory_is_refused_before_anything_is_sampled(built, monkeypatch):
    monkeypatch.setattr(memory_checks, "memory_bytes", lambda: 3_000_000)
    with pytest.raises(ConfigError, match=r"replay.capacity: 50,000 transitions take at least 0.0"):
        built(replaying())
