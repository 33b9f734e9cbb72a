"""SAC: soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), continuous and discrete.

    M  rows of a minibatch      A  dimensions of a continuous action      n  discrete actions

Each update takes one minibatch: the two critics learn from it, then the policy learns from the
critics, then the temperature alpha moves so that the policy's entropy approaches its target, then
the critics' target follows them a little (tau). Actions live in (-1, 1) everywhere in here; they
are stretched to the environment's bounds on their way to it (`connectors.normalize_actions`).

The discrete form (Christodoulou 2019, arXiv:1910.07207) takes expectations over all actions where
the continuous one takes a sample. The buffer is part of a checkpoint only with
`replay.store_in_checkpoints`, as for DQN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.replay import Replay, averages, replay_problems, to_device
from rlrun.config.batch_arithmetic import fragment_problems, short_fragment_lengths
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.problems import ConfigError, Origin, Problem
from rlrun.config.schema import Count, ExperimentConfig, Schedule, TrainingConfig
from rlrun.data import columns as col
from rlrun.learning.adam import FlatAdam
from rlrun.learning.learner import Learner, value_at
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.rl_module import ModuleFactory, RLModule
from rlrun.policies.sac_policy import build_sac_policy
from rlrun.policies.soft_actor_critic import Q_VALUES, SACPolicyNetwork, TwinQNetwork
from rlrun.policies.squashed_gaussian import squashed_sample, squashed_sample_vjp
from rlrun.sampling.runner_messages import PolicyFactory

STEPS_OF_A_ROUND = 1  # env steps between updates with rollout_fragment_length: auto
STATISTICS = (
    *("critic_loss", "policy_loss", "q_mean", "td_error_mean"),
    *("entropy", "alpha", "critic_grad_norm", "policy_grad_norm"),
)
"""Averaged over the updates of an iteration; None in one without any."""
NOISE, NEXT_NOISE = "noise", "new_noise"


class SACTraining(TrainingConfig):
    """SAC's own settings; `replay` is a section of its own."""

    train_batch_size: Count = 1024
    """Env steps collected for one iteration, exactly, in many short rounds with updates between."""
    lr: Schedule = 3e-4
    """Learning rate of the policy: a number, or a schedule [[env_steps, value], ...]."""
    critic_lr: Schedule | None = None
    """Learning rate of the critics; null is `lr`."""
    alpha_lr: Schedule | None = None
    """Learning rate of the temperature; null is `lr`, 0 leaves the temperature where it is."""
    minibatch_size: Count = 256
    """Transitions replayed for one update."""
    training_intensity: float = Field(default=256.0, gt=0)
    """Transitions replayed for each env step sampled; 256 is a minibatch of 256 in every step."""
    num_steps_sampled_before_learning_starts: Count = 1500
    """Env steps put into an empty replay buffer before it is learned from."""
    n_step: Count = 1
    """Rewards summed up before the target critics' value; fewer where the episode ends."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """How far the target critics move towards the critics in each update."""
    initial_alpha: float = Field(default=1.0, gt=0)
    """Weight of the entropy beside the reward, at the start."""
    target_entropy: float | None = None
    """Entropy that alpha steers to; null is -A for a Box and 0.98 log n for Discrete actions."""


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
    goals = soft_goals(rows, policy=policy, target=target, alpha=alpha)
    values = module.forward_train(rows)[Q_VALUES]
    if NEXT_NOISE not in rows:
        actions = rows[col.ACTIONS][None, :, None].expand(2, -1, 1)
        values = values.gather(2, actions).squeeze(2)
    errors = values - goals
    loss = 0.5 * (rows[col.WEIGHTS] * errors.square()).mean(1).sum()
    return loss, _critic_statistics(loss.detach(), values.detach(), errors.detach())


@torch.no_grad()
def critic_gradient(
    module: TwinQNetwork,
    rows: dict[str, Tensor],
    *,
    policy: RLModule,
    target: RLModule,
    alpha: Tensor,
) -> dict[str, Tensor]:
    """The gradient of `critic_loss` in closed form, for critics that have a `vjp`.

    Returns:
        The statistics of `critic_loss`. The gradients are left in the module's parameters.
    """
    goals = soft_goals(rows, policy=policy, target=target, alpha=alpha)
    values, backward = module.vjp(rows)
    errors = values - goals
    weighted = rows[col.WEIGHTS] * errors
    backward.to_parameters(weighted / len(goals))
    return _critic_statistics(0.5 * (weighted * errors).mean(1).sum(), values, errors)


def _critic_statistics(loss: Tensor, values: Tensor, errors: Tensor) -> dict[str, Tensor]:
    distances = errors.abs().mean(0)
    return {
        "critic_loss": loss,
        "q_mean": values.mean(),
        "td_error_mean": distances.mean(),
        "td_errors": distances,
    }


@torch.no_grad()
def soft_goals(
    rows: dict[str, Tensor], *, policy: RLModule, target: RLModule, alpha: Tensor
) -> Tensor:
    """y of `critic_loss`, ``[M]``."""
    following = soft_value(policy, target, rows[col.NEXT_OBS], rows.get(NEXT_NOISE), alpha)
    # Selected rather than multiplied by 0: a value that has blown up must not become NaN.
    following = torch.where(rows[col.TERMINATEDS], 0.0, following)
    return torch.addcmul(rows[col.REWARDS], rows[col.DISCOUNTS], following)


def soft_value(
    policy: RLModule, critics: RLModule, obs: Tensor, noise: Tensor | None, alpha: Tensor
) -> Tensor:
    """``min_i Q_i(s, a) - alpha log pi(a|s)`` ``[M]``: of a sampled a, or the mean over all."""
    inputs = policy.forward_train({col.OBS: obs})[col.ACTION_DIST_INPUTS]
    if noise is None:
        logp = inputs.log_softmax(-1)
        first, second = critics.forward_train({col.OBS: obs})[Q_VALUES]
        return (logp.exp() * (torch.minimum(first, second) - alpha * logp)).sum(-1)
    actions, logp = squashed_sample(inputs, noise)
    first, second = critics.forward_train({col.OBS: obs, col.ACTIONS: actions})[Q_VALUES]
    return torch.minimum(first, second) - alpha * logp


def policy_loss(
    module: RLModule, rows: dict[str, Tensor], *, critics: RLModule, alpha: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """``alpha log pi(a|s) - min_i Q_i(s, a)``, averaged (eq. 7 and 9).

    Continuous actions are sampled so that the gradient flows through them into the policy; over
    discrete ones the expectation is taken, in which the critics are constants.

    Args:
        rows: ``obs``, and ``noise`` ``[M, A]`` for a Box.

    Returns:
        The loss, a scalar with gradient, and statistics without.
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


@torch.no_grad()
def policy_gradient(
    module: SACPolicyNetwork, rows: dict[str, Tensor], *, critics: TwinQNetwork, alpha: Tensor
) -> dict[str, Tensor]:
    """The gradient of `policy_loss` in closed form, for a Box and networks that have a `vjp`.

    Returns:
        The statistics of `policy_loss`. The gradients are left in the module's parameters.
    """
    inputs, backward = module.vjp(rows)
    actions, logp, sample_backward = squashed_sample_vjp(inputs, rows[NOISE])
    values, critics_backward = critics.vjp({col.OBS: rows[col.OBS], col.ACTIONS: actions})
    num_rows = len(logp)
    first_is_smaller = values[0] <= values[1]
    d_values = torch.stack((first_is_smaller, ~first_is_smaller)) * (-1.0 / num_rows)
    d_actions = critics_backward.to_input(d_values)[:, -actions.shape[1] :]
    backward(sample_backward(d_actions, alpha / num_rows))
    loss = (alpha * logp - values.amin(0)).mean()
    return {"policy_loss": loss, "entropy": -logp.mean()}


class Temperature:
    """Alpha, and its way to the target entropy: minimises ``log alpha (entropy - target)``.

    Haarnoja et al. (eq. 18) have alpha where this has its logarithm, as their own code does: the
    direction is the same, and the pace does not die with a small alpha.

    Attributes:
        alpha: ``[1]``.
    """

    def __init__(self, initial: float, target_entropy: float, device: torch.device) -> None:
        self.target_entropy = target_entropy
        self._log_alpha = torch.tensor([initial], device=device).log()
        self._gradient = torch.zeros_like(self._log_alpha)
        self._optimizer = FlatAdam(self._log_alpha, self._gradient)
        self.alpha = self._log_alpha.exp()

    def step(self, entropy: Tensor, lr: float) -> None:
        """Move once, seeing the policy's entropy."""
        self._gradient.copy_(entropy - self.target_entropy)
        self._optimizer.step(lr)
        self.alpha = self._log_alpha.exp()

    def get_state(self) -> dict[str, Any]:
        """The logarithm of alpha, and its optimizer's state."""
        return {
            "log_alpha": self._log_alpha.cpu().numpy().copy(),
            "optimizer": self._optimizer.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self._log_alpha.copy_(torch.from_numpy(np.array(state["log_alpha"], dtype=np.float32)))
        self._optimizer.set_state(state["optimizer"])
        self.alpha = self._log_alpha.exp()


class SAC(Algorithm):
    """Sample a step, learn from what was sampled before, hand on the weights, again and again."""

    Training = SACTraining
    Config = SACConfig
    optional_sections = frozenset({"replay"})
    trial_of_columns = "first_batch"

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        """Problems of batch and buffer sizes, as ``(key, message)``."""
        training = _settings(config)
        yield from fragment_problems(training.train_batch_size, config.env_runners)
        yield from replay_problems(config, training.num_steps_sampled_before_learning_starts)

    def setup(self) -> None:
        training, learners = _settings(self.config), self.config.learners
        self._continuous = isinstance(self.action_space, gym.spaces.Box)
        if self._continuous and not self.config.connectors.normalize_actions:
            message = "SAC acts in (-1, 1), which must be stretched to the bounds; leave it out"
            origin = Origin("this experiment")
            raise ConfigError([Problem(origin, "connectors.normalize_actions", message)])
        self.critic = Learner(self.build_module(factory=TwinQNetwork), training, learners)
        self.target = self.build_module(factory=TwinQNetwork).requires_grad_(False)
        self.target.to(self.learner.device)
        self._target_parameters = FlatParameters(self.target)
        self.temperature = Temperature(
            training.initial_alpha, self._target_entropy(), self.learner.device
        )
        self.replay = Replay(
            self.config.replay,
            n_step=training.n_step,
            gamma=training.gamma,
            minibatch_size=training.minibatch_size,
            training_intensity=training.training_intensity,
            learning_starts=training.num_steps_sampled_before_learning_starts,
        )
        self._rounds = short_fragment_lengths(
            training.train_batch_size, self.config.env_runners, STEPS_OF_A_ROUND
        )

    def _target_entropy(self) -> float:
        asked = _settings(self.config).target_entropy
        if asked is not None:
            return asked
        if isinstance(self.action_space, gym.spaces.Discrete):
            return 0.98 * float(np.log(self.action_space.n))
        return -float(gym.spaces.flatdim(self.action_space))

    def module_factory(self, policy_id: str) -> ModuleFactory:
        """The policy network; the critics are made by `setup`."""
        return SACPolicyNetwork

    def policy_factory(self, policy_id: str) -> PolicyFactory:
        """The policy that acts by the policy network."""
        return build_sac_policy

    def training_step(self) -> dict[str, Any]:
        """One iteration: rounds of sampling, each followed by the updates that are due."""
        training = _settings(self.config)
        lr = value_at(training.lr, self.env_steps)
        critic_lr, alpha_lr = (
            lr if schedule is None else value_at(schedule, self.env_steps)
            for schedule in (training.critic_lr, training.alpha_lr)
        )
        updates: list[dict[str, Tensor]] = []
        for lengths in self._rounds:
            batch = self.sample([lengths])
            with self.timers.phase("transfer"):
                num_updates = self.replay.add(batch)
            if not num_updates:
                continue
            rng = self.learner_rng()
            with self.timers.phase("learn"):
                for _ in range(num_updates):
                    updates.append(self._update(rng, lr, critic_lr, alpha_lr))
            self.sync_weights()
        further = {
            "num_updates": len(updates),
            "lr": lr,
            "replay_size": len(self.replay.buffer),
        }
        return self.learner_result(
            len(updates) * training.minibatch_size, {**averages(updates, STATISTICS), **further}
        )

    def _update(
        self, rng: np.random.Generator, lr: float, critic_lr: float, alpha_lr: float
    ) -> dict[str, Tensor]:
        """One step of the critics, the policy, the temperature and the target."""
        batch = self.replay.sample(rng, self.env_steps)
        rows = to_device(batch, self.learner.device)
        if self._continuous:
            shape = (2, *rows[col.ACTIONS].shape)
            noise = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
            rows[NOISE], rows[NEXT_NOISE] = noise.to(self.learner.device)
        policy, critics, alpha = self.learner.module, self.critic.module, self.temperature.alpha
        of_critics = self.critic.step(
            rows,
            critic_loss,
            {"policy": policy, "target": self.target, "alpha": alpha},
            lr=critic_lr,
            gradient=critic_gradient if critics.has_vjp else None,
        )
        of_policy = self.learner.step(
            rows,
            policy_loss,
            {"critics": critics, "alpha": alpha},
            lr=lr,
            gradient=policy_gradient if critics.has_vjp and policy.has_vjp else None,
        )
        self.temperature.step(of_policy["entropy"], alpha_lr)
        self._target_parameters.vector.lerp_(
            self.critic.parameters.vector, _settings(self.config).tau
        )
        self.replay.report_errors(batch, of_critics.pop("td_errors"))
        grad_norms = {
            "critic_grad_norm": of_critics.pop("grad_norm"),
            "policy_grad_norm": of_policy.pop("grad_norm"),
        }
        return {**of_critics, **of_policy, **grad_norms, "alpha": alpha[0]}

    # -- state: the weights of policy and critics together, as a checkpoint keeps them ----------

    def get_weights(self) -> dict[str, np.ndarray]:
        """Copies of all weights by parameter name; those of the critics begin with `critics.`."""
        critics = self.critic.named_weights()
        return {
            **super().get_weights(),
            **{f"{_CRITICS}{name}": values for name, values in critics.items()},
        }

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over weights by name."""
        own = {name: values for name, values in weights.items() if not name.startswith(_CRITICS)}
        critics = {
            name.removeprefix(_CRITICS): values
            for name, values in weights.items()
            if name.startswith(_CRITICS)
        }
        super().set_weights(own)
        self.critic.load_named_weights(critics)

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "critic": self.critic.get_state(),
            "target": self._target_parameters.to_numpy(),
            "temperature": self.temperature.get_state(),
            **self.replay.get_state(),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.critic.set_state(state["critic"])
        self._target_parameters.load(state["target"])
        self.temperature.set_state(state["temperature"])
        self.replay.set_state(state)


_CRITICS = "critics."


def _settings(config: ExperimentConfig) -> SACTraining:
    assert isinstance(config.training, SACTraining)  # the loader made it from `Training`
    return config.training
