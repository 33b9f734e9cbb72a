"""PPO: proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347).

`ppo_loss` is the one to read. `ppo_gradient` computes its gradient in closed form, in numpy: for
small networks on a CPU in a fraction of the time that autograd takes.

    N  rows of the train batch      M  rows of a minibatch      P  inputs of the action distribution
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.on_policy import (
    ActorCriticTraining,
    LearnerStats,
    PolicyUpdate,
    synchronous_step,
)
from rlrun.algorithms.parts import ByPolicy
from rlrun.algorithms.result import Result
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.policies import PolicySettings
from rlrun.config.schedules import Coefficient, LearningRate
from rlrun.config.schema import Count
from rlrun.config.section import Epsilon, Fraction, NonNegative, Positive
from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.learning.learner import means_of_rows
from rlrun.learning.losses import closed_form
from rlrun.learning.returns import add_advantages, standardized_advantages
from rlrun.learning.vtrace import weigh_advantages
from rlrun.policies.rl_module import ActorCritic, RLModule

KL_COEFF_BOUNDS = (1e-6, 1e3)  # the adaptive coefficient must reach neither zero nor infinity


class PPOTraining(ActorCriticTraining):
    """PPO's own settings."""

    lr: LearningRate = 3e-4
    lambda_: Fraction = 0.95
    """Lambda of generalised advantage estimation."""
    num_epochs: Count = 10
    """Passes over the train batch in one iteration."""
    minibatch_size: Count = 128
    """Rows of one gradient step; the last of a pass may be smaller."""
    clip_param: Coefficient = 0.2
    """Bound on how far one update moves the probability ratio from 1."""
    vf_clip_param: Positive | None = None
    """Bound on the change of the value prediction, in units of the return; null sets none."""
    vf_error_clip: Positive | None = None
    """Bound on the squared error of a value, beyond which it has no gradient; null sets none."""
    entropy_coeff: Coefficient = 0.0
    kl_coeff: NonNegative = 0.0
    """Weight of KL(old || new), adapted after each update; 0 leaves the term out."""
    kl_target: Positive = 0.01
    """KL divergence that the adaptive `kl_coeff` aims at."""
    target_kl: Positive | None = None
    """End the update early once the approximate KL exceeds 1.5 times this; null never does."""
    normalize_advantages: Literal["minibatch", "batch"] | None = "minibatch"
    """Normalise advantages to mean 0 and standard deviation 1: by minibatch, by batch, or not."""
    adam_epsilon: Epsilon = 1e-5
    """Adam's epsilon; PPO's results rest on 1e-5, not on the usual 1e-8."""


class PPOConfig(AlgorithmConfig):
    """Builds a PPO experiment in Python."""

    algorithm = "PPO"


def ppo_loss(
    module: RLModule,
    rows: dict[str, Tensor],
    *,
    clip_param: float,
    vf_loss_coeff: float,
    vf_clip_param: float | None,
    entropy_coeff: float,
    kl_coeff: float,
    vf_error_clip: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate (eq. 7), the value loss and the entropy bonus (eq. 9); eq. 8's KL term.

    Args:
        rows: obs ``[M, ...]``, actions ``[M, ...]``, action_logp, advantages, value_targets and
            (if it is clipped) vf_preds ``[M]``; action_dist_inputs ``[M, P]`` with ``kl_coeff``.

    Returns:
        The loss, a scalar with gradient, and statistics, scalars without.
    """
    outputs = module.forward_train(rows)
    inputs, values = outputs[col.ACTION_DIST_INPUTS], outputs[col.VF_PREDS]
    logp, entropies = module.distribution.logp_entropy(inputs, rows[col.ACTIONS])
    log_ratio = logp - rows[col.ACTION_LOGP]
    ratio = log_ratio.exp()
    advantages = rows[col.ADVANTAGES]
    clipped_ratio = ratio.clamp(1.0 - clip_param, 1.0 + clip_param)
    policy_loss = torch.max(-advantages * ratio, -advantages * clipped_ratio).mean()
    value_losses, _ = clipped_value_losses(values, rows, vf_clip_param, vf_error_clip)
    value_loss = value_losses.mean()
    entropy = entropies.mean()
    loss = policy_loss + vf_loss_coeff * value_loss - entropy_coeff * entropy
    with torch.no_grad():
        statistics = {
            "policy_loss": policy_loss.detach(),
            "vf_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            # k3 of Schulman's "Approximating KL divergence": unbiased and never negative.
            "approx_kl": (log_ratio.expm1() - log_ratio).mean(),
            "clip_fraction": (ratio != clipped_ratio).float().mean(),
        }
    if kl_coeff:
        # Left out rather than multiplied by zero: an infinite KL times zero is NaN.
        kl = module.distribution.kl(rows[col.ACTION_DIST_INPUTS], inputs).mean()
        loss = loss + kl_coeff * kl
        statistics["kl"] = kl.detach()
    statistics["total_loss"] = loss.detach()
    return loss, statistics


@closed_form
def ppo_gradient(
    module: ActorCritic,
    rows: dict[str, Array],
    *,
    clip_param: float,
    vf_loss_coeff: float,
    vf_clip_param: float | None,
    entropy_coeff: float,
    kl_coeff: float,
    vf_error_clip: float | None = None,
) -> dict[str, Any]:
    """The `Gradient` of `ppo_loss` in closed form, for modules that have a `vjp`."""
    inputs, values, backward = module.vjp(rows)
    logp, entropies, to_inputs = module.distribution.logp_entropy_vjp(inputs, rows[col.ACTIONS])
    num_rows = len(values)
    log_ratio = logp - rows[col.ACTION_LOGP]
    ratio = np.exp(log_ratio)
    advantages = rows[col.ADVANTAGES]
    gain = advantages * ratio
    clipped_ratio = ratio.clip(1.0 - clip_param, 1.0 + clip_param)
    clipped_gain = advantages * clipped_ratio
    value_losses, errors = clipped_value_losses(values, rows, vf_clip_param, vf_error_clip)
    # The loss takes the smaller gain; a clipped one has no gradient.
    d_inputs = to_inputs((gain <= clipped_gain) * gain / -num_rows, -entropy_coeff / num_rows)
    by_row = {
        "policy_loss": -np.minimum(gain, clipped_gain),
        "vf_loss": value_losses,
        "entropy": entropies,
        "approx_kl": np.expm1(log_ratio) - log_ratio,
        "clip_fraction": ratio != clipped_ratio,
    }
    total = by_row["policy_loss"] + vf_loss_coeff * value_losses - entropy_coeff * entropies
    if kl_coeff:
        by_row["kl"], d_kl = module.distribution.kl_vjp(rows[col.ACTION_DIST_INPUTS], inputs)
        d_inputs += d_kl * (kl_coeff / num_rows)
        total += kl_coeff * by_row["kl"]
    by_row["total_loss"] = total
    backward(d_inputs, errors * (vf_loss_coeff / num_rows))
    return means_of_rows(by_row)


def clipped_value_losses(
    values: Any, rows: Mapping[str, Any], vf_clip_param: float | None, vf_error_clip: float | None
) -> tuple[Any, Any]:
    """The value losses ``[M]``, half the squared errors, and their derivatives ``[M]``.

    With ``vf_clip_param`` the larger of two losses counts: of the value, and of the value clipped
    to this distance from the old one. ``vf_error_clip`` bounds a squared error.

    Args:
        values: ``[M]``, a tensor or an array; the results are of the same kind.
    """
    targets = rows[col.VALUE_TARGETS]
    errors = values - targets
    squares = errors**2
    if vf_clip_param is not None:
        old_values = rows[col.VF_PREDS]
        change = values - old_values
        clipped_values = old_values + change.clip(-vf_clip_param, vf_clip_param)
        clipped_squares = (clipped_values - targets) ** 2
        # A clipped value has no gradient.
        errors = errors * ((abs(change) <= vf_clip_param) | (squares > clipped_squares))
        squares = squares.clip(min=clipped_squares)
    if vf_error_clip is not None:
        errors, squares = errors * (squares <= vf_error_clip), squares.clip(max=vf_error_clip)
    return 0.5 * squares, errors


class PPO(Algorithm[PPOTraining]):
    """Sample a batch, learn from it for some epochs, send the new weights to the env runners."""

    Training = PPOTraining
    Config = PPOConfig
    trains_several_policies = True
    several_learners = True

    @classmethod
    def policy_problems(cls, settings: PolicySettings) -> Iterator[tuple[str, str]]:
        training = cls.training_in(settings)
        size, batch = training.minibatch_size, training.train_batch_size
        if size > batch:
            message = f"a minibatch of {size} rows does not fit into a train batch of {batch}"
            yield "training.minibatch_size", f"{message}: set it to {batch} or less"

    def setup(self) -> None:
        self.kl = self.keep("kl", ByPolicy(self._adaptive_kl))

    def _adaptive_kl(self, policy_id: str) -> AdaptiveKL:
        training = self.training_of(policy_id)
        return AdaptiveKL(training.kl_coeff, training.kl_target)

    def training_step(self) -> Result:
        """One iteration: sample, update each policy, sync."""
        return synchronous_step(self, self.update_policy)

    def update_policy(self, policy: PolicyUpdate[PPOTraining]) -> LearnerStats:
        """Estimate advantages, then take gradient steps for some epochs of minibatches."""
        training, rows = policy.training, policy.rows
        estimated = self.estimate_advantages(policy)
        if training.normalize_advantages == "batch":
            rows.columns = standardized_advantages(rows.columns)
        elif training.normalize_advantages == "minibatch":
            rows.prepare = standardized_advantages
        if self.config.env_runners.sample_async:
            weigh_advantages(rows, policy.batch)
        kl = self.kl[policy.policy_id]
        coefficients = {
            "clip_param": policy.at(training.clip_param),
            "entropy_coeff": policy.at(training.entropy_coeff),
            "kl_coeff": kl.coeff,
        }
        max_kl = None if training.target_kl is None else 1.5 * training.target_kl
        statistics = policy.epochs(
            ppo_loss,
            {
                **coefficients,
                "vf_loss_coeff": training.vf_loss_coeff,
                "vf_clip_param": training.vf_clip_param,
                "vf_error_clip": training.vf_error_clip,
            },
            num_epochs=training.num_epochs,
            minibatch_size=training.minibatch_size,
            gradient=ppo_gradient,
            stop_early=None if max_kl is None else lambda s: float(s["approx_kl"]) > max_kl,
        )
        kl.adapt(statistics.get("kl"))
        return {**statistics, **coefficients, **estimated}

    def estimate_advantages(self, policy: PolicyUpdate[PPOTraining]) -> LearnerStats:
        """Add the columns that the loss needs to the rows, see `add_advantages`; statistics."""
        training = policy.training
        off_policy = self.config.env_runners.sample_async  # the batch is an update older
        explained_variance = add_advantages(
            policy.rows,
            policy.batch,
            policy.module,
            training.gamma,
            training.lambda_,
            off_policy=off_policy,
        )
        return {"vf_explained_variance": explained_variance}


class AdaptiveKL:
    """The coefficient of the KL penalty, adapted to the measured KL (section 4 of the paper).

    Args:
        start: the coefficient before the first update; 0 turns the penalty off for good.
        target: KL to aim at.
    """

    def __init__(self, start: float, target: float) -> None:
        self._start, self._target = start, target
        self.coeff = start

    def adapt(self, kl: float | None) -> None:
        """Raise the coefficient if the KL was far above the target, lower it if far below."""
        if not self.coeff or kl is None:
            return
        factor = 1.5 if kl > 2.0 * self._target else 0.5 if kl < 0.5 * self._target else 1.0
        low, high = KL_COEFF_BOUNDS
        self.coeff = min(max(self.coeff * factor, low), high)

    def get_state(self) -> dict[str, Any]:
        """The coefficient, and where it started."""
        return {"coeff": self.coeff, "start": self._start}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a coefficient that started where this one did; ignore any other."""
        # One adapted from another start would hide a new `kl_coeff` (an override, a mutation).
        if state["start"] == self._start:
            self.coeff = float(state["coeff"])
