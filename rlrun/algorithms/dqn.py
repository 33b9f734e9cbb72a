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

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.replay import Replay, averages, replay_problems, to_device
from rlrun.algorithms.sequence_replay import (
    kept_columns,
    load_sequences,
    report_sequence_errors,
    sequence_loss,
)
from rlrun.config.batch_arithmetic import fragment_problems, short_fragment_lengths
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.schema import Count, ExperimentConfig, Schedule, TrainingConfig
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sequence_replay_buffer import SequenceReplayBuffer
from rlrun.learning.learner import value_at
from rlrun.learning.value_rescaling import bellman_goals
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.q_network import ATOM_LOGITS, QNetwork, build_q_network
from rlrun.policies.q_options import QOptions
from rlrun.policies.q_policy import build_q_policy
from rlrun.policies.rl_module import ModuleFactory, RLModule
from rlrun.sampling.runner_messages import Exploration, PolicyFactory

STEPS_OF_A_ROUND = 4  # env steps between updates with rollout_fragment_length: auto
MEMORIES = ("use_lstm", "use_gru")
STATISTICS = ("total_loss", "q_mean", "td_error_mean", "grad_norm")
"""Averaged over the updates of an iteration; None in one without any."""


class DQNTraining(TrainingConfig):
    """DQN's own settings; `exploration` and `replay` are sections of their own."""

    train_batch_size: Count = 1024
    """Env steps collected for one iteration, exactly, in many short rounds with updates between."""
    lr: Schedule = 5e-4
    """Learning rate: a number, or a schedule [[env_steps, value], ...]."""
    minibatch_size: Count = 32
    """Transitions replayed for one gradient step."""
    training_intensity: float = Field(default=8.0, gt=0)
    """Transitions replayed for each env step sampled; 8 is a minibatch of 32 every 4 steps."""
    num_steps_sampled_before_learning_starts: Count = 1000
    """Env steps put into an empty replay buffer before it is learned from."""
    target_network_update_freq: Count = 500
    """Env steps between copies of the network into the target network."""
    n_step: Count = 1
    """Rewards summed up before the target network's value; fewer where the episode ends."""
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
    return loss, _statistics(loss.detach(), chosen.detach(), goals)


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
    clipped_errors = (chosen - goals).clamp_(-1.0, 1.0)
    d_chosen = weights * clipped_errors / len(chosen)
    backward(torch.zeros_like(values).scatter_(1, actions, d_chosen[:, None]))
    losses = functional.huber_loss(chosen, goals, reduction="none")
    return _statistics((weights * losses).mean(), chosen, goals)


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


def _statistics(loss: Tensor, chosen: Tensor, goals: Tensor) -> dict[str, Tensor]:
    errors = chosen - goals
    return {
        "total_loss": loss,
        "q_mean": chosen.mean(),
        "td_error_mean": errors.abs().mean(),
        "td_errors": errors,
    }


def c51_loss(
    module: RLModule, rows: dict[str, Tensor], *, target: RLModule, double_q: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean cross-entropy of the value's distribution to the projected one, weighted row by row.

    The target is the distribution of ``R + discount Z(s', a*)``, brought back to the K atoms
    (Bellemare et al. 2017, algorithm 1); a* is chosen by means, by ``module`` with ``double_q``.

    Args and returns: as for `dqn_loss`; ``td_errors`` are the Kullback-Leibler divergences of the
    targets, by which Rainbow sets priorities.
    """
    assert isinstance(module, QNetwork)  # no other has atoms
    outputs = module.forward_train(rows)
    index = torch.arange(len(rows[col.ACTIONS]), device=rows[col.ACTIONS].device)
    chosen = outputs[ATOM_LOGITS][index, rows[col.ACTIONS]].log_softmax(-1)
    with torch.no_grad():
        support = module.support
        following = {col.OBS: rows[col.NEXT_OBS]}
        next_outputs = target.forward_train(following)
        choosing = module.forward_train(following) if double_q else next_outputs
        best = choosing[col.ACTION_DIST_INPUTS].argmax(dim=1)
        probabilities = next_outputs[ATOM_LOGITS][index, best].softmax(-1)
        discounts = torch.where(rows[col.TERMINATEDS], 0.0, rows[col.DISCOUNTS])
        goals = project_distribution(probabilities, rows[col.REWARDS], discounts, support)
    cross_entropies = -(goals * chosen).sum(-1)
    loss = (rows[col.WEIGHTS] * cross_entropies).mean()
    means = chosen.detach().exp() @ support
    statistics = {
        "total_loss": loss.detach(),
        "q_mean": means.mean(),
        "td_error_mean": (means - goals @ support).abs().mean(),
        "td_errors": cross_entropies.detach() + torch.xlogy(goals, goals).sum(-1),
    }
    return loss, statistics


def project_distribution(
    probabilities: Tensor, rewards: Tensor, discounts: Tensor, support: Tensor
) -> Tensor:
    """The distribution of ``reward + discount Z`` on the atoms of Z, ``[M, K]``.

    A point between two atoms is shared among them by its distance from each, so that the mean
    stays; one beyond the ends goes to the end (Bellemare et al. 2017, eq. 7).

    Args:
        probabilities: of Z, ``[M, K]``.
        rewards, discounts: ``[M]``; a discount of 0 leaves all mass at the reward.
        support: the K atoms, ascending at equal distances.
    """
    low, high = support[0], support[-1]
    points = torch.addcmul(rewards[:, None], discounts[:, None], support).clamp(low, high)
    positions = (points - low) / (support[1] - low)
    # share[m, i, j] is how much of point j goes to atom i.
    atoms = torch.arange(len(support), device=support.device, dtype=support.dtype)[:, None]
    share = (1.0 - (positions[:, None, :] - atoms).abs()).clamp(min=0.0)
    return (share @ probabilities[:, :, None]).squeeze(-1)


class DQN(Algorithm):
    """Sample a little, learn from what was sampled before, hand on the weights, again and again."""

    Training = DQNTraining
    Config = DQNConfig
    optional_sections = frozenset({"exploration", "replay"})
    trial_of_columns = "first_batch"

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        """Problems of batch and buffer sizes, as ``(key, message)``."""
        training = _settings(config)
        yield from fragment_problems(training.train_batch_size, config.env_runners)
        needed = training.num_steps_sampled_before_learning_starts
        yield from replay_problems(config, needed, memories=MEMORIES)
        if _has_memory(config):
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
        if training.noisy and config.exploration.epsilon != 0:
            message = "noisy weights explore by themselves; set it to 0 beside training.noisy"
            yield "exploration.epsilon", message

    def setup(self) -> None:
        training = _settings(self.config)
        self.target = self.build_module().to(self.learner.device).requires_grad_(False)
        self._target_parameters = FlatParameters(self.target)
        self.replay = Replay(
            self.config.replay,
            n_step=training.n_step,
            gamma=training.gamma,
            minibatch_size=training.minibatch_size,
            training_intensity=training.training_intensity,
            learning_starts=training.num_steps_sampled_before_learning_starts,
            buffer=self._sequence_buffer() if _has_memory(self.config) else None,
        )
        self._rounds = short_fragment_lengths(
            training.train_batch_size, self.config.env_runners, STEPS_OF_A_ROUND
        )
        self._target_env_steps = 0  # env steps at the last copy into the target network

    def _sequence_buffer(self) -> SequenceReplayBuffer:
        replay = self.config.replay
        return SequenceReplayBuffer(
            replay.capacity,
            length=replay.burn_in + self.config.model.max_seq_len,
            further_columns=kept_columns(self.learner.module),
            alpha=replay.alpha if replay.prioritized else 0.0,
        )

    def module_factory(self, policy_id: str) -> ModuleFactory:
        """The Q-network."""
        return partial(build_q_network, options=_options(self.config))

    def policy_factory(self, policy_id: str) -> PolicyFactory:
        """The policy that acts by the Q-network."""
        return partial(build_q_policy, options=_options(self.config))

    def exploration(self, policy_id: str) -> Exploration:
        """Epsilon at this point of the run, or each runner's own; it stays for a fragment."""
        exponent = self.config.exploration.runner_exponent
        runners = self.config.env_runners.num_env_runners
        if exponent is None or runners < 2:
            return {"epsilon": self._epsilon()}
        # Horgan et al. 2018, arXiv:1803.00933, appendix D.
        exponents = (1.0 + exponent * i / (runners - 1) for i in range(runners))
        return tuple({"epsilon": self._epsilon() ** each} for each in exponents)

    def _epsilon(self) -> float:
        return value_at(self.config.exploration.epsilon, self.env_steps)

    def training_step(self) -> dict[str, Any]:
        """One iteration: rounds of sampling, each followed by the updates that are due."""
        training = _settings(self.config)
        lr = value_at(training.lr, self.env_steps)
        epsilon = self._epsilon()
        updates: list[dict[str, Tensor]] = []
        for lengths in self._rounds:
            batch = self.sample([lengths])
            with self.timers.phase("transfer"):
                num_updates = self.replay.add(batch)
            if num_updates:
                updates += self._learn(num_updates, lr)
        statistics = averages(updates, STATISTICS)
        further = {
            "num_updates": len(updates),
            "lr": lr,
            "epsilon": epsilon,
            "replay_size": len(self.replay.buffer),
        }
        return self.learner_result(
            len(updates) * training.minibatch_size, {**statistics, **further}
        )

    def _learn(self, num_updates: int, lr: float) -> list[dict[str, Tensor]]:
        """So many updates, and the weights' way out."""
        training = _settings(self.config)
        rng = self.learner_rng()
        with self.timers.phase("learn"):
            updates = [self._update(training, lr, rng) for _ in range(num_updates)]
            if self.env_steps - self._target_env_steps >= training.target_network_update_freq:
                self._target_parameters.load(self.learner.parameters.vector)
                self._target_env_steps = self.env_steps
        self.sync_weights()
        return updates

    def _update(
        self, training: DQNTraining, lr: float, rng: np.random.Generator
    ) -> dict[str, Tensor]:
        """One gradient step on replayed transitions; their errors become their priorities."""
        batch = self.replay.sample(rng, self.env_steps)
        if isinstance(self.replay.buffer, SequenceReplayBuffer):
            return self._update_from_sequences(training, lr, batch, self.replay.buffer)
        rows = to_device(batch, self.learner.device)
        if training.noisy:
            for network in (self.learner.module, self.target):
                if isinstance(network, QNetwork):
                    network.draw_noise(rng)
        arguments: dict[str, Any] = {"target": self.target, "double_q": training.double_q}
        if training.num_atoms > 1:
            statistics = self.learner.step(rows, c51_loss, arguments, lr=lr)
        else:
            arguments["value_rescaling"] = training.value_rescaling
            gradient = dqn_gradient if self.learner.module.has_vjp else None
            statistics = self.learner.step(rows, dqn_loss, arguments, lr=lr, gradient=gradient)
        self.replay.report_errors(batch, statistics.pop("td_errors"))
        return statistics

    def _update_from_sequences(
        self, training: DQNTraining, lr: float, batch: SampleBatch, buffer: SequenceReplayBuffer
    ) -> dict[str, Tensor]:
        """As `_update`, on replayed sequences."""
        rows = load_sequences(
            batch,
            self.learner.module,
            self.learner.device,
            burn_in=self.config.replay.burn_in,
            n_step=training.n_step,
            gamma=training.gamma,
        )
        arguments: dict[str, Any] = {"target": self.target, "double_q": training.double_q}
        arguments["value_rescaling"] = training.value_rescaling
        statistics = self.learner.step(rows, sequence_loss, arguments, lr=lr)
        errors = statistics.pop("td_errors")
        if self.config.replay.prioritized:
            report_sequence_errors(buffer, batch, rows, errors)
        return statistics

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "target": self._target_parameters.to_numpy(),
            "target_env_steps": self._target_env_steps,
            **self.replay.get_state(),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self._target_parameters.load(state["target"])
        self._target_env_steps = int(state["target_env_steps"])
        self.replay.set_state(state)


def _has_memory(config: ExperimentConfig) -> bool:
    return any(getattr(config.model, name) for name in MEMORIES)


def _settings(config: ExperimentConfig) -> DQNTraining:
    assert isinstance(config.training, DQNTraining)  # the loader made it from `Training`
    return config.training


def _options(config: ExperimentConfig) -> QOptions:
    training = _settings(config)
    return QOptions(
        dueling=training.dueling,
        num_atoms=training.num_atoms,
        v_min=training.v_min,
        v_max=training.v_max,
        noisy=training.noisy,
        sigma0=training.sigma0,
    )
