"""SAC: soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), continuous and discrete.

    M  rows of a minibatch      A  dimensions of a continuous action      n  discrete actions

An update takes one minibatch: the two critics learn from it, then the policy from the critics, then
the temperature alpha moves the policy's entropy towards its target, then the critics' target
follows them a little (tau). Actions are in (-1, 1) everywhere in this file; connectors stretch them
to the environment's bounds (`connectors.normalize_actions`).

The discrete form (Christodoulou 2019, arXiv:1910.07207) takes expectations over all actions where
the continuous one takes a sample. The buffer is part of a checkpoint only with
`replay.store_in_checkpoints`, as for DQN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rlrun.algorithms.replay import ReplayAlgorithm, Updater, replayed_rows
from rlrun.algorithms.replay_settings import ReplayTraining
from rlrun.algorithms.targets import TargetNetwork, bellman_targets
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.policies import PolicySettings
from rlrun.config.problems import misfit
from rlrun.config.schedules import LearningRate, Schedule, value_at
from rlrun.config.schema import Count
from rlrun.config.section import Positive, Real
from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.nested import ACTION_MASK, has_action_mask
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import Learner
from rlrun.learning.loaded_batch import as_tensors
from rlrun.learning.losses import Statistics, closed_form
from rlrun.learning.optimizers import FlatAdam
from rlrun.policies.distributions import squashed_sample, squashed_sample_vjp
from rlrun.policies.masked_module import ModuleFactory
from rlrun.policies.rl_module import RLModule
from rlrun.policies.sac_policy import build_sac_policy
from rlrun.policies.soft_actor_critic import Q_VALUES, SACPolicyNetwork, TwinQNetwork
from rlrun.sampling.runner_messages import PolicyFactory

NOISE, NEXT_NOISE = "noise", "new_noise"
"""Rows ``[M, A]`` from which the actions in ``obs`` and in ``new_obs`` are made."""
CRITICS = "critics."  # before the names of their weights


class SACTraining(ReplayTraining):
    """SAC's own settings; `exploration` and `replay` are sections of their own."""

    lr: LearningRate = 3e-4
    """Learning rate of the policy."""
    critic_lr: LearningRate | None = None
    """Learning rate of the critics; null is `lr`."""
    alpha_lr: LearningRate | None = None
    """Learning rate of the temperature alpha; null is `lr`, 0 keeps alpha constant."""
    minibatch_size: Count = 256
    """Transitions replayed for one update."""
    training_intensity: Positive = 256.0
    """Transitions replayed for each env step sampled; 256 is a minibatch of 256 for every step."""
    num_steps_sampled_before_learning_starts: Count = 1500
    """Env steps put into an empty replay buffer before it is learned from."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """How far each update moves the target critics towards the critics."""
    target_network_update_freq: Count = 1
    """Env steps between updates of the target critics, which follow an update of the critics; 1
    makes one after each."""
    initial_alpha: Positive = 1.0
    """Initial temperature alpha, the weight of the entropy beside the reward."""
    target_entropy: Real | None = None
    """Entropy that alpha is adapted to reach; null is -A for a Box of A actions, and 0.98 log n for
    n Discrete actions."""
    noise_correlation: float = Field(default=0.0, ge=0, lt=1)
    """Correlation between the noise of one action and the next in an episode; for a Box only.
    Lasting noise explores further where independent pushes would cancel out."""


class SACConfig(AlgorithmConfig):
    """Builds a SAC experiment in Python."""

    algorithm = "SAC"


def critic_loss(
    module: RLModule, rows: dict[str, Tensor], *, policy: RLModule, target: RLModule, alpha: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Half the squared error of both critics (eq. 5 and 6), weighted row by row.

        y = R + discount (1 - terminated) (min_i Q_target,i(s', a') - alpha log pi(a'|s'))

    with a' fresh from ``policy``, or the expectation over all a' where actions are discrete. No
    gradient flows into y.

    Args:
        rows: as a replay buffer samples them, and ``new_noise`` ``[M, A]`` for a Box.
        target: the critics' slow copies.
        alpha: ``[1]``.

    Returns:
        The loss, a scalar with gradient, and statistics without; ``td_errors`` is ``[M]``.
    """
    with torch.no_grad():
        # Entropy is a part of the value of a state (eq. 3 and 5).
        value = soft_value(policy, target, rows[col.NEXT_OBS], rows.get(NEXT_NOISE), alpha)
        targets = bellman_targets(rows, value)
    values = module.forward_train(rows)[Q_VALUES]
    if NEXT_NOISE not in rows:
        actions = rows[col.ACTIONS][None, :, None].expand(2, -1, 1)
        values = values.gather(2, actions).squeeze(2)
    errors = values - targets
    loss = 0.5 * (rows[col.WEIGHTS] * errors.square()).mean(1).sum()
    return loss, critic_statistics(loss.detach(), values.detach(), errors.detach())


@closed_form
def critic_gradient(
    module: TwinQNetwork,
    rows: dict[str, Array],
    *,
    policy: SACPolicyNetwork,
    target: TwinQNetwork,
    alpha: Tensor,
) -> dict[str, Any]:
    """The `Gradient` of `critic_loss` in closed form, for a Box and networks that have a `vjp`."""
    next_rows = {col.OBS: rows[col.NEXT_OBS]}
    next_rows[col.ACTIONS], logp, _ = squashed_sample_vjp(
        policy.vjp(next_rows)[0], rows[NEXT_NOISE]
    )
    next_values, _ = target.vjp(next_rows)
    targets = bellman_targets(rows, next_values.min(0) - alpha.item() * logp)
    values, backward = module.vjp(rows)
    errors = values - targets
    weighted = rows[col.WEIGHTS] * errors
    backward.to_parameters(weighted / len(targets))
    return critic_statistics(0.5 * (weighted * errors).mean(1).sum(), values, errors)


def soft_value(
    policy: RLModule, critics: RLModule, obs: Tensor, noise: Tensor | None, alpha: Tensor
) -> Tensor:
    """``min_i Q_i(s, a) - alpha log pi(a|s)`` ``[M]``: for a sampled a, or in expectation.

    Args:
        noise: ``[M, A]``, from which a is made; None for discrete actions, in expectation over all.
    """
    inputs = policy.forward_train({col.OBS: obs})[col.ACTION_DIST_INPUTS]
    if noise is None:
        logp = inputs.log_softmax(-1)
        first, second = critics.forward_train({col.OBS: obs})[Q_VALUES]
        return (logp.exp() * (torch.minimum(first, second) - alpha * logp)).sum(-1)
    actions, logp = squashed_sample(inputs, noise)
    first, second = critics.forward_train({col.OBS: obs, col.ACTIONS: actions})[Q_VALUES]
    return torch.minimum(first, second) - alpha * logp


def critic_statistics(loss: Any, values: Any, errors: Any) -> dict[str, Any]:
    """Statistics of the critics' loss; values and errors are ``[2, M]``, tensors or arrays."""
    td_errors = abs(errors).mean(0)
    return {
        "critic_loss": loss,
        "q_mean": values.mean(),
        "td_error_mean": td_errors.mean(),
        "td_errors": td_errors,
    }


def policy_loss(
    module: RLModule, rows: dict[str, Tensor], *, critics: RLModule, alpha: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """``alpha log pi(a|s) - min_i Q_i(s, a)``, averaged (eq. 7 and 9).

    Continuous actions are sampled, and the gradient flows through them into the policy. Discrete
    ones are summed out, with the critics' values as constants.

    Args:
        rows: ``obs``, and ``noise`` ``[M, A]`` for a Box.
    """
    inputs = module.forward_train(rows)[col.ACTION_DIST_INPUTS]
    if NOISE in rows:
        actions, logp = squashed_sample(inputs, rows[NOISE])
        first, second = critics.forward_train({col.OBS: rows[col.OBS], col.ACTIONS: actions})[
            Q_VALUES
        ]
        loss = (alpha * logp - torch.minimum(first, second)).mean()
        entropy = -logp.detach().mean()
    else:
        logp = inputs.log_softmax(-1)
        with torch.no_grad():
            first, second = critics.forward_train(rows)[Q_VALUES]
        probabilities = logp.exp()
        loss = (probabilities * (alpha * logp - torch.minimum(first, second))).sum(-1).mean()
        entropy = -(probabilities * logp).detach().sum(-1).mean()
    return loss, {"policy_loss": loss.detach(), "entropy": entropy}


@closed_form
def policy_gradient(
    module: SACPolicyNetwork, rows: dict[str, Array], *, critics: TwinQNetwork, alpha: Tensor
) -> dict[str, Any]:
    """The `Gradient` of `policy_loss` in closed form, for a Box and networks that have a `vjp`."""
    inputs, backward = module.vjp(rows)
    actions, logp, sample_backward = squashed_sample_vjp(inputs, rows[NOISE])
    values, critics_backward = critics.vjp({col.OBS: rows[col.OBS], col.ACTIONS: actions})
    num_rows, weight = len(logp), alpha.item()
    first_is_smaller = values[0] <= values[1]
    d_values = np.stack((first_is_smaller, ~first_is_smaller)) * np.float32(-1.0 / num_rows)
    d_actions = critics_backward.to_input(d_values)[:, -actions.shape[1] :]
    backward(sample_backward(d_actions, weight / num_rows))
    return {"policy_loss": (weight * logp - values.min(0)).mean(), "entropy": -logp.mean()}


class SAC(ReplayAlgorithm[SACTraining, "SACUpdater"]):
    """Sample a step, learn from the buffer, sync weights, in turns."""

    Training = SACTraining
    Config = SACConfig
    round_steps = 1
    exploration_types = (
        *("StochasticSampling", "Random", "GaussianNoise", "OrnsteinUhlenbeckNoise"),
        "ParameterNoise",
    )
    update_statistics = (
        *("critic_loss", "policy_loss", "q_mean", "td_error_mean"),
        *("entropy", "alpha", "critic_grad_norm", "policy_grad_norm"),
    )

    @classmethod
    def policy_problems(cls, settings: PolicySettings) -> Iterator[tuple[str, str]]:
        default = cls.exploration_types[0]
        kind = settings.exploration.type or default
        if cls.training_in(settings).noise_correlation and kind != default:
            shown = kind if isinstance(kind, str) else kind.use
            message = f"it does not apply to {shown}; remove this key"
            yield "training.noise_correlation", message
        if settings.model.head_hidden:
            yield "model.head_hidden", "append these layers to model.hidden, and remove this key"
        if settings.model.use_sde and kind != default:
            yield "exploration.type", "model.use_sde is noise of its own kind; remove this key"
        if settings.model.use_sde and cls.training_in(settings).noise_correlation:
            message = "model.sde_sample_freq says how long noise lasts; remove this key"
            yield "training.noise_correlation", message

    def make_updater(self, policy_id: str) -> SACUpdater:
        training, learner = self.training_of(policy_id), self.learners[policy_id]
        _, space = self.policies.module_spaces(policy_id)
        if isinstance(space, gym.spaces.Box) and not self.config.connectors.normalize_actions:
            message = "SAC acts in (-1, 1), which must be stretched to the bounds; remove this key"
            raise misfit("connectors.normalize_actions", message)
        critics, target = (self.build_module(policy_id, TwinQNetwork) for _ in range(2))
        critic = Learner(critics, training, self.config.learners)
        return SACUpdater(learner, critic, target, training, space)

    def module_factory(self, policy_id: str) -> ModuleFactory:
        return SACPolicyNetwork

    def policy_factory(self, policy_id: str) -> PolicyFactory:
        return partial(
            build_sac_policy,
            exploration=self.policies.settings[policy_id].exploration,
            noise_correlation=self.training_of(policy_id).noise_correlation,
        )

    def add_policy(self, policy_id: str, *, like: str, train: bool = False) -> None:
        """See `Algorithm.add_policy`; critics and temperature are copied from ``like`` as well."""
        super().add_policy(policy_id, like=like, train=train)
        if train and self.policies[like].train:
            updaters = self.replay.updaters
            updaters[policy_id].begin_like(updaters[like])

    def get_weights(self) -> dict[str, np.ndarray]:
        """Copies of all weights by parameter name; the critics' begin with `critics.`."""
        weights = super().get_weights()
        for prefix, critic in self._critics():
            weights |= {f"{prefix}{name}": x for name, x in critic.named_weights().items()}
        return weights

    def buffer_names(self) -> set[str]:
        """Names of the weights that are buffers; see `get_weights`."""
        critics = self._critics()
        own = {f"{prefix}{name}" for prefix, each in critics for name in each.parameters.buffers}
        return super().buffer_names() | own

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Load weights by name; the critics' targets become copies of them."""
        for prefix, critic in self._critics():
            named = {name: x for name, x in weights.items() if name.startswith(prefix)}
            critic.load_named_weights({name.removeprefix(prefix): x for name, x in named.items()})
        # A frozen policy has no critics, but weights from when it still learned include them.
        prefixes = tuple(f"{policy_id}/{CRITICS}" for policy_id in self.learners)
        own = {name: x for name, x in weights.items() if not name.startswith(prefixes)}
        super().set_weights(own)

    def _critics(self) -> list[tuple[str, Learner]]:
        """The prefix of the weights' names and the critics, of each policy that learns."""
        updaters = self.replay.updaters
        return [(f"{name}/{CRITICS}", updaters[name].critic) for name in self.policies.trained]


class SACUpdater(Updater):
    """Updates one policy; owns its critics, their target, and the temperature.

    Args:
        learner: of the policy network.
        critic: of both critics.
        target: another network like the critics', for their slow copies.
    """

    def __init__(
        self,
        learner: Learner,
        critic: Learner,
        target: RLModule,
        training: SACTraining,
        action_space: gym.Space[Any],
    ) -> None:
        super().__init__(TargetNetwork(target, critic))
        self._learner, self.critic, self._training = learner, critic, training
        self._continuous = isinstance(action_space, gym.spaces.Box)
        entropy = training.target_entropy
        self._masked = entropy is None and has_action_mask(learner.module.observation_space)
        if entropy is None:
            entropy = default_target_entropy(action_space)
        self.temperature = Temperature(training.initial_alpha, entropy, learner.device)
        # As one CUDA graph on a GPU, not as one for each loss and each step of an optimizer.
        self._step = learner.recorded(self._take_step)

    def coefficients(self, env_steps: int) -> dict[str, float]:
        return {"lr": value_at(self._training.lr, env_steps)}

    def _lr_of(self, schedule: Schedule | None, env_steps: int) -> float:
        return value_at(self._training.lr if schedule is None else schedule, env_steps)

    def update(self, batch: SampleBatch, rng: np.random.Generator, env_steps: int) -> Statistics:
        """One step of the critics, the policy, the temperature and the target."""
        training = self._training
        rows = replayed_rows(batch)
        if self._continuous:
            shape = (2, *rows[col.ACTIONS].shape)
            rows[NOISE], rows[NEXT_NOISE] = rng.standard_normal(shape, dtype=np.float32)
        rates = {
            "lr": value_at(training.lr, env_steps),
            "critic_lr": self._lr_of(training.critic_lr, env_steps),
            "alpha_lr": self._lr_of(training.alpha_lr, env_steps),
        }
        return self._step({"rows": rows, **rates})

    def _take_step(self, inputs: Mapping[str, Any]) -> Statistics:
        """The update, given its rows and learning rates."""
        learner, critic, rows = self._learner, self.critic, inputs["rows"]
        if not critic.module.has_vjp:
            rows = as_tensors(rows, learner.device)  # once for both
        alpha = self.temperature.alpha.clone()  # what both losses take, before its own step
        policy, critics = learner.module, critic.module
        critic_stats = critic.step(
            rows,
            critic_loss,
            {"policy": policy, "target": self.target.module, "alpha": alpha},
            lr=inputs["critic_lr"],
            gradient=critic_gradient,
        )
        policy_stats = learner.step(
            rows,
            policy_loss,
            {"critics": critics, "alpha": alpha},
            lr=inputs["lr"],
            gradient=policy_gradient if critics.has_vjp else None,
        )
        if self._masked:
            self.temperature.target_entropy = masked_target_entropy(rows[col.OBS])
        self.temperature.step(policy_stats["entropy"], inputs["alpha_lr"])
        if self._training.target_network_update_freq == 1:
            self.target.follow(self._training.tau)
        grad_norms = {
            "critic_grad_norm": critic_stats.pop("grad_norm"),
            "policy_grad_norm": policy_stats.pop("grad_norm"),
        }
        return {**critic_stats, **policy_stats, **grad_norms, "alpha": alpha[0]}

    def end_round(self, steps: int) -> None:
        every, tau = self._training.target_network_update_freq, self._training.tau
        if every > 1 and self.target.due(steps, every):
            self.target.follow(tau)

    def begin_like(self, other: SACUpdater) -> None:
        """Copy the critics, their targets and the temperature of another policy."""
        self.critic.load_named_weights(other.critic.named_weights())
        self.target.copy()
        self.temperature.set_state(other.temperature.get_state())

    def get_state(self) -> dict[str, Any]:
        critic, temperature = self.critic.get_state(), self.temperature.get_state()
        return {**super().get_state(), "critic": critic, "temperature": temperature}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.critic.set_state(state["critic"])
        self.temperature.set_state(state["temperature"])


class Temperature:
    """Alpha, learned by minimising ``log alpha (entropy - target_entropy)``.

    The paper (eq. 18) has alpha in place of its logarithm. As in the authors' code, the logarithm
    is taken: the direction is the same, and steps do not vanish where alpha is small.

    Attributes:
        alpha: ``[1]``.
    """

    def __init__(self, initial: float, target_entropy: float, device: torch.device) -> None:
        self.target_entropy: float | Tensor = target_entropy
        self._initial = initial
        self._log_alpha = torch.tensor([initial], device=device).log()
        self._gradient = torch.zeros_like(self._log_alpha)
        self._optimizer = FlatAdam(self._log_alpha, self._gradient)
        self.alpha = self._log_alpha.exp()

    def step(self, entropy: Tensor | float, lr: float | Tensor) -> None:
        """Take one gradient step, given the policy's entropy."""
        self._gradient.fill_(entropy - self.target_entropy)
        self._optimizer.step(lr)
        torch.exp(self._log_alpha, out=self.alpha)  # in its place, where a recorded update reads it

    def get_state(self) -> dict[str, Any]:
        """The logarithm of alpha, its optimizer's state, and where alpha started."""
        return {
            "initial": self._initial,
            "log_alpha": self._log_alpha.cpu().numpy().copy(),
            "optimizer": self._optimizer.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of an alpha that started where this one did; ignore any other."""
        # One learned from another start would hide a new `initial_alpha` (an override, a mutation).
        if state.get("initial", self._initial) != self._initial:  # older checkpoints lack it
            return
        self._log_alpha.copy_(torch.from_numpy(np.array(state["log_alpha"], dtype=np.float32)))
        self._optimizer.set_state(state["optimizer"])
        torch.exp(self._log_alpha, out=self.alpha)


def masked_target_entropy(observations: Any) -> Tensor:
    """The mean of 0.98 log n, a scalar, where n actions are allowed by an observation's mask."""
    allowed = (observations[ACTION_MASK] != 0).sum(-1).clamp(min=1)
    return 0.98 * allowed.to(torch.float32).log().mean()


def default_target_entropy(action_space: gym.Space[Any]) -> float:
    """-A for a Box of A dimensions, 0.98 log n for n discrete actions."""
    if isinstance(action_space, gym.spaces.Discrete):
        return 0.98 * float(np.log(action_space.n))
    return -float(gym.spaces.flatdim(action_space))
