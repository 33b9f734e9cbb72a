"""Adam's steps are torch's own, RMSProp's those of TensorFlow; a learner takes either."""

import tomllib
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from packaging.requirements import Requirement

from rlrun.config.schema import LearnersConfig, ModelConfig, TrainingConfig
from rlrun.learning.learner import Learner
from rlrun.learning.optimizers import FlatAdam, FlatRMSProp
from rlrun.policies.catalog import build_module

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def steps(optimizer, vector, grads):
    """Fifty steps of gradients of very unlike size: ``(lr, gradients, parameters after it)``."""
    for step in range(50):
        grads.copy_(torch.randn(40) * 10 ** (step % 5 - 2))
        lr = 1e-3 * (1 + step % 3)
        optimizer.step(lr)
        yield lr, grads, vector


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="the CPU cannot flush them")
def test_moments_too_small_for_a_normal_float_are_zero_and_numbers_elsewhere_are_not():
    vector, grads = torch.zeros(4), torch.full((4,), 2e-38)
    optimizer = FlatAdam(vector, grads)
    optimizer.step(1e-3)
    assert not optimizer.get_state()["mean"].any()
    assert (grads * 0.1).all()


@pytest.mark.parametrize("eps", [1e-8, 1e-5])
def test_adam_takes_the_steps_of_torchs_own(eps):
    torch.manual_seed(0)
    vector, grads = torch.randn(40), torch.zeros(40)
    reference = torch.nn.Parameter(vector.clone())
    theirs = torch.optim.Adam([reference], eps=eps)
    for lr, seen, moved in steps(FlatAdam(vector, grads, eps=eps), vector, grads):
        reference.grad = seen.clone()
        theirs.param_groups[0]["lr"] = lr
        theirs.step()
        torch.testing.assert_close(moved, reference.data, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("decay", "eps"), [(0.99, 0.1), (0.9, 1e-6)])
def test_rmsprop_takes_the_steps_of_tensorflows(decay, eps):
    """Against a transcription of the kernel ApplyRMSProp, without momentum."""
    torch.manual_seed(0)
    vector, grads = torch.randn(40), torch.zeros(40)
    parameters, mean_square = vector.double().numpy(), np.ones(40)
    optimizer = FlatRMSProp(vector, grads, decay=decay, eps=eps)
    for lr, seen, moved in steps(optimizer, vector, grads):
        gradient = seen.double().numpy()
        mean_square += (gradient**2 - mean_square) * (1 - decay)
        parameters -= lr * gradient / np.sqrt(mean_square + eps)
        np.testing.assert_allclose(moved.numpy(), parameters, rtol=1e-5, atol=1e-6)


def test_rmsprop_that_starts_at_0_takes_the_steps_of_torchs_own():
    """But for epsilon, which torch adds to the root, and which is too small to matter here."""
    torch.manual_seed(0)
    vector, grads = torch.randn(40), torch.zeros(40)
    reference = torch.nn.Parameter(vector.clone())
    theirs = torch.optim.RMSprop([reference], eps=1e-12)
    optimizer = FlatRMSProp(vector, grads, eps=1e-20, start=0.0)
    for lr, seen, moved in steps(optimizer, vector, grads):
        reference.grad = seen.clone()
        theirs.param_groups[0]["lr"] = lr
        theirs.step()
        torch.testing.assert_close(moved, reference.data, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [FlatAdam, FlatRMSProp])
def test_a_restored_optimizer_takes_the_same_steps(kind):
    def make():
        vector, grads = torch.ones(5), torch.arange(5.0)
        return vector, kind(vector, grads)

    (straight, whole), (half, first), (resumed, second) = make(), make(), make()
    for optimizer, steps in ((whole, 4), (first, 2)):
        for _ in range(steps):
            optimizer.step(0.01)
    resumed.copy_(half)
    second.set_state(first.get_state())
    for _ in range(2):
        second.step(0.01)
    assert torch.equal(resumed, straight)


def test_torchs_private_operation_is_the_one_that_these_steps_were_written_for():
    """The signature is the same in all versions that the project asks for."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    asked = [Requirement(text) for text in project["dependencies"]]
    (versions,) = [str(one.specifier) for one in asked if one.name == "torch"]
    assert versions == "<3,>=2.6", "look up whether torch._fused_adam_ is still what it was"
    vectors = "self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps"
    numbers = "lr, beta1, beta2, weight_decay, eps, amsgrad, maximize"
    schema = torch.ops.aten._fused_adam_.default._schema
    needed = [argument.name for argument in schema.arguments if not argument.has_default_value()]
    assert needed == [*vectors.split(", "), *numbers.split(", ")]
    assert callable(torch._fused_adam_)


def test_parameters_without_gradient_stay():
    vector = torch.ones(3)
    FlatAdam(vector, torch.zeros(3)).step(0.1)
    assert vector.tolist() == [1.0] * 3


def test_moments_that_have_decayed_take_no_longer():
    """Denormal numbers would; they are flushed in a step, and only there."""
    vector, grads = torch.ones(3), torch.zeros(3)
    adam = FlatAdam(vector, grads)
    tiny = torch.finfo(torch.float32).tiny
    state = adam.get_state()
    adam.set_state({**state, "mean": [tiny, 1e-40, 0.5], "square": [tiny, 1e-40, 0.5]})
    adam.step(0.1)
    moments = adam.get_state()
    for name in ("mean", "square"):
        assert moments[name][1] == 0.0
        assert moments[name][2] > 0.0
    assert (torch.tensor([1e-40]) * 1.0).item() > 0.0


def learner(**training):
    space = gym.spaces.Box(-1, 1, (3,), np.float32)
    module = build_module(space, gym.spaces.Discrete(2), ModelConfig(hidden=(4,)))
    return Learner(module, TrainingConfig(**training), LearnersConfig())


def test_a_learner_makes_its_steps_with_what_was_chosen():
    made = learner(optimizer="rmsprop", rmsprop_decay=0.9, rmsprop_epsilon=0.5)
    before = made.parameters.vector.clone()
    made.parameters.grads.fill_(2.0)
    made.apply_gradients(0.1)
    moved = 0.1 * 2.0 / (0.9 + 0.1 * 2.0**2 + 0.5) ** 0.5
    torch.testing.assert_close(made.parameters.vector, before - moved)


def test_another_optimizers_state_is_not_taken_over():
    adam, rmsprop = learner(), learner(optimizer="rmsprop")
    for made in (adam, rmsprop):
        made.parameters.grads.fill_(1.0)
        made.apply_gradients(0.1)
    own = rmsprop.get_state()["optimizer"]["square"]
    rmsprop.set_state(adam.get_state())
    np.testing.assert_array_equal(rmsprop.get_state()["optimizer"]["square"], own)
