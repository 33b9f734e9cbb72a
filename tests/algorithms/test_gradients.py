"""Gradients in closed form against autograd's of the same losses, and where they are used."""

from functools import partial
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch
from loss_cases import (
    BOX,
    DISCRETE,
    OBS_SPACE,
    actor_critic,
    on_policy_rows,
    perturbed,
    replay_rows,
)
from torch.utils._python_dispatch import TorchDispatchMode

from rlrun.algorithms import dqn, ppo, sac
from rlrun.algorithms.a2c import a2c_gradient, a2c_loss
from rlrun.algorithms.appo import BEHAVIOUR_LOGP, appo_gradient, appo_loss
from rlrun.algorithms.dqn import DQNConfig, c51_gradient, c51_loss, dqn_gradient, dqn_loss
from rlrun.algorithms.pg import pg_loss
from rlrun.algorithms.ppo import PPOConfig, ppo_gradient, ppo_loss
from rlrun.algorithms.sac import (
    SACConfig,
    critic_gradient,
    critic_loss,
    policy_gradient,
    policy_loss,
)
from rlrun.config.schema import LearnersConfig, ModelConfig, TrainingConfig
from rlrun.data import columns as col
from rlrun.data.column_data import map_leaves
from rlrun.learning.learner import Learner, reduced
from rlrun.learning.returns import standardized_advantages
from rlrun.policies.action_sampling import FORBIDDEN, LOG_STD_BOUNDS
from rlrun.policies.catalog import build_module
from rlrun.policies.distributions import Categorical
from rlrun.policies.layers import QOptions
from rlrun.policies.masked_module import with_action_mask
from rlrun.policies.privileged import PrivilegedBox
from rlrun.policies.q_network import QNetwork, build_q_network
from rlrun.policies.rl_module import ActorCritic
from rlrun.policies.soft_actor_critic import SACPolicyNetwork, TwinQNetwork

HIDDEN = {"hidden": (8, 6)}
ALPHA = torch.tensor([0.3])
NUM_ROWS = 64
PARTLY_PRIVILEGED = PrivilegedBox(OBS_SPACE.low, OBS_SPACE.high, num_seen=2)
PPO_ARGUMENTS = {
    "clip_param": 0.2,
    "vf_loss_coeff": 0.5,
    "vf_clip_param": None,
    "entropy_coeff": 0.01,
    "kl_coeff": 0.0,
}


def model(**settings):
    return ModelConfig(**{**HIDDEN, "activation": "relu", **settings})


def q_network(**settings):
    options = QOptions(
        **{
            name: settings.pop(name)
            for name in ("dueling", "noisy", "num_atoms", "v_min", "v_max")
            if name in settings
        },
        hiddens=settings.pop("streams", None),
    )
    return perturbed(build_q_network(OBS_SPACE, DISCRETE, model(**settings), options=options))


def learner_of(module):
    return Learner(module, TrainingConfig(), LearnersConfig(device="cpu"))


def in_arrays(batch):
    """Rows as gradients in closed form take them."""
    return {name: map_leaves(torch.Tensor.numpy, column) for name, column in batch.items()}


def assert_same(learner, loss, gradient, batch, arguments):
    grads = learner.parameters.grads
    total, expected = loss(learner.module, batch, **arguments)
    grads.zero_()
    total.backward(inputs=list(learner.module.parameters()))
    by_autograd = grads.clone()
    assert by_autograd.count_nonzero() > 0.5 * len(by_autograd)
    grads.fill_(float("nan"))  # every gradient is written, not added to
    statistics = gradient(learner.module, in_arrays(batch), **arguments)
    torch.testing.assert_close(grads, by_autograd, rtol=1e-4, atol=1e-6)
    assert statistics.keys() == expected.keys()
    for key, value in expected.items():
        computed = torch.as_tensor(statistics[key], dtype=torch.float32)
        torch.testing.assert_close(computed, value, rtol=1e-4, atol=1e-5, msg=key)
        assert not computed.requires_grad


class CalledOperations(TorchDispatchMode):
    """Notes the names of torch's operations that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names.append(operation.overloadpacket.__name__)
        return operation(*args, **(kwargs or {}))


def test_an_update_in_closed_form_calls_torch_for_the_optimizer_step_alone():
    """Between operations of numpy a call of torch takes ten times as long as elsewhere."""
    torch.manual_seed(0)
    learner = Learner(q_network(), TrainingConfig(grad_clip=1e-3), LearnersConfig(device="cpu"))
    rows = in_arrays(replay_rows(DISCRETE, NUM_ROWS, 0))
    arguments = {"target": q_network(), "double_q": True}

    def update():
        statistics = learner.step(rows, dqn_loss, arguments, lr=1e-3, gradient=dqn_gradient)
        assert statistics.pop("grad_norm") > 1e-3  # so they are clipped
        del statistics["td_errors"]
        assert learner.has_finite_weights()
        return learner.get_weights(), reduced([statistics])

    update()  # looks up where parameters lie
    with CalledOperations() as called:
        update()
    assert called.names == ["_fused_adam_"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("free_log_std", [True, False])
@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_ppo(space, activation, free_log_std, normalize, seed):
    settings = {"activation": activation, "free_log_std": free_log_std}
    learner = learner_of(actor_critic(space, **HIDDEN, **settings))
    assert learner.module.has_vjp
    batch = on_policy_rows(learner.module, space, NUM_ROWS, seed=seed)
    if normalize:
        batch = standardized_advantages(batch)
    clipped = ppo_loss(learner.module, batch, **PPO_ARGUMENTS)[1]["clip_fraction"]
    assert 0 < clipped < 1
    assert_same(learner, ppo_loss, ppo_gradient, batch, PPO_ARGUMENTS)


@pytest.mark.parametrize("value_hidden", [(), (9, 7, 5)])
@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_ppo_with_other_layers_of_the_value_function(space, value_hidden):
    layers = {**HIDDEN, "head_hidden": (4,), "value_hidden": value_hidden}
    learner = learner_of(actor_critic(space, **layers))
    assert learner.module.has_vjp
    widths = [layer.out_features for layer in learner.module.vf.children()]
    assert widths == [*value_hidden, 1]
    batch = on_policy_rows(learner.module, space, NUM_ROWS)
    assert_same(learner, ppo_loss, ppo_gradient, batch, PPO_ARGUMENTS)


@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_ppo_with_privileged_observations(space):
    module = perturbed(ActorCritic(PARTLY_PRIVILEGED, space, model(privileged=["last"])))
    learner = learner_of(module)
    assert module.has_vjp
    assert (module.pi.get_submodule("0").in_features, module.vf.get_submodule("0").in_features) == (
        2,
        3,
    )
    batch = on_policy_rows(module, space, NUM_ROWS)
    assert_same(learner, ppo_loss, ppo_gradient, batch, PPO_ARGUMENTS)


def test_sac_with_privileged_observations():
    torch.manual_seed(0)
    policy, critics, target = (
        perturbed(kind(PARTLY_PRIVILEGED, BOX, model(privileged=["last"])))
        for kind in (SACPolicyNetwork, TwinQNetwork, TwinQNetwork)
    )
    batch = replay_rows(BOX, NUM_ROWS, 0)
    arguments = {"policy": policy, "target": target, "alpha": ALPHA}
    assert_same(learner_of(critics), critic_loss, critic_gradient, batch, arguments)
    arguments = {"critics": critics, "alpha": ALPHA}
    assert_same(learner_of(policy), policy_loss, policy_gradient, batch, arguments)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["discrete", "box"])
@pytest.mark.parametrize(
    "terms",
    [
        {"vf_clip_param": 0.4},
        {"vf_error_clip": 0.5},
        {"kl_coeff": 0.3},
        {"vf_clip_param": 0.4, "vf_error_clip": 0.5, "kl_coeff": 0.3},
    ],
    ids="+".join,
)
def test_further_terms_of_ppo(terms, space, seed):
    learner = learner_of(actor_critic(space, **HIDDEN))
    batch = on_policy_rows(learner.module, space, NUM_ROWS, seed=seed)
    with torch.no_grad():
        outputs = learner.module.forward_train(batch)
    values, inputs = outputs[col.VF_PREDS], outputs[col.ACTION_DIST_INPUTS]
    batch[col.VF_PREDS] = values + 0.6 * torch.randn(NUM_ROWS)  # some are clipped
    batch[col.VALUE_TARGETS] = values + torch.randn(NUM_ROWS)  # some errors are beyond the bound
    batch[col.ACTION_DIST_INPUTS] = inputs + 0.5 * torch.randn(inputs.shape)
    plain, _ = ppo_loss(learner.module, batch, **PPO_ARGUMENTS)
    arguments = {**PPO_ARGUMENTS, **terms}
    assert ppo_loss(learner.module, batch, **arguments)[0] != plain
    assert_same(learner, ppo_loss, ppo_gradient, batch, arguments)


Q_NETWORK = partial(build_q_network, options=QOptions())
MASK_SPACE = gym.spaces.Box(0, 1, (DISCRETE.n,), np.int8)


def masked(factory):
    """A network whose observations have a mask."""
    space = gym.spaces.Dict(observation=OBS_SPACE, action_mask=MASK_SPACE)
    return perturbed(with_action_mask(factory, space, DISCRETE, model()))


def with_masks(observations, actions):
    """The observations, with masks that allow these actions and some others."""
    mask = torch.rand(NUM_ROWS, DISCRETE.n) < 0.4
    mask[torch.arange(NUM_ROWS), actions] = True
    return {"observation": observations, "action_mask": mask.to(torch.int8)}


def test_ppo_with_masks():
    torch.manual_seed(0)
    learner = learner_of(masked(build_module))
    batch = on_policy_rows(actor_critic(DISCRETE, **HIDDEN), DISCRETE, NUM_ROWS)
    actions, inputs = batch[col.ACTIONS], batch[col.ACTION_DIST_INPUTS]
    batch[col.OBS] = seen = with_masks(batch[col.OBS], actions)
    inputs = torch.where(seen["action_mask"] != 0, inputs, float(FORBIDDEN))
    logp = learner.module.distribution.logp(inputs, actions)
    batch |= {col.ACTION_DIST_INPUTS: inputs, col.ACTION_LOGP: logp}
    assert_same(learner, ppo_loss, ppo_gradient, batch, {**PPO_ARGUMENTS, "kl_coeff": 0.3})


@pytest.mark.parametrize("double_q", [True, False])
def test_dqn_with_masks(double_q):
    torch.manual_seed(0)
    learner, target = learner_of(masked(Q_NETWORK)), masked(Q_NETWORK)
    batch = replay_rows(DISCRETE, NUM_ROWS)
    for name in (col.OBS, col.NEXT_OBS):
        batch[name] = with_masks(batch[name], batch[col.ACTIONS])
    assert_same(learner, dqn_loss, dqn_gradient, batch, {"target": target, "double_q": double_q})


@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_a2c_which_is_impala_too(space):
    learner = learner_of(actor_critic(space, **HIDDEN))
    batch = on_policy_rows(learner.module, space, NUM_ROWS)
    arguments = {"vf_loss_coeff": 0.5, "entropy_coeff": 0.01}
    assert_same(learner, a2c_loss, a2c_gradient, batch, arguments)


def test_gradients_of_microbatches_add_up_to_that_of_their_batch():
    learner = learner_of(actor_critic(DISCRETE, **HIDDEN))
    batch = on_policy_rows(learner.module, DISCRETE, NUM_ROWS)
    arguments = {"vf_loss_coeff": 0.5, "entropy_coeff": 0.01}
    found = []
    for bounds in ([0, NUM_ROWS], [0, 10, 50, NUM_ROWS]):
        parts = [{name: x[a:b] for name, x in batch.items()} for a, b in pairwise(bounds)]
        for gradient, rows in ((None, parts), (a2c_gradient, [*map(in_arrays, parts)])):
            means = learner.compute_gradients(rows, NUM_ROWS, a2c_loss, arguments, gradient)
            found.append(
                (learner.parameters.grads.clone(), {k: float(x) for k, x in means.items()})
            )
    (expected, statistics), *others = found
    for grads, means in others:
        torch.testing.assert_close(grads, expected, rtol=1e-4, atol=1e-6)
        assert means == pytest.approx(statistics, rel=1e-4)


@pytest.mark.parametrize(
    ("loss", "arguments"),
    [
        (pg_loss, {}),
        (a2c_loss, {"vf_loss_coeff": 0.5, "entropy_coeff": 0.01}),
        (ppo_loss, {**PPO_ARGUMENTS, "kl_coeff": 0.3}),
    ],
)
def test_statistics_do_not_grow_with_the_number_of_rows(loss, arguments):
    module = actor_critic(DISCRETE, **HIDDEN)
    rows = on_policy_rows(module, DISCRETE, NUM_ROWS)
    twice = {name: torch.cat([column, column]) for name, column in rows.items()}
    (once, of_once), (again, of_twice) = (loss(module, each, **arguments) for each in (rows, twice))
    torch.testing.assert_close(again, once)
    torch.testing.assert_close(of_twice, of_once)


@pytest.mark.parametrize("kl_coeff", [0.0, 0.3])
@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_appo(space, kl_coeff):
    learner = learner_of(actor_critic(space, **HIDDEN))
    batch = on_policy_rows(learner.module, space, NUM_ROWS)
    with torch.no_grad():
        inputs = learner.module.forward_train(batch)[col.ACTION_DIST_INPUTS]
    batch[col.ACTION_DIST_INPUTS] = inputs + 0.5 * torch.randn(inputs.shape)
    batch[BEHAVIOUR_LOGP] = batch[col.ACTION_LOGP] + 2.0 * torch.randn(NUM_ROWS)
    arguments = {"clip_param": 0.2, "vf_loss_coeff": 0.5, "entropy_coeff": 0.01}
    assert_same(learner, appo_loss, appo_gradient, batch, {**arguments, "kl_coeff": kl_coeff})


def test_ppo_at_ratio_one_clips_nothing():
    """The first minibatch has ratio exactly 1 in every row, a tie between gain and clipped gain."""
    learner = learner_of(actor_critic(DISCRETE, **HIDDEN))
    batch = on_policy_rows(learner.module, DISCRETE, NUM_ROWS, drift=0.0)
    rows = in_arrays(batch)
    inputs, *_ = learner.module.vjp(rows)
    logp, *_ = learner.module.distribution.logp_entropy_vjp(inputs, rows[col.ACTIONS])
    batch[col.ACTION_LOGP] = torch.from_numpy(logp)
    statistics = ppo_gradient(learner.module, in_arrays(batch), **PPO_ARGUMENTS)
    assert statistics["approx_kl"] == statistics["clip_fraction"] == 0.0
    assert_same(learner, ppo_loss, ppo_gradient, batch, PPO_ARGUMENTS)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("dueling", [True, False])
def test_dqn(dueling, activation, double_q, seed):
    torch.manual_seed(seed)
    streams = (5,) if seed else None
    learner = learner_of(q_network(dueling=dueling, activation=activation, streams=streams))
    assert learner.module.has_vjp
    arguments = {"target": q_network(dueling=dueling), "double_q": double_q}
    arguments["value_rescaling"] = seed == 2
    batch = replay_rows(DISCRETE, NUM_ROWS, seed)
    errors = dqn_loss(learner.module, batch, **arguments)[1]["td_errors"].abs()
    assert (errors > 1).any()  # both parts of the Huber loss
    assert (errors < 1).any()
    assert_same(learner, dqn_loss, dqn_gradient, batch, arguments)


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize(("dueling", "streams"), [(True, None), (False, None), (False, (5,))])
def test_c51(dueling, streams, double_q, noisy):
    torch.manual_seed(0)
    settings = {"num_atoms": 7, "dueling": dueling, "streams": streams, "noisy": noisy}
    module, target = (q_network(**settings, v_min=-3.0, v_max=3.0) for _ in range(2))
    for network in (module, target):
        network.draw_noise(np.random.default_rng(1))
    learner = learner_of(module)
    assert learner.module.has_vjp
    batch, arguments = replay_rows(DISCRETE, NUM_ROWS), {"target": target, "double_q": double_q}
    assert_same(learner, c51_loss, c51_gradient, batch, arguments)
    batch[col.NEXT_OBS][batch[col.TERMINATEDS]] = float("inf")
    assert_same(learner, c51_loss, c51_gradient, batch, arguments)
    batch[col.REWARDS][0] = float("nan")  # which ends training, with a message
    assert np.isnan(c51_gradient(learner.module, in_arrays(batch), **arguments)["total_loss"])


def test_c51_with_masks():
    torch.manual_seed(0)
    options = QOptions(num_atoms=7, v_min=-3.0, v_max=3.0)
    module, target = (masked(partial(build_q_network, options=options)) for _ in range(2))
    batch = replay_rows(DISCRETE, NUM_ROWS)
    for name in (col.OBS, col.NEXT_OBS):
        batch[name] = with_masks(batch[name], batch[col.ACTIONS])
    arguments = {"target": target, "double_q": True}
    assert_same(learner_of(module), c51_loss, c51_gradient, batch, arguments)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("activation", "value_hidden"), [("tanh", None), ("relu", None), ("tanh", (9, 7, 5))]
)
def test_sac(activation, value_hidden, seed):
    torch.manual_seed(seed)
    settings = model(activation=activation, value_hidden=value_hidden)
    policy, critics, target = (
        perturbed(kind(OBS_SPACE, BOX, settings))
        for kind in (SACPolicyNetwork, TwinQNetwork, TwinQNetwork)
    )
    with torch.no_grad():  # some log standard deviations are out of bounds, where they stay
        policy.pi.last.bias[2] += LOG_STD_BOUNDS[1]
    actor, critic = learner_of(policy), learner_of(critics)
    batch = replay_rows(BOX, NUM_ROWS, seed)
    log_std = policy.forward_train(batch)[col.ACTION_DIST_INPUTS][:, 2]
    assert (log_std > LOG_STD_BOUNDS[1]).any()
    assert (log_std < LOG_STD_BOUNDS[1]).any()
    arguments = {"policy": policy, "target": target, "alpha": ALPHA}
    assert_same(critic, critic_loss, critic_gradient, batch, arguments)
    before = critic.parameters.grads.clone()
    assert_same(actor, policy_loss, policy_gradient, batch, {"critics": critics, "alpha": ALPHA})
    # The policy's gradient flows through the critics, and leaves theirs alone.
    assert torch.equal(critic.parameters.grads, before)


def test_observations_in_several_dimensions_are_flattened():
    """Columns ``[N, 3, 1]`` are what ``[N, 3]`` is to a network of flat layers."""
    module = actor_critic(DISCRETE, **HIDDEN)
    batch = on_policy_rows(module, DISCRETE, NUM_ROWS)
    batch[col.OBS] = batch[col.OBS][..., None]
    assert_same(learner_of(module), ppo_loss, ppo_gradient, batch, PPO_ARGUMENTS)
    batches = [replay_rows(space, NUM_ROWS) for space in (DISCRETE, BOX)]
    for batch in batches:
        for name in (col.OBS, col.NEXT_OBS):
            batch[name] = batch[name][..., None]
    arguments = {"target": q_network(), "double_q": True}
    assert_same(learner_of(q_network()), dqn_loss, dqn_gradient, batches[0], arguments)
    policy, critics, target = (
        perturbed(kind(OBS_SPACE, BOX, model()))
        for kind in (SACPolicyNetwork, TwinQNetwork, TwinQNetwork)
    )
    arguments = {"policy": policy, "target": target, "alpha": ALPHA}
    assert_same(learner_of(critics), critic_loss, critic_gradient, batches[1], arguments)
    arguments = {"critics": critics, "alpha": ALPHA}
    assert_same(learner_of(policy), policy_loss, policy_gradient, batches[1], arguments)


class OtherValues(ActorCritic):
    """Computes something that its parent's `vjp` knows nothing of."""

    def forward_train(self, batch):
        outputs = super().forward_train(batch)
        return {**outputs, col.VF_PREDS: 2.0 * outputs[col.VF_PREDS]}


class Tempered(Categorical):
    """Another distribution than its parent, whose closed form and `logp_entropy` it inherits."""

    def __init__(self, space):
        super().__init__(int(space.n))
        self.num_noise = self.num_inputs

    def sample(self, inputs, noise):
        return self.mode(inputs / 5 + noise)

    def mode(self, inputs):
        return inputs.argmax(-1)

    def logp(self, inputs, actions):
        return super().logp(inputs / 5, actions)

    def entropy(self, inputs):
        return super().entropy(inputs / 5)


class OtherQValues(QNetwork):
    """The same of a Q-network."""

    def forward_train(self, batch):
        return {name: 2.0 * value for name, value in super().forward_train(batch).items()}


@pytest.mark.parametrize(
    "settings",
    [
        {"activation": "gelu"},
        {"share_layers": True},
        {"use_lstm": True},
        {"use": f"{__name__}:OtherValues"},
        {"distribution": f"{__name__}:Tempered"},
    ],
)
def test_other_actor_critics_are_left_to_autograd(settings):
    assert not actor_critic(DISCRETE, **HIDDEN, **settings).has_vjp


def test_a_distribution_derived_from_another_is_learned_as_it_says_itself():
    module = actor_critic(DISCRETE, **HIDDEN, distribution=f"{__name__}:Tempered")
    inputs, actions = torch.randn(NUM_ROWS, 4), torch.arange(NUM_ROWS) % 4
    logp, entropy = module.distribution.logp_entropy(inputs, actions)
    assert torch.equal(logp, module.distribution.logp(inputs, actions))
    assert torch.equal(entropy, module.distribution.entropy(inputs))
    assert Categorical.has_kl
    assert not module.distribution.has_kl


@pytest.mark.parametrize("settings", [{"activation": "gelu"}, {"use_lstm": True}])
def test_other_q_networks_are_left_to_autograd(settings):
    assert q_network().has_vjp
    assert not q_network(**settings).has_vjp
    assert not OtherQValues(OBS_SPACE, DISCRETE, model()).has_vjp


def test_discrete_actions_and_other_activations_of_sac_are_left_to_autograd():
    assert not TwinQNetwork(OBS_SPACE, DISCRETE, model()).has_vjp
    for kind in (TwinQNetwork, SACPolicyNetwork):
        assert kind(OBS_SPACE, BOX, model()).has_vjp
        assert not kind(OBS_SPACE, BOX, model(activation="silu")).has_vjp


PPO_TRAINING = {"train_batch_size": 64, "minibatch_size": 16, "num_epochs": 2}
REPLAY_TRAINING = {
    "train_batch_size": 64,
    "minibatch_size": 16,
    "training_intensity": 1.0,
    "num_steps_sampled_before_learning_starts": 32,
}


@pytest.mark.parametrize(
    ("module", "config", "settings", "names"),
    [
        (ppo, PPOConfig, PPO_TRAINING, ["ppo_gradient"]),
        (ppo, PPOConfig, {**PPO_TRAINING, "vf_clip_param": 0.2}, ["ppo_gradient"]),
        (ppo, PPOConfig, {**PPO_TRAINING, "vf_error_clip": 9.0}, ["ppo_gradient"]),
        (ppo, PPOConfig, {**PPO_TRAINING, "kl_coeff": 0.2}, ["ppo_gradient"]),
        (dqn, DQNConfig, REPLAY_TRAINING, ["dqn_gradient"]),
        (sac, SACConfig, REPLAY_TRAINING, ["critic_gradient", "policy_gradient"]),
    ],
)
def test_each_update_uses_them(module, config, settings, names, monkeypatch, built):
    calls = []
    for name in ("ppo_gradient", "dqn_gradient", "critic_gradient", "policy_gradient"):
        if hasattr(module, name):
            real = getattr(module, name)
            monkeypatch.setattr(
                module,
                name,
                lambda *a, _real=real, _name=name, **k: calls.append(_name) or _real(*a, **k),
            )
    env = "Pendulum-v1" if module is sac else "CartPole-v1"
    result = built(config().environment(env).training(**settings)).train()
    updates = int(result["learners"]["default_policy"]["learner_stats"]["num_updates"])
    assert updates >= 2
    assert sorted(calls) == sorted(names * updates)
