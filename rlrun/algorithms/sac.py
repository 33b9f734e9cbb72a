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
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rlrun.algorithms.algorithm import Algorithm
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
from rlrun.algorithms.sac_gradients import critic_gradient, policy_gradient
from rlrun.algorithms.soft_values import NEXT_NOISE, NOISE, critic_statistics, soft_goals
from rlrun.algorithms.target_network import TargetNetwork
from rlrun.algorithms.temperature import Temperature
from rlrun.config.batch_arithmetic import fragment_problems, short_fragment_lengths
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.problems import ConfigError, Origin, Problem
from rlrun.config.schema import Count, ExperimentConfig, Schedule
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import Learner, value_at
from rlrun.policies.catalog import ModuleFactory
from rlrun.policies.distributions import squashed_sample
from rlrun.policies.rl_module import RLModule
from rlrun.policies.sac_policy import build_sac_policy
from rlrun.policies.soft_actor_critic import Q_VALUES, SACPolicyNetwork, TwinQNetwork
from rlrun.replay.replay_buffer import ReplayBuffer
from rlrun.sampling.runner_messages import PolicyFactory

CRITICS = "critics."  # before the names of their weights
STEPS_OF_A_ROUND = 1  # env steps between updates with rollout_fragment_length: auto
STATISTICS = (
    *("critic_loss", "policy_loss", "q_mean", "td_error_mean"),
    *("entropy", "alpha", "critic_grad_norm", "policy_grad_norm"),
)
"""Averaged over the updates of an iteration; None in one without any."""


class SACTraining(ReplayTraining):
    """SAC's own settings; `replay` is a section of its own."""

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
    tau: float = Field(default=0.005, gt=0, le=1)
    """How far the target critics move towards the critics in each update."""
    initial_alpha: float = Field(default=1.0, gt=0)
    """Weight of the entropy beside the reward, at the start."""
    target_entropy: float | None = None
    """Entropy that alpha steers to; null is -A for a Box and 0.98 log n for Discrete actions."""
    noise_correlation: float = Field(default=0.0, ge=0, lt=1)
    """Correlation of an action's noise with that of the next one in the episode; of a Box only.
    Noise that lasts explores further where independent pushes cancel out."""


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
    return loss, critic_statistics(loss.detach(), values.detach(), errors.detach())


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


@dataclass(frozen=True)
class LearningRates:
    """Of one policy, at this point of the run."""

    policy: float
    critic: float
    alpha: float


class PolicyUpdater:
    """What one policy's updates need besides its learner: critics, their target, temperature.

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
        self._learner, self.critic, self._training = learner, critic, training
        self._continuous = isinstance(action_space, gym.spaces.Box)
        self.target = TargetNetwork(target, critic)
        entropy = training.target_entropy
        if entropy is None:
            entropy = default_target_entropy(action_space)
        self.temperature = Temperature(training.initial_alpha, entropy, learner.device)

    def rates(self, env_steps: int) -> LearningRates:
        """Learning rates after so many env steps of the run."""
        training = self._training
        lr = value_at(training.lr, env_steps)
        critic_lr, alpha_lr = (
            lr if schedule is None else value_at(schedule, env_steps)
            for schedule in (training.critic_lr, training.alpha_lr)
        )
        return LearningRates(lr, critic_lr, alpha_lr)

    def update(
        self, batch: SampleBatch, rng: np.random.Generator, rates: LearningRates
    ) -> dict[str, Tensor]:
        """One step of the critics, the policy, the temperature and the target."""
        learner, critic = self._learner, self.critic
        rows = to_device(batch, learner.device)
        if self._continuous:
            shape = (2, *rows[col.ACTIONS].shape)
            noise = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
            rows[NOISE], rows[NEXT_NOISE] = noise.to(learner.device)
        alpha = self.temperature.alpha
        policy, critics = learner.module, critic.module
        of_critics = critic.step(
            rows,
            critic_loss,
            {"policy": policy, "target": self.target.module, "alpha": alpha},
            lr=rates.critic,
            gradient=critic_gradient if critics.has_vjp else None,
        )
        of_policy = learner.step(
            rows,
            policy_loss,
            {"critics": critics, "alpha": alpha},
            lr=rates.policy,
            gradient=policy_gradient if critics.has_vjp and policy.has_vjp else None,
        )
        self.temperature.step(of_policy["entropy"], rates.alpha)
        self.target.follow(self._training.tau)
        grad_norms = {
            "critic_grad_norm": of_critics.pop("grad_norm"),
            "policy_grad_norm": of_policy.pop("grad_norm"),
        }
        return {**of_critics, **of_policy, **grad_norms, "alpha": alpha[0]}

    def get_state(self) -> dict[str, Any]:
        """Everything besides the weights of policy and critics."""
        return {
            "critic": self.critic.get_state(),
            "target": self.target.get_state(),
            "temperature": self.temperature.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self.critic.set_state(state["critic"])
        self.target.set_state(state["target"])
        self.temperature.set_state(state["temperature"])


def default_target_entropy(action_space: gym.Space[Any]) -> float:
    """-A for a Box of A dimensions, 0.98 log n for n discrete actions."""
    if isinstance(action_space, gym.spaces.Discrete):
        return 0.98 * float(np.log(action_space.n))
    return -float(gym.spaces.flatdim(action_space))


class SAC(Algorithm):
    """Sample a step, learn from what was sampled before, hand on the weights, again and again."""

    Training = SACTraining
    Config = SACConfig
    optional_sections = frozenset({"replay"})
    trains_several_policies = True
    trial_of_columns = "first_batch"

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        """Problems of batch and buffer sizes, as ``(key, message)``."""
        yield from fragment_problems(config.training.train_batch_size, config.env_runners)
        yield from replay_problems(config)

    def setup(self) -> None:
        training = self.config.training
        assert isinstance(training, SACTraining)  # the loader made it from `Training`
        self.updaters = ByPolicy(self._updater, self.policies.trained)
        self.replay = Replay(self.config.replay, training, self._settings, self._buffer)
        self._rounds = short_fragment_lengths(
            training.train_batch_size, self.config.env_runners, STEPS_OF_A_ROUND
        )

    def _updater(self, policy_id: str) -> PolicyUpdater:
        training, learner = self._settings(policy_id), self.learners[policy_id]
        _, space = self.policies.module_spaces(policy_id)
        if isinstance(space, gym.spaces.Box) and not self.config.connectors.normalize_actions:
            message = "SAC acts in (-1, 1), which must be stretched to the bounds; leave it out"
            origin = Origin("this experiment")
            raise ConfigError([Problem(origin, "connectors.normalize_actions", message)])
        critics, target = (self.build_module(policy_id, TwinQNetwork) for _ in range(2))
        critic = Learner(critics, training, self.config.learners)
        return PolicyUpdater(learner, critic, target, training, space)

    def _buffer(self, policy_id: str) -> ReplayBuffer:
        return transition_buffer(self.config.replay, self._settings(policy_id))

    def module_factory(self, policy_id: str) -> ModuleFactory:
        """The policy network; the critics are made by `setup`."""
        return SACPolicyNetwork

    def policy_factory(self, policy_id: str) -> PolicyFactory:
        """The policy that acts by the policy network."""
        correlation = self._settings(policy_id).noise_correlation
        return partial(build_sac_policy, noise_correlation=correlation)

    def forget_policy(self, policy_id: str) -> None:
        self.updaters.pop(policy_id, None)
        self.replay.forget(policy_id)

    def training_step(self) -> dict[str, Any]:
        """One iteration: rounds of sampling, each followed by the updates that are due."""
        rates = {
            policy_id: self.updaters[policy_id].rates(self.env_steps)
            for policy_id in self.policies.trained
        }
        made = take_turns(self, self._rounds, self.replay, partial(self._update, rates))
        result: dict[str, Any] = {}
        for policy_id, updates in made.items():
            statistics = {
                **averages(updates.statistics, STATISTICS),
                "num_updates": len(updates.statistics),
                "lr": rates[policy_id].policy,
                "replay_size": self.replay.size(policy_id),
            }
            result |= self.learner_result(updates.num_rows, statistics, policy_id)
        return result

    def _update(
        self,
        rates: Mapping[str, LearningRates],
        policy_id: str,
        batch: SampleBatch,
        rng: np.random.Generator,
    ) -> dict[str, Tensor]:
        """One update of a policy; the critics' errors become priorities."""
        statistics = self.updaters[policy_id].update(batch, rng, rates[policy_id])
        self.replay.report_errors(policy_id, batch, statistics.pop("td_errors"))
        return statistics

    # -- state: the weights of policies and critics together, as a checkpoint keeps them ---------

    def get_weights(self) -> dict[str, np.ndarray]:
        """Copies of all weights by parameter name; the critics' begin with `critics.`."""
        weights = super().get_weights()
        for policy_id, updater in self.updaters.items():
            prefix = f"{policy_id}/{CRITICS}"
            named = updater.critic.named_weights()
            weights |= {f"{prefix}{name}": values for name, values in named.items()}
        return weights

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over weights by name."""
        rest = dict(weights)
        for policy_id in self.learners:
            prefix = f"{policy_id}/{CRITICS}"
            named = {
                name.removeprefix(prefix): rest.pop(name)
                for name in weights
                if name.startswith(prefix)
            }
            if self.policies[policy_id].train:  # it may have learned before and be frozen now
                self.updaters[policy_id].critic.load_named_weights(named)
        super().set_weights(rest)

    def get_extra_state(self) -> dict[str, Any]:
        return {"updaters": self.updaters.get_state(), **self.replay.get_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.updaters.set_state(state["updaters"])
        self.replay.set_state(state)

    def _settings(self, policy_id: str) -> SACTraining:
        training = self.policies[policy_id].training
        assert isinstance(training, SACTraining)  # the loader made it from `Training`
        return training
