"""Networks of images put out values when they act, and learning does not compute them again."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun import Callbacks, PPOConfig
from rlrun.data import columns as col
from rlrun.learning.returns import add_advantages

NUM_ENVS, BATCH = 2, 48


class Pictures(gym.Env[Any, Any]):
    """Random pictures and rewards; episodes of 3 to 8 steps, some of which are cut short."""

    observation_space = gym.spaces.Box(0, 255, (2, 16, 16), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps, self._cut = int(self.np_random.integers(3, 9)), self.np_random.random() < 0.5
        return self._drawn(), {}

    def step(self, action):
        self._steps -= 1
        ends, reward = self._steps == 0, float(self.np_random.random())
        return self._drawn(), reward, ends and not self._cut, ends and self._cut, {}

    def _drawn(self):
        return self.np_random.integers(0, 256, (2, 16, 16), np.uint8)


class DarkensFragments(Callbacks):
    def on_sample_end(self, env_runner, samples):
        samples[col.OBS] = samples[col.OBS] // 2


class DarkensBatches(Callbacks):
    def on_learn_on_batch(self, algorithm, policy_id, batch):
        batch[col.OBS] = batch[col.OBS] // 2


@pytest.fixture
def build(built):
    def make(callbacks=None, **env_runners):
        config = PPOConfig().environment(Pictures).debugging(seed=3)
        config = config.env_runners(num_envs_per_env_runner=NUM_ENVS, **env_runners)
        config = config.training(train_batch_size=BATCH, minibatch_size=16, num_epochs=2, lr=1e-2)
        if callbacks is not None:
            config = config.callbacks(f"{__name__}:{callbacks.__name__}")
        return built(config)

    return make


def train_batch(algorithm):
    ((_, batch),) = algorithm.train_batches(algorithm.sample())
    return batch


def columns_of(algorithm, batch, monkeypatch):
    """What losses compare with, and how many observations the network saw for it."""
    learner, seen = algorithm.learner, []
    forward = learner.module.forward_train

    def counting(rows):
        seen.append(len(rows[col.OBS]))
        return forward(rows)

    monkeypatch.setattr(learner.module, "forward_train", counting)
    rows = learner.load(batch, (col.ACTIONS,))
    add_advantages(rows, batch, learner.module, 0.9, 0.8)
    monkeypatch.undo()
    return rows.columns, sum(seen)


def assert_as_computed(algorithm, batch, columns, monkeypatch):
    batch.discard(col.WEIGHTS_CHECKSUM)
    computed, num_seen = columns_of(algorithm, batch, monkeypatch)
    assert num_seen >= BATCH
    assert columns.keys() == computed.keys()
    for name, column in computed.items():
        torch.testing.assert_close(columns[name], column, rtol=1e-5, atol=1e-6)


def test_values_of_acting_are_those_that_learning_would_compute(build, monkeypatch):
    algorithm = build()
    for _ in range(3):
        batch = train_batch(algorithm)
        columns, num_seen = columns_of(algorithm, batch, monkeypatch)
        num_ended = int((batch[col.TERMINATEDS] | batch[col.TRUNCATEDS]).sum())
        assert num_seen == NUM_ENVS + num_ended
        np.testing.assert_array_equal(columns[col.VF_PREDS].numpy(), batch[col.VF_PREDS])
        assert_as_computed(algorithm, batch, columns, monkeypatch)
        algorithm.train()


def test_what_was_acted_on_with_other_weights_is_computed(build, monkeypatch):
    algorithm = build()
    batch = train_batch(algorithm)
    algorithm.learner.parameters.vector.mul_(1.01)
    columns, num_seen = columns_of(algorithm, batch, monkeypatch)
    assert num_seen >= BATCH
    assert_as_computed(algorithm, batch, columns, monkeypatch)


def test_rows_held_back_for_whole_episodes_are_computed(build, monkeypatch):
    """They were acted on before the last update."""
    algorithm = build(batch_mode="complete_episodes", rollout_fragment_length=8)
    algorithm.train()
    batch = train_batch(algorithm)
    columns, num_seen = columns_of(algorithm, batch, monkeypatch)
    num_ended = int((batch[col.TERMINATEDS] | batch[col.TRUNCATEDS]).sum())
    assert len(np.unique(batch[col.WEIGHTS_CHECKSUM])) > 1
    assert num_ended < num_seen < len(batch)
    assert_as_computed(algorithm, batch, columns, monkeypatch)


@pytest.mark.parametrize("callbacks", [DarkensFragments, DarkensBatches])
def test_values_of_observations_that_a_callback_changes_are_computed(build, callbacks, monkeypatch):
    algorithm = build(callbacks)
    batch = train_batch(algorithm)
    columns, num_seen = columns_of(algorithm, batch, monkeypatch)
    assert num_seen >= BATCH
    assert_as_computed(algorithm, batch, columns, monkeypatch)


def test_a_run_that_learned_on_a_gpu_before_computes_values(build, monkeypatch):
    """A GPU reads none of what acting put out, which is left out from then on."""
    algorithm = build()
    state = algorithm.get_state()
    unread = ["action_dist_inputs", "vf_preds", "weights_checksum"]
    state["policies"]["columns_left_out"] = {"default_policy": unread}
    algorithm.set_state(state)
    batch = train_batch(algorithm)
    assert columns_of(algorithm, batch, monkeypatch)[1] >= BATCH
    algorithm.train()


def test_a_restored_run_goes_on_to_the_bit(build, tmp_path, monkeypatch):
    algorithm, resumed = build(), build()
    algorithm.train()
    algorithm.save(tmp_path / "checkpoint")
    resumed.restore(tmp_path / "checkpoint")
    for _ in range(2):
        algorithm.train()
        resumed.train()
    weights = algorithm.learner.get_weights()
    np.testing.assert_array_equal(weights, resumed.learner.get_weights())
    batch = train_batch(resumed)
    assert columns_of(resumed, batch, monkeypatch)[1] < BATCH
