"""Numbers that are not finite or too large: what ends training, what is saved, and what is told."""

import numpy as np
import pytest
from counting_envs import CountingEnv
from tiny import ALGORITHMS, SEVERAL_AGENTS

from rlrun.algorithms.policies import DivergedError
from rlrun.checkpoint.checkpoint import CheckpointWriteError


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("env", ["CartPole-v1", SEVERAL_AGENTS])
def test_weights_that_are_not_finite_end_training_and_are_not_saved(built, tmp_path, name, env):
    """Whatever becomes of the losses: the last checkpoint stays the last healthy one."""
    algorithm = built(name, env)
    weights = algorithm.get_weights()
    poisoned = next(key for key in reversed(weights) if "target" not in key)
    weights[poisoned] = np.full_like(weights[poisoned], np.nan)
    algorithm.set_weights(weights)
    with pytest.raises(CheckpointWriteError, match=f"weights {poisoned} are not finite"):
        algorithm.save(tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()
    with pytest.raises(DivergedError, match=r"diverged in iteration 1: .*not finite"):
        algorithm.train()


class PaysTooMuch(CountingEnv):
    """Its reward is the same large number in each step."""

    def __init__(self, reward=1e30):
        super().__init__()
        self.reward = reward

    def step(self, action):
        observation, _, *further = super().step(action)
        return observation, self.reward, *further


@pytest.mark.parametrize(("reward", "warnings"), [(1e6, 1), (10.0, 0)])
def test_rewards_that_leave_the_policy_no_gradient_are_told_once(built, caplog, reward, warnings):
    algorithm = built("PPO", {"use": f"{__name__}:PaysTooMuch", "reward": reward})
    for _ in range(2):
        algorithm.train()
    told = [text for text in caplog.messages if "connectors.normalize_rewards divides" in text]
    assert len(told) == warnings


def test_a_run_that_huge_rewards_let_diverge_is_answered_with_advice_on_rewards(built):
    algorithm = built("PPO", f"{__name__}:PaysTooMuch")
    with pytest.raises(DivergedError, match=r"returns reach 3e\+30: connectors.normalize_rewards"):
        algorithm.train()


def test_a_loss_that_is_no_number_is_named(built, monkeypatch):
    algorithm = built("PPO")
    learners = {"default_policy": {"learner_stats": {"loss": "high"}}}
    monkeypatch.setattr(algorithm, "training_step", lambda: learners)
    with pytest.raises(ValueError, match="statistic 'loss' must be one number, not 'high'"):
        algorithm.train()
