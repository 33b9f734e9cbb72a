"""The default networks with a memory: encoder, LSTM or GRU, heads.

Owns the inputs of the memory and how it runs over sequences. Sampling step by step and learning
from sequences are one function: a step is a sequence of length 1.

Batches hold the steps of sequences one after the other, [M, ...], without padding: encoders, heads
and losses work on those, so that no padding can enter a mean. Only the memory needs sequences side
by side, [S, L, ...]; `pad_sequences` and `unpad_sequences` go back and forth.

    S  sequences    L  steps of the longest    M  steps of all    C  units    F  features
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.data.view_requirement import ViewRequirement
from rlrun.policies.action_sampling import ActionLayout, action_layout
from rlrun.policies.layers import VALUE_GAIN, Layers, policy_gain, value_hidden
from rlrun.policies.networks import MLP, linear
from rlrun.policies.privileged import PolicyInput
from rlrun.policies.rl_module import (
    EncoderInput,
    RLModule,
    TensorBatch,
    dist_inputs,
    encoder_of,
    log_std_parameter,
    set_log_std_bias,
)


def in_sequences(
    steps: Tensor, batch: TensorBatch, padding: float = 0.0
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The steps [M, ...] of a batch as sequences [S, L, ...], and the way back to [M, ...].

    Without ``seq_lens`` every step is a sequence by itself.

    Args:
        padding: what stands to the right of shorter sequences.
    """
    if col.SEQ_LENS not in batch:
        return steps[:, None], itemgetter((slice(None), 0))
    seq_lens = batch[col.SEQ_LENS]
    mask = torch.arange(int(seq_lens.max()), device=seq_lens.device) < seq_lens[:, None]
    if len(steps) == mask.numel():
        sequences = steps.view(*mask.shape, *steps.shape[1:])
    else:
        sequences = steps.new_full((*mask.shape, *steps.shape[1:]), padding)
        sequences[mask] = steps
    return sequences, lambda padded: padded[mask]


class Heads(nn.Module):
    """Policy and value head on features that both share.

    Args:
        module: the module that has these heads.
        width: of the features.
        privileged_width: of further features that only the value head sees.
    """

    def __init__(self, module: RLModule, width: int, privileged_width: int = 0) -> None:
        super().__init__()
        action_space, model = module.action_space, module.model
        self.log_std = log_std_parameter(action_space, model)
        num_log_std = 0 if self.log_std is None else len(self.log_std)
        num_outputs = module.distribution.num_inputs - num_log_std
        self.pi = head((width, *model.head_hidden, num_outputs), policy_gain(model), model)
        # Nothing else joins the memory's outputs and the privileged features.
        joining = model.hidden if privileged_width else ()
        hidden = value_hidden(model, model.head_hidden or joining)
        self.vf = head((width + privileged_width, *hidden, 1), VALUE_GAIN, model)
        if self.log_std is None:
            last = self.pi.last if isinstance(self.pi, MLP) else self.pi
            set_log_std_bias(last, action_space, model)

    def dist_inputs(self, features: Tensor) -> Tensor:
        """Features [N, F] -> [N, P]."""
        return dist_inputs(self.log_std, self.pi(features))

    def values(self, features: Tensor) -> Tensor:
        """Features [N, F] -> [N]."""
        values: Tensor = self.vf(features).squeeze(-1)
        return values


def head(sizes: tuple[int, ...], gain: float, model: ModelConfig) -> nn.Linear | MLP:
    """Layers from features to outputs; one alone keeps the names that its weights always had."""
    if len(sizes) == 2:
        return linear(sizes[0], sizes[1], gain, model.init)
    return MLP(Layers(sizes, model.activation, gain, model.init))


class MemoryActorCritic(RLModule):
    """Encoder, a memory, and a head each for policy and value function.

    A subclass makes ``heads`` and the memory, and defines `remember`. With privileged observations
    the value head also sees the features of a second encoder, to which all observations go, and
    always has hidden layers.
    """

    heads: Heads

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
    ) -> None:
        super().__init__(observation_space, action_space, model)
        self._encoder_input = EncoderInput(observation_space, model)
        self._policy_input = PolicyInput(observation_space, model.privileged)
        self.encoder, self._width = encoder_of(self._policy_input.space, model, model.init)
        self.vf_encoder, self._privileged_width = None, 0
        if self._policy_input.is_partial:
            self.vf_encoder, self._privileged_width = encoder_of(
                observation_space, model, model.init
            )

    @abstractmethod
    def remember(self, batch: TensorBatch) -> tuple[Tensor, Sequence[Tensor]]:
        """The memory's outputs [M, C], and for single steps the states [S, ...] after them."""

    def encode(self, batch: TensorBatch) -> Tensor:
        """Observations as features [M, F]."""
        obs: Any = batch[col.OBS]
        seen = self._policy_input(obs) if self._policy_input.is_partial else obs
        features: Tensor = self.encoder(self._encoder_input(seen, self.encoder))
        return features

    def _values(self, features: Tensor, batch: TensorBatch) -> Tensor:
        """Values [M] of the memory's outputs [M, C], and of the second encoder's features."""
        if self.vf_encoder is not None:
            obs = self._encoder_input(batch[col.OBS], self.vf_encoder)
            features = torch.cat((features, self.vf_encoder(obs)), dim=-1)
        return self.heads.values(features)

    def dist_inputs(self, features: Tensor) -> Tensor:
        """The policy head's outputs [M, P] for features [M, C]."""
        return self.heads.dist_inputs(features)

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` [M, P] and ``vf_preds`` [M]."""
        features, _ = self.remember(batch)
        return {
            col.ACTION_DIST_INPUTS: self.dist_inputs(features),
            col.VF_PREDS: self._values(features, batch),
        }

    def forward_inference(self, batch: TensorBatch) -> dict[str, Tensor]:
        """One step: ``action_dist_inputs`` [S, P], and the states after it."""
        features, states = self.remember(batch)
        outs = {f"{col.STATE_OUT_PREFIX}{k}": state for k, state in enumerate(states)}
        return {col.ACTION_DIST_INPUTS: self.dist_inputs(features), **outs}

    def compute_values(self, batch: TensorBatch) -> Tensor:
        return self._values(self.remember(batch)[0], batch)


class RecurrentActorCritic(MemoryActorCritic):
    """Encoder, LSTM or GRU, and a head each for policy and value function.

    The memory sees the encoder's features and, if asked for, the action (one-hot) and the reward of
    the step before. Its states, h and c of an LSTM or h of a GRU, start at zero.
    """

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
    ) -> None:
        super().__init__(observation_space, action_space, model)
        self.previous = PreviousStep(self, model)
        self._has_cell = model.use_lstm
        kind = nn.LSTM if model.use_lstm else nn.GRU
        self.memory = kind(
            self._width + self.previous.width, model.lstm_cell_size, batch_first=True
        )
        for name, parameter in self.memory.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)
        self.heads = Heads(self, model.lstm_cell_size, self._privileged_width)

    def initial_state(self) -> list[Tensor]:
        """Zeros: h [C], and for an LSTM c [C]."""
        zeros = torch.zeros(self.model.lstm_cell_size)
        return [zeros, zeros] if isinstance(self.memory, nn.LSTM) else [zeros]

    def remember(self, batch: TensorBatch) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = self.encode(batch)
        if self.previous.width:
            x = self.previous.append(x, batch)
        h = batch[f"{col.STATE_IN_PREFIX}0"][None]
        state = (h, batch[f"{col.STATE_IN_PREFIX}1"][None]) if self._has_cell else h
        sequences, back = in_sequences(x, batch)
        outputs, state = self.memory(sequences, state)
        h, *c = state if self._has_cell else (state,)
        return back(outputs), (h[0], *[cell[0] for cell in c])


class PreviousStep:
    """The action and reward of the step before, as further features.

    Args:
        module: whose views get ``prev_actions`` and ``prev_rewards``, as far as ``model`` asks.
    """

    def __init__(self, module: RLModule, model: ModelConfig) -> None:
        self._layout = action_layout(module.action_space)
        self._action, self._reward = model.lstm_use_prev_action, model.lstm_use_prev_reward
        self.width = 0
        if self._action:
            module.view_requirements[col.PREV_ACTIONS] = ViewRequirement(
                col.ACTIONS, space=module.action_space, shift=-1
            )
            self.width += one_hot_width(self._layout)
        if self._reward:
            module.view_requirements[col.PREV_REWARDS] = ViewRequirement(col.REWARDS, shift=-1)
            self.width += 1

    def append(self, features: Tensor, batch: TensorBatch) -> Tensor:
        """Features [M, F] -> [M, F + width]."""
        parts = [features]
        if self._action:
            parts.append(one_hot_actions(batch[col.PREV_ACTIONS], self._layout))
        if self._reward:
            parts.append(batch[col.PREV_REWARDS].to(torch.float32)[:, None])
        return torch.cat(parts, dim=-1)


def one_hot_width(layout: ActionLayout) -> int:
    """Features of one action in `one_hot_actions`."""
    return sum(sum(leaf.categories) or leaf.num_columns for leaf in layout.leaves)


def one_hot_actions(actions: Tensor, layout: ActionLayout) -> Tensor:
    """Module actions [M, ...] as numbers [M, width]: one-hot where they are categories."""
    table = actions.reshape(actions.shape[0], -1)
    parts: list[Tensor] = []
    for leaf in layout.leaves:
        columns = table[:, leaf.columns]
        if not leaf.categories:
            parts.append(columns.to(torch.float32))
        for k, count in enumerate(leaf.categories):
            values = torch.arange(count, device=table.device)
            parts.append((columns[:, k : k + 1] == values).to(torch.float32))
    return torch.cat(parts, dim=-1)
