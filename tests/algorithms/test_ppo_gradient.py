"""PPO's gradient in closed form against autograd's of its loss, and where it stands in for it."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.algorithms import ppo
from rlrun.algorithms.ppo import PPO, PPOConfig, ppo_gradient, ppo_loss
from rlrun.config.schema import LearnersConfig, ModelConfig, TrainingConfig
from rlrun.data import columns as col
from rlrun.learning.learner import Learner
from rlrun.learning.returns import standardized_advantages
from rlrun.policies.catalog import build_module
from rlrun.policies.rl_module import ActorCritic

OBS_SPACE = gym.spaces.Box(-1, 1, (3,), np.float32)
SPACES = {
    "discrete": gym.spaces.Discrete(4),
    "continuous": gym.spaces.Box(-1, 1, (2,), np.float32),
}
ARGUMENTS = {
    "clip_param": 0.2,
    "vf_loss_coeff": 0.5,
    "vf_clip_param": None,
    "entropy_coeff": 0.01,
    "kl_coeff": 0.0,
}


def learner_for(space, **model):
    torch.manual_seed(3)
    module = build_module(OBS_SPACE, space, ModelConfig(**{"hidden": (8, 6), **model}))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return Learner(module, TrainingConfig(), LearnersConfig(device="cpu"))


def rows_for(module, space, seed, n=64, drift=0.3):
    rng = np.random.default_rng(seed)
    space.seed(seed)
    obs = torch.tensor(rng.normal(size=(n, 3)), dtype=torch.float32)
    actions = torch.tensor(np.stack([space.sample() for _ in range(n)]))
    with torch.no_grad():
        inputs = module.forward_train({col.OBS: obs})[col.ACTION_DIST_INPUTS]
        inputs = inputs + drift * torch.tensor(rng.normal(size=inputs.shape), dtype=torch.float32)
    columns = (col.ADVANTAGES, col.VALUE_TARGETS, col.VF_PREDS)
    return {
        col.OBS: obs,
        col.ACTIONS: actions,
        col.ACTION_LOGP: module.distribution.logp(inputs, actions),
        **{name: torch.tensor(rng.normal(size=n), dtype=torch.float32) for name in columns},
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("free_log_std", [True, False])
@pytest.mark.parametrize("name", SPACES)
def test_it_is_autograds(name, activation, free_log_std, normalize, seed):
    learner = learner_for(SPACES[name], activation=activation, free_log_std=free_log_std)
    module, grads = learner.module, learner.parameters.grads
    assert module.has_vjp
    rows = rows_for(module, SPACES[name], seed)
    if normalize:
        rows = standardized_advantages(rows)
    total, expected = ppo_loss(module, rows, **ARGUMENTS)
    total.backward()
    by_autograd = grads.clone()
    assert expected["clip_fraction"] > 0  # both sides of the clip are in the rows
    grads.fill_(float("nan"))  # every gradient is written, not added to
    statistics = ppo_gradient(module, rows, **ARGUMENTS)
    torch.testing.assert_close(grads, by_autograd, rtol=1e-4, atol=1e-6)
    assert statistics.keys() == expected.keys()
    for key, value in expected.items():
        assert statistics[key].item() == pytest.approx(value.item(), rel=1e-4, abs=1e-6), key


def test_rows_at_ratio_one_are_not_clipped():
    """The first minibatch has ratio exactly 1 in every row, a tie between gain and clipped gain."""
    learner = learner_for(SPACES["discrete"])
    rows = rows_for(learner.module, SPACES["discrete"], seed=0, drift=0.0)
    statistics = ppo_gradient(learner.module, rows, **ARGUMENTS)
    assert statistics["approx_kl"].item() == 0.0
    assert statistics["clip_fraction"].item() == 0.0
    closed = learner.parameters.grads.clone()
    learner.parameters.zero_grad()
    ppo_loss(learner.module, rows, **ARGUMENTS)[0].backward()
    torch.testing.assert_close(closed, learner.parameters.grads, rtol=1e-4, atol=1e-6)


class OtherForward(ActorCritic):
    """Computes something that its parent's `vjp` knows nothing of."""

    def forward_train(self, batch):
        outputs = super().forward_train(batch)
        return {**outputs, col.VF_PREDS: 2.0 * outputs[col.VF_PREDS]}


@pytest.mark.parametrize(
    "model",
    [
        {"activation": "gelu"},
        {"share_layers": True},
        {"use_lstm": True},
        {"use": f"{__name__}:OtherForward"},
    ],
)
def test_other_networks_are_left_to_autograd(model):
    assert not learner_for(SPACES["discrete"], **model).module.has_vjp


@pytest.mark.parametrize(
    ("settings", "written_out"),
    [({}, True), ({"vf_clip_param": 0.2}, False), ({"kl_coeff": 0.2}, False)],
)
def test_losses_with_further_terms_are_left_to_autograd(settings, written_out, monkeypatch):
    calls = []
    monkeypatch.setattr(
        ppo, "ppo_gradient", lambda *a, **k: calls.append(1) or ppo_gradient(*a, **k)
    )
    training = {"train_batch_size": 64, "minibatch_size": 64, "num_epochs": 2, **settings}
    algorithm = PPO(PPOConfig().environment("CartPole-v1").training(**training))
    algorithm.train()
    algorithm.stop()
    assert len(calls) == (2 if written_out else 0)
