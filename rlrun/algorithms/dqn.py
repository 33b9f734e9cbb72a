"""DQN: Q-learning with a replay buffer and a target network (Mnih et al. 2015), and its extensions.

Double Q-learning (van Hasselt et al. 2016), dueling networks (Wang et al. 2016), prioritised replay
(Schaul et al. 2016), n-step returns (Sutton 1988), distributions of values (C51, Bellemare et al.
2017) and noisy networks (Fortunato et al. 2018) are switches; all on are Rainbow (Hessel et al.
2018). With `model.use_lstm` or `use_gru` sequences are replayed, as in R2D2 (`sequence_replay`),
whose rescaling of values (Pohlen et al. 2018) is a switch as well.

    M  rows of a minibatch      n  actions      K  atoms of a value's distribution

Sampling and learning take turns: a round of sampling brings a few env steps, then follow the
updates that `training_intensity` asks for. Epsilon is a function of the env steps of the whole run,
so it goes on where it was when a run is resumed. The buffer is part of a checkpoint only with
`replay.store_in_checkpoints`; without it a resumed run is not the one that was left alone, and
learns on once its buffer holds `num_steps_sampled_before_learning_starts` transitions again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.c51 import c51_loss
from rlrun.algorithms.policies import ByPolicy
from rlrun.algorithms.replay import (
    Replay,
    ReplayTraining,
    averages,
    replay_problems,
    take_turns,
    to_device,
    transition_buffer,
)
from rlrun.algorithms.sequence_replay import (
    kept_columns,
    load_sequences,
    report_sequence_errors,
    sequence_loss,
)
from rlrun.algorithms.target_network import TargetNetwork
from rlrun.config.batch_arithmetic import fragment_problems, short_fragment_lengths
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.policies import PolicySettings, addressed_settings
from rlrun.config.schema import Count, ExperimentConfig, ModelConfig, Schedule
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import value_at
from rlrun.learning.value_rescaling import bellman_goals
from rlrun.policies.catalog import ModuleFactory
from rlrun.policies.layers import QOptions
from rlrun.policies.q_network import QNetwork, build_q_network
from rlrun.policies.q_policy import build_q_policy
from rlrun.policies.rl_module import RLModule
from rlrun.replay.replay_buffer import ReplayBuffer
from rlrun.replay.sequence_replay_buffer import SequenceReplayBuffer
from rlrun.sampling.runner_messages import Exploration, PolicyFactory

STEPS_OF_A_ROUND = 4  # env steps between updates with rollout_fragment_length: auto
MEMORIES = ("use_lstm", "use_gru")
STATISTICS = ("total_loss", "q_mean", "td_error_mean", "grad_norm")
"""Averaged over the updates of an iteration; None in one without any."""


class DQNTraining(ReplayTraining):
    """DQN's own settings; `exploration` and `replay` are sections of their own."""

    lr: Schedule = 5e-4
    """Learning rate: a number, or a schedule [[env_steps, value], ...]."""
    target_network_update_freq: Count = 500
    """Env steps between copies of the network into the target network."""
    double_q: bool = True
    """Let the network choose the next action that the target network values."""
    value_rescaling: bool = False
    """Learn h(Q) instead of Q, whose range is that of its root: for returns of very unlike size."""
    dueling: bool = True
    """Separate streams for the value of a state and the advantages of its actions."""
    num_atoms: Count = 1
    """Points of the distribution that is learned for each value (C51: 51); 1 learns its mean."""
    v_min: float = -10.0
    """The lowest of these points; returns below it are taken for it."""
    v_max: float = 10.0
    """The highest of these points."""
    noisy: bool = False
    """Explore by learned noise in the weights; goes with `exploration.epsilon: 0`."""
    sigma0: float = Field(default=0.5, gt=0)
    """Scale of that noise at the start."""
    grad_clip: float | None = Field(default=10.0, gt=0)
    """Bound on the gradients; null leaves them alone."""


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

    where Q in the argmax is ``module`` with ``double_q`` and ``target`` without; with
    ``value_rescaling`` both put out h(Q), and y is h(R + ...). No gradient flows into y. The Huber
    loss is half the square up to an error of 1 and linear beyond, so its gradient is the clipped
    error.

    Args:
        rows: obs and new_obs ``[M, ...]``; actions, rewards, terminateds, discounts, weights
            ``[M]``, as a replay buffer samples them.

    Returns:
        The loss, a scalar with gradient, and statistics without; ``td_errors`` is ``[M]``.
    """
    values = module.forward_train(rows)[col.ACTION_DIST_INPUTS]
    chosen = values.gather(1, rows[col.ACTIONS][:, None]).squeeze(1)
    goals = one_step_goals(module, rows, target, double_q, value_rescaling)
    losses = functional.huber_loss(chosen, goals, reduction="none")
    loss = (rows[col.WEIGHTS] * losses).mean()
    return loss, _statistics(loss.detach(), chosen.detach(), chosen.detach() - goals)


@torch.no_grad()
def dqn_gradient(
    module: QNetwork,
    rows: dict[str, Tensor],
    *,
    target: RLModule,
    double_q: bool,
    value_rescaling: bool = False,
) -> dict[str, Tensor]:
    """The gradient of `dqn_loss` in closed form, for networks that have a `vjp`.

    Returns:
        The statistics of `dqn_loss`. The gradients are left in the module's parameters.
    """
    values, backward = module.vjp(rows)
    actions, weights = rows[col.ACTIONS][:, None], rows[col.WEIGHTS]
    chosen = values.gather(1, actions).squeeze(1)
    goals = one_step_goals(module, rows, target, double_q, value_rescaling)
    errors = chosen - goals
    clipped = errors.clamp(-1.0, 1.0)
    d_chosen = weights * clipped / len(chosen)
    backward(torch.zeros_like(values).scatter_(1, actions, d_chosen[:, None]))
    losses = clipped * torch.sub(errors, clipped, alpha=0.5)  # Huber's
    return _statistics((weights * losses).mean(), chosen, errors)


@torch.no_grad()
def one_step_goals(
    module: RLModule,
    rows: dict[str, Tensor],
    target: RLModule,
    double_q: bool,
    value_rescaling: bool,
) -> Tensor:
    """y of `dqn_loss`, ``[M]``; a step here are the n that the replay buffer put together."""
    following = {col.OBS: rows[col.NEXT_OBS]}
    next_values = target.forward_train(following)[col.ACTION_DIST_INPUTS]
    if double_q:
        best = module.forward_train(following)[col.ACTION_DIST_INPUTS].argmax(dim=1, keepdim=True)
        bootstrap = next_values.gather(1, best).squeeze(1)
    else:
        bootstrap = next_values.amax(dim=1)
    # Selected rather than multiplied by 0: a value that has blown up must not become NaN.
    bootstrap = torch.where(rows[col.TERMINATEDS], 0.0, bootstrap)
    return bellman_goals(rows, bootstrap, value_rescaling)


def _statistics(loss: Tensor, chosen: Tensor, errors: Tensor) -> dict[str, Tensor]:
    return {
        "total_loss": loss,
        "q_mean": chosen.mean(),
        "td_error_mean": errors.abs().mean(),
        "td_errors": errors,
    }


class DQN(Algorithm):
    """Sample a little, learn from what was sampled before, hand on the weights, again and again."""

    Training = DQNTraining
    Config = DQNConfig
    optional_sections = frozenset({"exploration", "replay"})
    trains_several_policies = True
    trial_of_columns = "first_batch"

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        """Problems of batch and buffer sizes, as ``(key, message)``."""
        yield from fragment_problems(config.training.train_batch_size, config.env_runners)
        yield from replay_problems(config, memories=MEMORIES)
        for prefix, settings in addressed_settings(config):
            for key, message in _network_problems(settings):
                yield f"{prefix}{key}", message

    def setup(self) -> None:
        training = self.config.training
        assert isinstance(training, DQNTraining)  # the loader made it from `Training`
        self.targets = ByPolicy(self._target, self.policies.trained)
        self.replay = Replay(self.config.replay, training, self._settings, self._buffer)
        self._rounds = short_fragment_lengths(
            training.train_batch_size, self.config.env_runners, STEPS_OF_A_ROUND
        )

    def _target(self, policy_id: str) -> TargetNetwork:
        return TargetNetwork(self.build_module(policy_id), self.learners[policy_id])

    def _buffer(self, policy_id: str) -> ReplayBuffer:
        """A policy's buffer: of sequences, if its network has a memory."""
        replay, model = self.config.replay, self.policies[policy_id].model
        if not _has_memory(model):
            return transition_buffer(replay, self._settings(policy_id))
        return SequenceReplayBuffer(
            replay.capacity,
            length=replay.burn_in + model.max_seq_len,
            further_columns=kept_columns(self.learners[policy_id].module),
            alpha=replay.alpha if replay.prioritized else 0.0,
        )

    def module_factory(self, policy_id: str) -> ModuleFactory:
        """The Q-network."""
        return partial(build_q_network, options=_options(self._settings(policy_id)))

    def policy_factory(self, policy_id: str) -> PolicyFactory:
        """The policy that acts by the Q-network."""
        return partial(build_q_policy, options=_options(self._settings(policy_id)))

    def exploration(self, policy_id: str) -> Exploration:
        """Epsilon at this point of the run, or each runner's own; it stays for a fragment."""
        epsilon = self._epsilon(policy_id)
        exponent = self.policies[policy_id].exploration.runner_exponent
        runners = self.config.env_runners.num_env_runners
        if exponent is None or runners < 2:
            return {"epsilon": epsilon}
        # Horgan et al. 2018, arXiv:1803.00933, appendix D.
        exponents = (1.0 + exponent * i / (runners - 1) for i in range(runners))
        return tuple({"epsilon": epsilon**each} for each in exponents)

    def _epsilon(self, policy_id: str) -> float:
        return value_at(self.policies[policy_id].exploration.epsilon, self.env_steps)

    def forget_policy(self, policy_id: str) -> None:
        self.targets.pop(policy_id, None)
        self.replay.forget(policy_id)

    def training_step(self) -> dict[str, Any]:
        """One iteration: rounds of sampling, each followed by the updates that are due."""
        in_force = {
            policy_id: {
                "lr": value_at(self._settings(policy_id).lr, self.env_steps),
                "epsilon": self._epsilon(policy_id),
            }
            for policy_id in self.policies.trained
        }
        lrs = {policy_id: values["lr"] for policy_id, values in in_force.items()}
        made = take_turns(
            self, self._rounds, self.replay, partial(self._update, lrs), self._copy_if_due
        )
        result: dict[str, Any] = {}
        for policy_id, updates in made.items():
            statistics = {
                **averages(updates.statistics, STATISTICS),
                "num_updates": len(updates.statistics),
                **in_force[policy_id],
                "replay_size": self.replay.size(policy_id),
            }
            result |= self.learner_result(updates.num_rows, statistics, policy_id)
        return result

    def _copy_if_due(self, policy_id: str) -> None:
        """Renew the target network."""
        every = self._settings(policy_id).target_network_update_freq
        self.targets[policy_id].copy_if_due(self.progress.counted_steps, every)

    def _update(
        self,
        lrs: Mapping[str, float],
        policy_id: str,
        batch: SampleBatch,
        rng: np.random.Generator,
    ) -> dict[str, Tensor]:
        """One gradient step on replayed transitions; their errors become their priorities."""
        training, learner = self._settings(policy_id), self.learners[policy_id]
        target, lr = self.targets[policy_id].module, lrs[policy_id]
        arguments: dict[str, Any] = {"target": target, "double_q": training.double_q}
        if training.num_atoms == 1:
            arguments["value_rescaling"] = training.value_rescaling
        buffer = self.replay.buffers[policy_id]
        if isinstance(buffer, SequenceReplayBuffer):
            rows = load_sequences(
                batch,
                learner.module,
                learner.device,
                burn_in=self.config.replay.burn_in,
                n_step=training.n_step,
                gamma=training.gamma,
            )
            statistics = learner.step(rows, sequence_loss, arguments, lr=lr)
            errors = statistics.pop("td_errors")
            if self.config.replay.prioritized:
                epsilon = self.config.replay.epsilon
                report_sequence_errors(buffer, batch, rows, errors, epsilon=epsilon)
            return statistics
        if training.noisy:
            for network in (learner.module, target):
                if isinstance(network, QNetwork):
                    network.draw_noise(rng)
        rows = to_device(batch, learner.device)
        loss = dqn_loss if training.num_atoms == 1 else c51_loss
        written_out = loss is dqn_loss and learner.module.has_vjp
        gradient = dqn_gradient if written_out else None
        statistics = learner.step(rows, loss, arguments, lr=lr, gradient=gradient)
        self.replay.report_errors(policy_id, batch, statistics.pop("td_errors"))
        return statistics

    def get_extra_state(self) -> dict[str, Any]:
        return {"targets": self.targets.get_state(), **self.replay.get_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.targets.set_state(state["targets"])
        self.replay.set_state(state)

    def _settings(self, policy_id: str) -> DQNTraining:
        training = self.policies[policy_id].training
        assert isinstance(training, DQNTraining)  # the loader made it from `Training`
        return training


def _has_memory(model: ModelConfig) -> bool:
    return any(getattr(model, name) for name in MEMORIES)


def _network_problems(settings: PolicySettings) -> Iterator[tuple[str, str]]:
    """What does not go together in one policy's settings."""
    training = settings.training
    assert isinstance(training, DQNTraining)  # the loader made it from `Training`
    if _has_memory(settings.model):
        for name, off in (("num_atoms", 1), ("noisy", False)):
            if getattr(training, name) != off:
                message = "does not go together with a memory (model.use_lstm, use_gru)"
                yield f"training.{name}", f"{message}; leave it out"
    if training.num_atoms > 1 and training.value_rescaling:
        message = "values with a distribution (num_atoms) are not rescaled; leave it out"
        yield "training.value_rescaling", message
    if training.num_atoms > 1 and training.v_min >= training.v_max:
        message = f"must be below v_max {training.v_max:g}, and is {training.v_min:g}"
        yield "training.v_min", message
    if training.noisy and settings.exploration.epsilon != 0:
        message = "noisy weights explore by themselves; set it to 0 beside training.noisy"
        yield "exploration.epsilon", message


def _options(training: DQNTraining) -> QOptions:
    return QOptions(
        dueling=training.dueling,
        num_atoms=training.num_atoms,
        v_min=training.v_min,
        v_max=training.v_max,
        noisy=training.noisy,
        sigma0=training.sigma0,
    )
