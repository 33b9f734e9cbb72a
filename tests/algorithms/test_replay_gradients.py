"""The closed-form gradients of DQN and SAC against autograd's of their losses."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.algorithms import dqn, sac
from rlrun.algorithms.dqn import DQN, DQNConfig, dqn_gradient, dqn_loss
from rlrun.algorithms.sac import (
    NEXT_NOISE,
    NOISE,
    SAC,
    SACConfig,
    critic_gradient,
    critic_loss,
    policy_gradient,
    policy_loss,
)
from rlrun.config.schema import LearnersConfig, ModelConfig, TrainingConfig
from rlrun.data import columns as col
from rlrun.learning.learner import Learner
from rlrun.policies.action_sampling import LOG_STD_BOUNDS
from rlrun.policies.layers import QOptions
from rlrun.policies.q_network import QNetwork, build_q_network
from rlrun.policies.soft_actor_critic import SACPolicyNetwork, TwinQNetwork

OBS_SPACE = gym.spaces.Box(-1, 1, (3,), np.float32)
DISCRETE = gym.spaces.Discrete(4)
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
ALPHA = torch.tensor([0.3])
NUM_ROWS = 64


def perturbed(module):
    """Not as it was initialised, where biases are 0 and outputs small."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def model(**settings):
    return ModelConfig(**{"hidden": (8, 6), "activation": "relu", **settings})


def q_network(**settings):
    options = QOptions(
        **{
            name: settings.pop(name)
            for name in ("dueling", "noisy", "num_atoms")
            if name in settings
        }
    )
    return perturbed(build_q_network(OBS_SPACE, DISCRETE, model(**settings), options=options))


def learner_of(module):
    return Learner(module, TrainingConfig(), LearnersConfig(device="cpu"))


def rows(space, seed):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return torch.tensor(rng.normal(size=shape), dtype=torch.float32)

    discrete = isinstance(space, gym.spaces.Discrete)
    actions = (
        torch.tensor(rng.integers(4, size=NUM_ROWS)) if discrete else normal(NUM_ROWS, 2).tanh()
    )
    return {
        col.OBS: normal(NUM_ROWS, 3),
        col.NEXT_OBS: normal(NUM_ROWS, 3),
        col.ACTIONS: actions,
        col.REWARDS: 2.0 * normal(NUM_ROWS),
        col.TERMINATEDS: torch.tensor(rng.random(NUM_ROWS) < 0.3),
        col.DISCOUNTS: torch.full((NUM_ROWS,), 0.97),
        col.WEIGHTS: torch.tensor(rng.random(NUM_ROWS), dtype=torch.float32),
        NOISE: normal(NUM_ROWS, 2),
        NEXT_NOISE: normal(NUM_ROWS, 2),
    }


def assert_same(learner, loss, gradient, batch, arguments):
    grads = learner.parameters.grads
    total, expected = loss(learner.module, batch, **arguments)
    grads.zero_()
    total.backward(inputs=list(learner.module.parameters()))
    by_autograd = grads.clone()
    assert by_autograd.count_nonzero() > 0.5 * len(by_autograd)
    grads.fill_(float("nan"))  # every gradient is written, not added to
    statistics = gradient(learner.module, batch, **arguments)
    torch.testing.assert_close(grads, by_autograd, rtol=1e-4, atol=1e-6)
    assert statistics.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(statistics[key], value, rtol=1e-4, atol=1e-5, msg=key)
        assert not statistics[key].requires_grad


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("dueling", [True, False])
def test_dqn(dueling, activation, double_q, seed):
    torch.manual_seed(seed)
    learner = learner_of(q_network(dueling=dueling, activation=activation))
    assert learner.module.has_vjp
    arguments = {"target": q_network(dueling=dueling), "double_q": double_q}
    arguments["value_rescaling"] = seed == 2
    batch = rows(DISCRETE, seed)
    errors = dqn_loss(learner.module, batch, **arguments)[1]["td_errors"].abs()
    assert (errors > 1).any()  # both parts of the Huber loss
    assert (errors < 1).any()
    assert_same(learner, dqn_loss, dqn_gradient, batch, arguments)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_sac(activation, seed):
    torch.manual_seed(seed)
    policy, critics, target = (
        perturbed(kind(OBS_SPACE, BOX, model(activation=activation)))
        for kind in (SACPolicyNetwork, TwinQNetwork, TwinQNetwork)
    )
    with torch.no_grad():  # some log standard deviations are out of bounds, where they stay
        policy.pi.last.bias[2] += LOG_STD_BOUNDS[1]
    actor, critic = learner_of(policy), learner_of(critics)
    batch = rows(BOX, seed)
    log_std = policy.forward_train(batch)[col.ACTION_DIST_INPUTS][:, 2]
    assert (log_std > LOG_STD_BOUNDS[1]).any()
    assert (log_std < LOG_STD_BOUNDS[1]).any()
    arguments = {"policy": policy, "target": target, "alpha": ALPHA}
    assert_same(critic, critic_loss, critic_gradient, batch, arguments)
    before = critic.parameters.grads.clone()
    assert_same(actor, policy_loss, policy_gradient, batch, {"critics": critics, "alpha": ALPHA})
    # The policy's gradient flows through the critics, and leaves theirs alone.
    assert torch.equal(critic.parameters.grads, before)


class OtherForward(QNetwork):
    """Computes something that its parent's `vjp` knows nothing of."""

    def forward_train(self, batch):
        return {name: 2.0 * value for name, value in super().forward_train(batch).items()}


@pytest.mark.parametrize(
    "settings",
    [
        {"activation": "gelu"},
        {"noisy": True},
        {"num_atoms": 11},
        {"use_lstm": True},
    ],
)
def test_other_networks_are_left_to_autograd(settings):
    assert not q_network(**settings).has_vjp


def test_a_subclass_is_left_to_autograd():
    assert q_network().has_vjp
    assert not OtherForward(OBS_SPACE, DISCRETE, model()).has_vjp


def test_discrete_actions_and_other_activations_of_sac_are_left_to_autograd():
    assert not TwinQNetwork(OBS_SPACE, DISCRETE, model()).has_vjp
    for kind in (TwinQNetwork, SACPolicyNetwork):
        assert kind(OBS_SPACE, BOX, model()).has_vjp
        assert not kind(OBS_SPACE, BOX, model(activation="silu")).has_vjp


@pytest.mark.parametrize(
    ("module", "algorithm", "config", "env", "names"),
    [
        (dqn, DQN, DQNConfig, "CartPole-v1", ["dqn_gradient"]),
        (sac, SAC, SACConfig, "Pendulum-v1", ["critic_gradient", "policy_gradient"]),
    ],
)
def test_each_update_uses_it(module, algorithm, config, env, names, monkeypatch):
    calls = []
    for name in names:
        real = getattr(module, name)
        monkeypatch.setattr(
            module,
            name,
            lambda *a, _real=real, _name=name, **k: calls.append(_name) or _real(*a, **k),
        )
    training = {
        "train_batch_size": 64,
        "minibatch_size": 16,
        "training_intensity": 1.0,
        "num_steps_sampled_before_learning_starts": 32,
    }
    built = algorithm(config().environment(env).training(**training))
    result = built.train()
    built.stop()
    updates = result["learners"]["default_policy"]["learner_stats"]["num_updates"]
    assert updates >= 2
    assert sorted(calls) == sorted(names * int(updates))
