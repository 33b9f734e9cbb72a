"""The default networks with attention over the past: GTrXL (Parisotto et al. 2019, 1910.06764).

Each unit attends to its own inputs of the last M steps and of the present one. While acting, those
inputs come back as views of the trajectory; while learning, a sequence brings the M steps before
its first one, and the rest is in the sequence itself. Both see the same window, and compute the
same.

    S  sequences    L  steps of the longest    N  steps of all    M  remembered steps
    D  width of a unit's inputs    H  heads    d  width of a head
"""

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.data.view_requirement import ViewRequirement
from rlrun.policies.action_sampling import action_layout
from rlrun.policies.networks import linear
from rlrun.policies.recurrent import (
    Heads,
    MemoryActorCritic,
    in_sequences,
    one_hot_actions,
    one_hot_width,
)
from rlrun.policies.rl_module import TensorBatch


class AttentionActorCritic(MemoryActorCritic):
    """Encoder, GTrXL units, and a head each for policy and value function.

    State k holds the inputs of unit k, zeros before the episode: ``state_in_k`` [S, M, D] is the
    view of M steps of ``state_out_k`` [S, D].
    """

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
    ) -> None:
        super().__init__(observation_space, action_space, model)
        self._layout = action_layout(action_space)
        self.project = linear(self._width + self._declare_views(model), model.attention_dim, 1.0)
        self.units = nn.ModuleList(
            GTrXLUnit(model) for _ in range(model.attention_num_transformer_units)
        )
        self.heads = Heads(self, model.attention_dim, self._privileged_width)

    def _declare_views(self, model: ModelConfig) -> int:
        """Views of memory, and of previous actions and rewards; the latter two's features."""
        for k in range(model.attention_num_transformer_units):
            self.view_requirements[f"{col.STATE_IN_PREFIX}{k}"] = ViewRequirement(
                f"{col.STATE_OUT_PREFIX}{k}",
                shift=f"-{model.attention_memory}:-1",
                batch_repeat_value=model.max_seq_len,
            )
        actions, rewards = model.attention_use_n_prev_actions, model.attention_use_n_prev_rewards
        if actions:
            self.view_requirements["prev_n_actions"] = ViewRequirement(
                col.ACTIONS, space=self.action_space, shift=f"-{actions}:-1"
            )
        if rewards:
            self.view_requirements["prev_n_rewards"] = ViewRequirement(
                col.REWARDS, shift=f"-{rewards}:-1"
            )
        return actions * one_hot_width(self._layout) + rewards

    def initial_state(self) -> list[Tensor]:
        """The inputs of each unit before an episode: zeros [D]."""
        return [torch.zeros(self.model.attention_dim) for _ in self.units]

    def remember(self, batch: TensorBatch) -> tuple[Tensor, list[Tensor]]:
        parts = [self.encode(batch)]
        if "prev_n_actions" in self.view_requirements:
            actions = batch["prev_n_actions"].flatten(0, 1)
            parts.append(one_hot_actions(actions, self._layout).view(parts[0].shape[0], -1))
        if "prev_n_rewards" in self.view_requirements:
            parts.append(batch["prev_n_rewards"])
        x = self.project(torch.cat(parts, dim=-1))
        x, back = in_sequences(x, batch)
        remembered = []
        for k, unit in enumerate(self.units):
            remembered.append(x[:, -1])
            x = unit(x, batch[f"{col.STATE_IN_PREFIX}{k}"])
        return back(x), remembered


class GTrXLUnit(nn.Module):
    """Attention and a feed-forward layer, each normalised first and joined by a GRU-like gate."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        dim, width = model.attention_dim, model.attention_position_wise_mlp_dim
        self.norm_attention, self.norm_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = WindowAttention(model)
        self.mlp_in, self.mlp_out = nn.Linear(dim, width), nn.Linear(width, dim)
        bias = model.attention_init_gru_gate_bias
        self.gate_attention, self.gate_mlp = Gate(dim, bias), Gate(dim, bias)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Inputs [S, L, D], and inputs of the M steps before [S, M, D] -> [S, L, D]."""
        window = self.norm_attention(torch.cat((memory, x), dim=1))
        x = self.gate_attention(x, torch.relu(self.attention(window, memory.shape[1])))
        hidden = self.mlp_out(torch.relu(self.mlp_in(self.norm_mlp(x))))
        return self.gate_mlp(x, torch.relu(hidden))


class WindowAttention(nn.Module):
    """Each step attends to itself and the M steps before, by content and by distance.

    Positions enter as in Transformer-XL (Dai et al. 2019, eq. of section 3.3): the score of a key
    is (q + u) k + (q + v) r, with r a learned projection of the sinusoids of its distance.
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self._heads, self._width = model.attention_num_heads, model.attention_head_dim
        total = self._heads * self._width
        self.query, self.key, self.value = (
            nn.Linear(model.attention_dim, total, bias=False) for _ in range(3)
        )
        self.distance = nn.Linear(model.attention_dim, total, bias=False)
        self.output = nn.Linear(total, model.attention_dim, bias=False)
        self.u = nn.Parameter(torch.zeros(self._heads, self._width))
        self.v = nn.Parameter(torch.zeros(self._heads, self._width))
        distances = torch.arange(model.attention_memory, -1, -1)
        sinusoids = _sinusoids(distances, model.attention_dim)
        self.register_buffer("sinusoids", sinusoids, persistent=False)

    def forward(self, x: Tensor, memory: int) -> Tensor:
        """Attention of the last L steps over their windows: [S, M + L, D] -> [S, L, D]."""
        split = (self._heads, self._width)
        query = self.query(x[:, memory:]).unflatten(-1, split)  # [S, L, H, d]
        # The windows of the L steps, each M + 1 steps long.
        key = self.key(x).unfold(1, memory + 1, 1).unflatten(2, split)  # [S, L, H, d, M + 1]
        value = self.value(x).unfold(1, memory + 1, 1).unflatten(2, split)
        distance = self.distance(self.sinusoids).unflatten(-1, split)  # [M + 1, H, d]
        scores = torch.einsum("slhd,slhdm->slhm", query + self.u, key)
        scores = scores + torch.einsum("slhd,mhd->slhm", query + self.v, distance)
        weights = torch.softmax(scores * self._width**-0.5, dim=-1)
        return self.output(torch.einsum("slhm,slhdm->slhd", weights, value).flatten(-2))


class Gate(nn.Module):
    """The gate of a GRU between a layer's input x and output y (section 3.2 of the paper).

    Args:
        bias: how much the gate leans to the input at first.
    """

    def __init__(self, dim: int, bias: float) -> None:
        super().__init__()
        self.of_output = nn.Linear(dim, 3 * dim, bias=False)
        self.of_input = nn.Linear(dim, 2 * dim, bias=False)
        self.of_reset = nn.Linear(dim, dim, bias=False)
        self.bias = nn.Parameter(torch.full((dim,), float(bias)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """[..., D] and [..., D] -> [..., D]."""
        reset_y, update_y, new_y = self.of_output(y).chunk(3, dim=-1)
        reset_x, update_x = self.of_input(x).chunk(2, dim=-1)
        reset = torch.sigmoid(reset_y + reset_x)
        update = torch.sigmoid(update_y + update_x - self.bias)
        new = torch.tanh(new_y + self.of_reset(reset * x))
        return (1.0 - update) * x + update * new


def _sinusoids(positions: Tensor, dim: int) -> Tensor:
    """Sines and cosines of positions [n] at dim / 2 frequencies, [n, dim]."""
    half = (dim + 1) // 2
    frequencies = 10_000.0 ** (-torch.arange(half) / half)
    angles = positions[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=-1)[:, :dim]
