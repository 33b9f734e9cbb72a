"""RMSProp takes the steps of torch's own, and is a choice of the learner."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.config.schema import LearnersConfig, ModelConfig, TrainingConfig
from rlrun.learning.learner import Learner
from rlrun.learning.rmsprop import FlatRMSProp
from rlrun.policies.rl_module import ActorCritic


@pytest.mark.parametrize(("decay", "eps"), [(0.99, 0.1), (0.9, 1e-6)])
def test_it_takes_the_steps_of_torchs_rmsprop(decay, eps):
    torch.manual_seed(0)
    vector = torch.randn(40)
    reference = torch.nn.Parameter(vector.clone())
    grads = torch.zeros(40)
    ours = FlatRMSProp(vector, grads, decay=decay, eps=eps)
    theirs = torch.optim.RMSprop([reference], lr=1.0, alpha=decay, eps=eps)
    for step in range(50):
        grads.copy_(torch.randn(40) * 10 ** (step % 5 - 2))
        reference.grad = grads.clone()
        lr = 1e-3 * (1 + step % 3)
        theirs.param_groups[0]["lr"] = lr
        theirs.step()
        ours.step(lr)
        torch.testing.assert_close(vector, reference.data, rtol=1e-5, atol=1e-6)


def test_a_restored_optimizer_takes_the_same_steps():
    def make():
        vector, grads = torch.ones(5), torch.arange(5.0)
        return vector, FlatRMSProp(vector, grads)

    straight, optimizer = make()
    for _ in range(4):
        optimizer.step(0.01)
    half, first = make()
    first.step(0.01)
    first.step(0.01)
    resumed, second = make()
    resumed.copy_(half)
    second.set_state(first.get_state())
    second.step(0.01)
    second.step(0.01)
    assert torch.equal(resumed, straight)


def learner(**training):
    module = ActorCritic(
        gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2), ModelConfig(hidden=(4,))
    )
    return Learner(module, TrainingConfig(**training), LearnersConfig())


def test_a_learner_makes_its_steps_with_what_was_chosen():
    made = learner(optimizer="rmsprop", rmsprop_decay=0.9, rmsprop_epsilon=0.5)
    before = made.parameters.vector.clone()
    made.parameters.grads.fill_(2.0)
    made.apply_gradients(0.1)
    moved = 0.1 * 2.0 / ((0.1 * 2.0**2) ** 0.5 + 0.5)
    torch.testing.assert_close(made.parameters.vector, before - moved)


def test_another_optimizers_state_is_not_taken_over():
    adam, rmsprop = learner(), learner(optimizer="rmsprop")
    for made in (adam, rmsprop):
        made.parameters.grads.fill_(1.0)
        made.apply_gradients(0.1)
    own = rmsprop.get_state()["optimizer"]["square"]
    rmsprop.set_state(adam.get_state())
    np.testing.assert_array_equal(rmsprop.get_state()["optimizer"]["square"], own)
