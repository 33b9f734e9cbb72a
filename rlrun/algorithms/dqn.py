"""DQN: Q-learning with a replay buffer and a target network (Mnih et al. 2015), and its extensions.

Double Q-learning (van Hasselt et al. 2016), dueling networks (Wang et al. 2016), prioritised replay
(Schaul et al. 2016) and n-step returns (Sutton 1988; Hessel et al. 2018) are switches.

    M  rows of a minibatch      n  actions

Sampling and learning take turns: a round of sampling brings a few env steps, then follow the
updates that `training_intensity` asks for. Epsilon is a function of the env steps of the whole run,
so it goes on where it was when a run is resumed. The buffer is part of a checkpoint only with
`replay.store_in_checkpoints`; without it a resumed run is not the one that was left alone, and
learns on once its buffer holds `num_steps_sampled_before_learning_starts` transitions again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from rlrun.algorithms.algorithm import Algorithm
from rlrun.config.batch_arithmetic import fragment_problems, short_fragment_lengths
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.schema import MEMORY_SWITCHES, Count, ExperimentConfig, Schedule, TrainingConfig
from rlrun.data import columns as col
from rlrun.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rlrun.data.replay_buffer import ReplayBuffer
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import Learner, value_at
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.q_network import build_q_network
from rlrun.policies.q_policy import build_q_policy
from rlrun.policies.rl_module import ModuleFactory, RLModule
from rlrun.sampling.runner_messages import PolicyFactory

STEPS_OF_A_ROUND = 4  # env steps between updates with rollout_fragment_length: auto
COLUMNS = (
    *(col.OBS, col.ACTIONS, col.REWARDS, col.NEXT_OBS, col.TERMINATEDS),
    *(col.DISCOUNTS, col.WEIGHTS),
)
STATISTICS = ("total_loss", "q_mean", "td_error_mean", "grad_norm")
"""Averaged over the updates of an iteration; None in one without any."""


class DQNTraining(TrainingConfig):
    """DQN's own settings; `exploration` and `replay` are sections of their own."""

    train_batch_size: Count = 1024
    """Env steps collected for one iteration, exactly, in many short rounds with updates between."""
    lr: Schedule = 5e-4
    """Learning rate of Adam: a number, or a schedule [[env_steps, value], ...]."""
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
    dueling: bool = True
    """Separate streams for the value of a state and the advantages of its actions."""
    grad_clip: float | None = Field(default=10.0, gt=0)
    """Bound on the gradients; null leaves them alone."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Adam's epsilon."""


class DQNConfig(AlgorithmConfig):
    """Builds a DQN experiment in Python."""

    algorithm = "DQN"


def dqn_loss(
    module: RLModule, rows: dict[str, Tensor], *, target: RLModule, double_q: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean Huber loss of the temporal-difference errors, weighted row by row.

        y = R + discount (1 - terminated) Q_target(s', argmax_a Q(s', a))

    where Q in the argmax is ``module`` with ``double_q`` and ``target`` without. No gradient
    flows into y. The Huber loss is half the square up to an error of 1 and linear beyond, so its
    gradient is the clipped error.

    Args:
        rows: obs and new_obs ``[M, ...]``; actions, rewards, terminateds, discounts, weights
            ``[M]``, as a replay buffer samples them.

    Returns:
        The loss, a scalar with gradient, and statistics without; ``td_errors`` is ``[M]``.
    """
    values = module.forward_train(rows)[col.ACTION_DIST_INPUTS]
    chosen = values.gather(1, rows[col.ACTIONS][:, None]).squeeze(1)
    with torch.no_grad():
        following = {col.OBS: rows[col.NEXT_OBS]}
        next_values = target.forward_train(following)[col.ACTION_DIST_INPUTS]
        choosing = module.forward_train(following)[col.ACTION_DIST_INPUTS] if double_q else None
        best = (next_values if choosing is None else choosing).argmax(dim=1, keepdim=True)
        bootstrap = next_values.gather(1, best).squeeze(1)
        # Selected rather than multiplied by 0: a value that has blown up must not become NaN.
        bootstrap = torch.where(rows[col.TERMINATEDS], 0.0, bootstrap)
        goals = rows[col.REWARDS] + rows[col.DISCOUNTS] * bootstrap
    losses = functional.huber_loss(chosen, goals, reduction="none")
    loss = (rows[col.WEIGHTS] * losses).mean()
    errors = (chosen - goals).detach()
    statistics = {
        "total_loss": loss.detach(),
        "q_mean": chosen.detach().mean(),
        "td_error_mean": errors.abs().mean(),
        "td_errors": errors,
    }
    return loss, statistics


class DQN(Algorithm):
    """Sample a little, learn from what was sampled before, hand on the weights, again and again."""

    Training = DQNTraining
    Config = DQNConfig
    optional_sections = frozenset({"exploration", "replay"})

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        """Problems of batch and buffer sizes, as ``(key, message)``."""
        training = _settings(config)
        yield from fragment_problems(training.train_batch_size, config.env_runners)
        for name in MEMORY_SWITCHES:
            if getattr(config.model, name):
                message = "DQN replays single transitions, which no memory can learn from"
                yield f"model.{name}", f"{message}; leave it out"
        needed = training.num_steps_sampled_before_learning_starts
        if needed > config.replay.capacity:
            yield (
                "replay.capacity",
                f"a buffer of {config.replay.capacity} transitions loses some of the {needed} that "
                f"num_steps_sampled_before_learning_starts asks for: set it to {needed} or more",
            )

    def setup(self) -> None:
        training, replay = _settings(self.config), self.config.replay
        module = self.build_module()
        self.target = copy.deepcopy(module).requires_grad_(False)
        self.learner = Learner(
            module, training, self.config.learners, adam_eps=training.adam_epsilon
        )
        self.target.to(self.learner.device)
        self._target_parameters = FlatParameters(self.target)
        returns: dict[str, Any] = {"n_step": training.n_step, "gamma": training.gamma}
        self.buffer = (
            PrioritizedReplayBuffer(replay.capacity, alpha=replay.alpha, **returns)
            if replay.prioritized
            else ReplayBuffer(replay.capacity, **returns)
        )
        self._rounds = short_fragment_lengths(
            training.train_batch_size, self.config.env_runners, STEPS_OF_A_ROUND
        )
        self._rows_due = 0.0  # transitions to replay for env steps already sampled
        self._target_env_steps = 0  # env steps at the last copy into the target network

    def module_factory(self) -> ModuleFactory:
        """The Q-network."""
        return partial(build_q_network, dueling=_settings(self.config).dueling)

    def policy_factory(self) -> PolicyFactory:
        """The policy that acts by the Q-network."""
        return partial(build_q_policy, dueling=_settings(self.config).dueling)

    def exploration(self) -> dict[str, float]:
        """Epsilon at this point of the run, for all runners; it stays for a fragment."""
        return {"epsilon": value_at(self.config.exploration.epsilon, self.env_steps)}

    def training_step(self) -> dict[str, Any]:
        """One iteration: rounds of sampling, each followed by the updates that are due."""
        training = _settings(self.config)
        lr = value_at(training.lr, self.env_steps)
        epsilon = self.exploration()["epsilon"]
        updates: list[dict[str, Tensor]] = []
        for lengths in self._rounds:
            batch = self.sample([lengths])
            with self.timers.phase("transfer"):
                self.buffer.add(batch)
            updates += self._learn(len(batch), lr)
        statistics = _averages(updates)
        further = {
            "num_updates": len(updates),
            "lr": lr,
            "epsilon": epsilon,
            "replay_size": len(self.buffer),
        }
        return self.learner_result(
            len(updates) * training.minibatch_size, {**statistics, **further}
        )

    def _learn(self, env_steps: int, lr: float) -> list[dict[str, Tensor]]:
        """The updates that are due after so many further env steps, and the weights' way out."""
        training = _settings(self.config)
        if self.buffer.num_added < training.num_steps_sampled_before_learning_starts:
            return []
        self._rows_due += env_steps * training.training_intensity
        num_updates = int(self._rows_due // training.minibatch_size)
        self._rows_due -= num_updates * training.minibatch_size
        if not num_updates:
            return []
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
        batch = self._replay(training.minibatch_size, rng)
        rows = {
            name: torch.from_numpy(batch.column(name)).to(self.learner.device) for name in COLUMNS
        }
        arguments = {"target": self.target, "double_q": training.double_q}
        statistics = self.learner.accumulate([rows], len(batch), dqn_loss, arguments, lr=lr)
        errors = statistics.pop("td_errors")
        if isinstance(self.buffer, PrioritizedReplayBuffer):
            priorities = errors.abs().cpu().numpy() + self.config.replay.epsilon
            self.buffer.update_priorities(batch.column(col.ITEM_IDS), priorities)
        return statistics

    def _replay(self, num_rows: int, rng: np.random.Generator) -> SampleBatch:
        if isinstance(self.buffer, PrioritizedReplayBuffer):
            beta = value_at(self.config.replay.beta, self.env_steps)
            return self.buffer.sample(num_rows, rng, beta=beta)
        batch = self.buffer.sample(num_rows, rng)
        batch[col.WEIGHTS] = np.ones(num_rows, dtype=np.float32)
        return batch

    def get_extra_state(self) -> dict[str, Any]:
        stored = self.config.replay.store_in_checkpoints
        return {
            "target": self._target_parameters.to_numpy(),
            "target_env_steps": self._target_env_steps,
            "rows_due": self._rows_due,
            "buffer": self.buffer.get_state() if stored else None,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self._target_parameters.load(state["target"])
        self._target_env_steps = int(state["target_env_steps"])
        self._rows_due = float(state["rows_due"])
        if state["buffer"] is not None:
            self.buffer.set_state(state["buffer"])


def _averages(updates: list[dict[str, Tensor]]) -> dict[str, float | None]:
    """Means over the updates of one iteration, with one transfer from the device."""
    if not updates:
        return dict.fromkeys(STATISTICS)
    table = torch.stack([update[name] for update in updates for name in STATISTICS])
    means = table.view(len(updates), len(STATISTICS)).mean(0)
    return dict(zip(STATISTICS, means.tolist(), strict=True))


def _settings(config: ExperimentConfig) -> DQNTraining:
    assert isinstance(config.training, DQNTraining)  # the loader made it from `Training`
    return config.training
