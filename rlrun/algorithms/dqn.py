"""DQN: Q-learning with a replay buffer and a target network (Mnih et al. 2015), and its extensions.

Double Q-learning (van Hasselt et al. 2016), dueling networks (Wang et al. 2016), prioritised replay
(Schaul et al. 2016), n-step returns (Sutton 1988), distributions of values (C51, Bellemare et al.
2017) and noisy networks (Fortunato et al. 2018) are switches; all on are Rainbow (Hessel et al.
2018). With `model.use_lstm` or `use_gru` sequences are replayed, as in R2D2 (`sequence_replay`),
whose rescaling of values (Pohlen et al. 2018) is a switch, too.

    M  rows of a minibatch      n  actions      K  atoms of a value's distribution

Sampling and learning take turns: a round of sampling of a few env steps, then the updates that
`training_intensity` asks for. Epsilon is a function of the env steps of the whole run, and so it
continues in a resumed run. The buffer is part of a checkpoint only with
`replay.store_in_checkpoints`; without it a resumed run differs from an uninterrupted one: it learns
again after `num_steps_sampled_before_learning_starts` further env steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from rlrun.algorithms.replay import ReplayAlgorithm, Updater, exploration_at, replayed_rows
from rlrun.algorithms.replay_settings import ReplayTraining
from rlrun.algorithms.sequence_replay import (
    initial_state,
    kept_columns,
    load_sequences,
    sequence_loss,
)
from rlrun.algorithms.targets import TargetNetwork, bellman_targets, values_of_best
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.policies import PolicySettings
from rlrun.config.schedules import LearningRate, value_at
from rlrun.config.schema import Count, ModelConfig
from rlrun.config.section import Positive, changed_settings
from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import means_of_rows
from rlrun.learning.losses import closed_form
from rlrun.policies.action_sampling import log_softmax
from rlrun.policies.layers import QOptions
from rlrun.policies.masked_module import ModuleFactory
from rlrun.policies.q_network import ATOM_LOGITS, QNetwork, build_q_network
from rlrun.policies.q_policy import build_q_policy
from rlrun.policies.rl_module import RLModule
from rlrun.replay.replay_buffer import ReplayBuffer
from rlrun.replay.sequence_replay_buffer import SequenceReplayBuffer
from rlrun.sampling.runner_messages import PolicyFactory


class DQNTraining(QOptions, ReplayTraining):
    """DQN's own settings; `exploration` and `replay` are sections of their own."""

    lr: LearningRate = 5e-4
    target_network_update_freq: Count = 500
    """Env steps between updates of the target network."""
    tau: float = Field(default=1.0, gt=0, le=1)
    """How far each update moves the target network towards the network; 1 makes it a copy."""
    double_q: bool = True
    """Select the next action by the network, and value it by the target network."""
    value_rescaling: bool = False
    """Learn h(Q), which grows like the square root of Q, instead of Q: for returns of very
    different sizes."""
    dueling: bool = True
    grad_clip: Positive | None = 10.0
    """Bound that gradients are clipped to; null does not clip."""


class DQNConfig(AlgorithmConfig):
    """Builds a DQN experiment in Python."""

    algorithm = "DQN"


def dqn_loss(
    module: RLModule,
    rows: dict[str, Tensor],
    *,
    target: RLModule,
    double_q: bool,
    value_rescaling: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean Huber loss of the temporal-difference errors, weighted row by row.

        y = R + discount (1 - terminated) Q_target(s', argmax_a Q(s', a))

    The Q that selects the action, in the argmax, is ``module`` with ``double_q`` and ``target``
    without. With ``value_rescaling`` the networks' outputs are h(Q), and y is h(R + ...). No
    gradient flows into y. The Huber loss is half the square up to an error of 1 and linear beyond,
    so its gradient is the clipped error.

    Args:
        rows: obs and new_obs ``[M, ...]``; actions, rewards, terminateds, discounts, weights
            ``[M]``, as a replay buffer samples them.

    Returns:
        The loss, a scalar with gradient, and statistics without; ``td_errors`` is ``[M]``.
    """
    values = module.forward_train(rows)[col.ACTION_DIST_INPUTS]
    chosen = values.gather(1, rows[col.ACTIONS][:, None]).squeeze(1)
    next_rows = {col.OBS: rows[col.NEXT_OBS]}
    with torch.no_grad():
        next_values = target.forward_train(next_rows)[col.ACTION_DIST_INPUTS]
        selection_values = next_values
        if double_q:
            selection_values = module.forward_train(next_rows)[col.ACTION_DIST_INPUTS]
        best_next_values = values_of_best(next_values, selection_values)
        targets = bellman_targets(rows, best_next_values, rescaled=value_rescaling)
    losses = functional.huber_loss(chosen, targets, reduction="none")
    loss = (rows[col.WEIGHTS] * losses).mean()
    errors = chosen.detach() - targets
    return loss, {
        "total_loss": loss.detach(),
        "q_mean": chosen.detach().mean(),
        "td_error_mean": errors.abs().mean(),
        "td_errors": errors,
    }


@closed_form
def dqn_gradient(
    module: QNetwork,
    rows: dict[str, Array],
    *,
    target: QNetwork,
    double_q: bool,
    value_rescaling: bool = False,
) -> dict[str, Any]:
    """The `Gradient` of `dqn_loss` in closed form, for networks that have a `vjp`."""
    values, backward = module.vjp(rows)
    next_rows = {col.OBS: rows[col.NEXT_OBS]}
    next_values, _ = target.vjp(next_rows)
    index, weights = np.arange(len(values)), rows[col.WEIGHTS]
    selection_values = module.vjp(next_rows)[0] if double_q else next_values
    best_next_values = next_values[index, selection_values.argmax(1)]
    targets = bellman_targets(rows, best_next_values, rescaled=value_rescaling)
    taken = index, rows[col.ACTIONS]
    chosen = values[taken]
    errors = chosen - targets
    clipped = errors.clip(-1.0, 1.0)
    d_values = np.zeros_like(values)
    d_values[taken] = weights * clipped / len(chosen)
    backward(d_values)
    losses = clipped * (errors - 0.5 * clipped)  # Huber's
    by_row = {"total_loss": weights * losses, "q_mean": chosen, "td_error_mean": abs(errors)}
    return {**means_of_rows(by_row), "td_errors": errors}


def c51_loss(
    module: QNetwork, rows: dict[str, Tensor], *, target: RLModule, double_q: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean cross-entropy of the value's distribution to the projected one, weighted row by row.

    The target is the distribution of ``R + discount Z(s', a*)``, projected on the K atoms
    (Bellemare et al. 2017, algorithm 1). The action a* has the highest mean, by ``module`` with
    ``double_q`` and by ``target`` without.

    Arguments and returns are as for `dqn_loss`, but ``td_errors`` are Kullback-Leibler
    divergences of the target from the value's distribution, by which Rainbow sets priorities.
    """
    outputs = module.forward_train(rows)
    index = torch.arange(len(rows[col.ACTIONS]), device=rows[col.ACTIONS].device)
    chosen = outputs[ATOM_LOGITS][index, rows[col.ACTIONS]].log_softmax(-1)
    with torch.no_grad():
        support = module.support
        next_rows = {col.OBS: rows[col.NEXT_OBS]}
        next_outputs = target.forward_train(next_rows)
        selection_outputs = module.forward_train(next_rows) if double_q else next_outputs
        next_actions = selection_outputs[col.ACTION_DIST_INPUTS].argmax(dim=1)
        logits = next_outputs[ATOM_LOGITS][index, next_actions]
        # After a termination the next value is 0, even if its observation is infinite.
        terminal, discounts = rows[col.TERMINATEDS], rows[col.DISCOUNTS]
        probabilities = torch.where(terminal[:, None], logits.nan_to_num(), logits).softmax(-1)
        discounts = discounts.masked_fill(terminal, 0.0)
        targets = project_distribution(probabilities, rows[col.REWARDS], discounts, support)
    cross_entropies = -(targets * chosen).sum(-1)
    loss = (rows[col.WEIGHTS] * cross_entropies).mean()
    means = chosen.detach().exp() @ support
    statistics = {
        "total_loss": loss.detach(),
        "q_mean": means.mean(),
        "td_error_mean": (means - targets @ support).abs().mean(),
        "td_errors": cross_entropies.detach() + torch.xlogy(targets, targets).sum(-1),
    }
    return loss, statistics


@closed_form
def c51_gradient(
    module: QNetwork, rows: dict[str, Array], *, target: QNetwork, double_q: bool
) -> dict[str, Any]:
    """The `Gradient` of `c51_loss` in closed form, for networks that have a `vjp`."""
    values, logits, backward = module.vjp(rows)
    next_rows = {col.OBS: rows[col.NEXT_OBS]}
    selection_values, next_logits, _ = target.vjp(next_rows)
    if double_q:
        selection_values = module.vjp(next_rows)[0]
    index, terminal, support = np.arange(len(values)), rows[col.TERMINATEDS], module.support.numpy()
    next_logits = next_logits[index, selection_values.argmax(1)]
    next_logits = np.where(terminal[:, None], np.nan_to_num(next_logits), next_logits)
    discounts = np.where(terminal, np.float32(0.0), rows[col.DISCOUNTS])
    probabilities = np.exp(log_softmax(next_logits))
    targets = split_between_atoms(probabilities, rows[col.REWARDS], discounts, support)
    taken, weights = (index, rows[col.ACTIONS]), rows[col.WEIGHTS]
    logs = log_softmax(logits[taken])
    chosen = np.exp(logs)
    d_logits = np.zeros_like(logits)
    d_logits[taken] = (weights / len(index))[:, None] * (chosen - targets)
    backward(d_logits)
    cross_entropies = -(targets * logs).sum(1)
    entropies = -(targets * np.log(np.where(targets > 0.0, targets, 1.0))).sum(1)
    means = chosen @ support
    by_row = {
        "total_loss": weights * cross_entropies,
        "q_mean": means,
        "td_error_mean": abs(means - targets @ support),
    }
    return {**means_of_rows(by_row), "td_errors": cross_entropies - entropies}


def split_between_atoms(
    probabilities: Array, rewards: Array, discounts: Array, support: Array
) -> Array:
    """`project_distribution` in numpy: no product with a matrix for each row."""
    num_rows, num_atoms = probabilities.shape
    low, high = support[0], support[-1]
    points = (rewards[:, None] + discounts[:, None] * support).clip(low, high)
    positions = (points - low) / (high - low) * np.float32(num_atoms - 1)
    below = positions.astype(np.int64).clip(0, num_atoms - 2)  # of NaN, too
    above_share = (positions - below) * probabilities
    places = (below + num_atoms * np.arange(num_rows)[:, None]).ravel()
    split = np.bincount(places, (probabilities - above_share).ravel(), probabilities.size)
    split[1:] += np.bincount(places, above_share.ravel(), probabilities.size)[:-1]
    return split.reshape(probabilities.shape).astype(np.float32)


def project_distribution(
    probabilities: Tensor, rewards: Tensor, discounts: Tensor, support: Tensor
) -> Tensor:
    """The distribution of ``reward + discount Z`` on the atoms of Z, ``[M, K]``.

    The probability of a point between two atoms is split between them, so that the mean stays the
    same; a point beyond the first or last atom is moved to it (Bellemare et al. 2017, eq. 7).

    Args:
        probabilities: of Z, ``[M, K]``.
        rewards, discounts: ``[M]``; a discount of 0 leaves all mass at the reward.
        support: the K atoms, ascending at equal distances.
    """
    low, high = support[0], support[-1]
    points = torch.addcmul(rewards[:, None], discounts[:, None], support).clamp(low, high)
    # Divided by the whole range, so that its end is the last atom; by one distance is less exact.
    positions = (points - low) / (high - low) * (len(support) - 1)
    # share[m, i, j] is how much of point j goes to atom i.
    atoms = torch.arange(len(support), device=support.device, dtype=support.dtype)[:, None]
    share = (1.0 - (positions[:, None, :] - atoms).abs()).clamp(min=0.0)
    return (share @ probabilities[:, :, None]).squeeze(-1)


class DQN(ReplayAlgorithm[DQNTraining, "DQNUpdater"]):
    """Sample a few steps, learn from the buffer, sync weights, in turns."""

    Training = DQNTraining
    Config = DQNConfig
    round_steps = 4
    exploration_types = ("EpsilonGreedy", "SoftQ", "Random", "ParameterNoise")
    memories = ("use_lstm", "use_gru")
    update_statistics = ("total_loss", "q_mean", "td_error_mean", "grad_norm")

    @classmethod
    def policy_problems(cls, settings: PolicySettings) -> Iterator[tuple[str, str]]:
        training = cls.training_in(settings)
        if cls._has_memory(settings.model):
            for name, off in (("num_atoms", 1), ("noisy", False), ("hiddens", None)):
                if getattr(training, name) != off:
                    message = "does not go together with a memory (model.use_lstm, use_gru)"
                    yield f"training.{name}", f"{message}; remove this key"
        for name in changed_settings(settings.model, ("value_hidden", "head_hidden")):
            message = "action values have model.hidden and training.hiddens; remove this key"
            yield f"model.{name}", message
        if settings.model.privileged:
            message = "action values are the policy, and there is no critic beside it; remove this"
            yield "model.privileged", f"{message} key"
        if training.num_atoms > 1 and training.value_rescaling:
            message = "values with a distribution (num_atoms) are not rescaled; remove this key"
            yield "training.value_rescaling", message
        if training.num_atoms > 1 and training.v_min >= training.v_max:
            message = f"must be below v_max {training.v_max:g}, and is {training.v_min:g}"
            yield "training.v_min", message
        if training.noisy and settings.exploration.type not in (None, "EpsilonGreedy"):
            message = "noisy weights (training.noisy) explore; remove this key"
            yield "exploration.type", message
        elif training.noisy and settings.exploration.epsilon != 0:
            message = "noisy weights (training.noisy) explore; set it to 0"
            yield "exploration.epsilon", message

    @classmethod
    def _has_memory(cls, model: ModelConfig) -> bool:
        return any(getattr(model, name) for name in cls.memories)

    def make_updater(self, policy_id: str) -> DQNUpdater:
        return DQNUpdater(self, policy_id)

    def make_buffer(self, policy_id: str) -> ReplayBuffer:
        """Make a policy's buffer: of sequences, if its network has a memory."""
        replay, model = self.config.replay, self.policies[policy_id].model
        if not self._has_memory(model):
            return super().make_buffer(policy_id)
        module = self.learners[policy_id].module
        return SequenceReplayBuffer(
            replay.capacity,
            length=replay.burn_in + model.max_seq_len,
            burn_in=replay.burn_in,
            initial_state=initial_state(module),
            further_columns=kept_columns(module),
            alpha=replay.alpha if replay.prioritized else 0.0,
        )

    def module_factory(self, policy_id: str) -> ModuleFactory:
        return partial(build_q_network, options=_options(self.training_of(policy_id)))

    def policy_factory(self, policy_id: str) -> PolicyFactory:
        return partial(
            build_q_policy,
            options=_options(self.training_of(policy_id)),
            exploration=self.policies.settings[policy_id].exploration,
        )


class DQNUpdater(Updater):
    """Updates one policy's Q-network; owns its target network.

    Attributes:
        learner, training: the policy's.
    """

    def __init__(self, algorithm: DQN, policy_id: str) -> None:
        learner, settings = algorithm.learners[policy_id], algorithm.policies[policy_id]
        super().__init__(TargetNetwork(algorithm.build_module(policy_id), learner))
        self.learner, self.training = learner, algorithm.training_of(policy_id)
        self._exploration, self._burn_in = settings.exploration, algorithm.config.replay.burn_in

    def coefficients(self, env_steps: int) -> dict[str, float]:
        explores = exploration_at(self._exploration, DQN.exploration_types, env_steps)
        return {"lr": value_at(self.training.lr, env_steps), **explores}

    def update(
        self, batch: SampleBatch, rng: np.random.Generator, env_steps: int
    ) -> dict[str, Tensor]:
        training, learner, target = self.training, self.learner, self.target.module
        lr = value_at(training.lr, env_steps)
        arguments: dict[str, Any] = {"target": target, "double_q": training.double_q}
        if training.num_atoms == 1:
            arguments["value_rescaling"] = training.value_rescaling
        if col.SEQ_LENS in batch:
            settings = {"burn_in": self._burn_in, "n_step": training.n_step}
            rows = load_sequences(
                batch, learner.module, learner.device, **settings, gamma=training.gamma
            )
            return learner.step(rows, sequence_loss, arguments, lr=lr)
        if training.noisy:
            for network in (learner.module, target):
                network.draw_noise(rng)
        rows = replayed_rows(batch)
        if training.num_atoms > 1:
            return learner.step(rows, c51_loss, arguments, lr=lr, gradient=c51_gradient)
        return learner.step(rows, dqn_loss, arguments, lr=lr, gradient=dqn_gradient)

    def end_round(self, steps: int) -> None:
        if self.target.due(steps, self.training.target_network_update_freq):
            self.target.follow(self.training.tau)


def _options(training: DQNTraining) -> QOptions:
    """The part of the settings that env runners need; they do not import this module."""
    return QOptions(**{name: getattr(training, name) for name in QOptions.model_fields})
