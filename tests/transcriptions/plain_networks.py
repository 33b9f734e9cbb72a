"""The networks in plain torch: functions of named weights, as their papers have them.

w  weights by name    N  rows    P  inputs of the action distribution
"""

from __future__ import annotations

import math
from typing import Any

import torch
from logged_envs import Rows
from torch import Tensor
from torch.nn import functional

Weights = dict[str, Tensor]
ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}


def mlp(
    w: Weights, name: str, x: Tensor, activation: str, noise: Any = None, *, moves: bool = True
) -> Tensor:
    """Linear layers ``<name>.0``, ``<name>.1``, ... and the activation between them.

    With state-dependent noise the logarithm of its deviation is beside the outputs.

    Args:
        moves: whether that has a gradient of the last layer's input.
    """
    features = x
    layers = [key for key in w if key.startswith(f"{name}.") and key.endswith(".weight")]
    for i in range(len(layers)):
        weight, bias = w[f"{name}.{i}.weight"], w[f"{name}.{i}.bias"]
        if noise is not None:  # Fortunato et al. 2018, eq. 9 to 11
            into, out = noise[name][i]
            weight = weight + w[f"{name}.{i}.weight_sigma"] * out[:, None] * into[None, :]
            bias = bias + w[f"{name}.{i}.bias_sigma"] * out
        features = x
        x = (weight[None] * x[:, None, :]).sum(-1) + bias
        if i < len(layers) - 1 or name == "encoder":
            x = ACTIVATIONS[activation](x)
    if f"{name}.weight_log_std" in w:  # Raffin et al. 2021, eq. 8
        z = features if moves else features.detach()
        variances = (w[f"{name}.weight_log_std"].exp()[None] * z[:, None, :]).square().sum(-1)
        x = torch.cat((x, (variances + 1e-6).sqrt().log()), -1)
    return x


def convolutions(w: Weights, x: Tensor) -> Tensor:
    """ReLU convolutions of stride 1 and a ReLU layer, on bytes ``[N, height, width, channels]``."""
    x, i = (x / 255).permute(0, 3, 1, 2), 0
    while f"encoder.conv.{i}.weight" in w:
        x = functional.conv2d(x, w[f"encoder.conv.{i}.weight"], w[f"encoder.conv.{i}.bias"])
        x, i = x.relu(), i + 1
    return (x.flatten(1) @ w["encoder.fc.weight"].T + w["encoder.fc.bias"]).relu()


class ActorCritic:
    """Policy and value function: networks of their own, or heads on an encoder."""

    memory = False

    def __init__(self, activation: str = "tanh") -> None:
        self._activation = activation

    def __call__(self, w: Weights, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Distribution inputs ``[N, P]`` and values ``[N]``."""
        if obs.dim() > 2:
            obs = convolutions(w, obs)
        elif "encoder.layer.weight" in w:  # of an encoder of the user's own
            obs = torch.sin(obs @ w["encoder.layer.weight"].T + w["encoder.layer.bias"])
        elif "encoder.0.weight" in w:
            obs = mlp(w, "encoder", obs, self._activation)
        inputs, values = (mlp(w, name, obs, self._activation, moves=False) for name in ("pi", "vf"))
        if "log_std" in w:
            inputs = torch.cat((inputs, w["log_std"].expand_as(inputs)), -1)
        return inputs, values[:, 0]


class Memory:
    """Encoder, a memory, and heads on it, step by step.

    Args:
        previous: how many previous actions and rewards the memory sees.
    """

    memory = True

    def __init__(self, previous: int = 0, num_actions: int = 3) -> None:
        self._previous, self._num_actions = previous, num_actions

    def start(self, w: Weights) -> Any:
        """The state before an episode."""
        raise NotImplementedError

    def remember(self, w: Weights, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Features of a step ``[F]`` to the memory's output, and the state after it."""
        raise NotImplementedError

    def step(self, w: Weights, row: Rows, state: Any) -> tuple[Tensor, Tensor, Any]:
        """Distribution inputs ``[P]``, the value and the next state."""
        x = [mlp(w, "encoder", row["obs"][None], "tanh")[0]]
        if n := self._previous:
            actions = row["prev_actions"][-n:].long()
            x += [
                functional.one_hot(actions, self._num_actions).flatten(),
                row["prev_rewards"][-n:],
            ]
        y, state = self.remember(w, torch.cat(x), state)
        inputs, value = (self._head(w, f"heads.{name}", y) for name in ("pi", "vf"))
        return inputs, value[0], state

    def _head(self, w: Weights, name: str, y: Tensor) -> Tensor:
        if f"{name}.0.weight" in w:
            return mlp(w, name, y[None], "tanh")[0]
        return w[f"{name}.weight"] @ y + w[f"{name}.bias"]


class LSTM(Memory):
    """Hochreiter & Schmidhuber 1997 with forget gates (Gers et al. 2000)."""

    def start(self, w: Weights) -> Any:
        return (torch.zeros(w["memory.weight_hh_l0"].shape[1]).double(),) * 2

    def remember(self, w: Weights, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, c = state
        gates = w["memory.weight_ih_l0"] @ x + w["memory.bias_ih_l0"]
        gates = gates + w["memory.weight_hh_l0"] @ h + w["memory.bias_hh_l0"]
        write, forget, new, read = gates.chunk(4)
        c = forget.sigmoid() * c + write.sigmoid() * new.tanh()
        h = read.sigmoid() * c.tanh()
        return h, (h, c)


class GRU(Memory):
    """Cho et al. 2014, with the reset gate behind the product (as cuDNN has it)."""

    def start(self, w: Weights) -> Any:
        return (torch.zeros(w["memory.weight_hh_l0"].shape[1]).double(),)

    def remember(self, w: Weights, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        (h,) = state
        of_x = (w["memory.weight_ih_l0"] @ x + w["memory.bias_ih_l0"]).chunk(3)
        of_h = (w["memory.weight_hh_l0"] @ h + w["memory.bias_hh_l0"]).chunk(3)
        reset, update = ((a + b).sigmoid() for a, b in zip(of_x[:2], of_h[:2], strict=True))
        new = (of_x[2] + reset * of_h[2]).tanh()
        h = (1 - update) * new + update * h
        return h, (h,)


class GTrXL(Memory):
    """Parisotto et al. 2019: units that attend to their inputs of the last steps.

    Args:
        steps: that a unit remembers.
        heads: of a unit.
    """

    def __init__(self, *, units: int, steps: int, heads: int, previous: int) -> None:
        super().__init__(previous)
        self._units, self._steps, self._heads = units, steps, heads

    def start(self, w: Weights) -> Any:
        return (torch.zeros(self._steps, len(w["project.bias"])).double(),) * self._units

    def remember(self, w: Weights, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        x, after = w["project.weight"] @ x + w["project.bias"], []
        for k, memory in enumerate(state):
            window = torch.cat((memory, x[None]))
            after.append(window[1:])
            x = self._unit({n[8:]: v for n, v in w.items() if n.startswith(f"units.{k}.")}, window)
        return x, tuple(after)

    def _unit(self, w: Weights, window: Tensor) -> Tensor:
        """Layer norm before each part, ReLU behind it, then a gate (section 3.1 and 3.2)."""
        x = window[-1]
        x = gate(
            w, "gate_attention", x, self._attention(w, norm(w, "norm_attention", window)).relu()
        )
        hidden = (w["mlp_in.weight"] @ norm(w, "norm_mlp", x) + w["mlp_in.bias"]).relu()
        return gate(w, "gate_mlp", x, (w["mlp_out.weight"] @ hidden + w["mlp_out.bias"]).relu())

    def _attention(self, w: Weights, window: Tensor) -> Tensor:
        """The relative attention of Dai et al. 2019, section 3.3, of the window's last step."""
        half, found = window.shape[1] // 2, []
        split = {
            part: w[f"attention.{part}.weight"].chunk(self._heads)
            for part in ("query", "key", "value", "distance")
        }
        for h in range(self._heads):
            q, scores = split["query"][h] @ window[-1], []
            for i, key in enumerate(window):
                distance = len(window) - 1 - i
                angles = [distance / 10_000 ** (j / half) for j in range(half)]
                waves = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)]).double()
                content = (q + w["attention.u"][h]) @ (split["key"][h] @ key)
                position = (q + w["attention.v"][h]) @ (split["distance"][h] @ waves)
                scores.append((content + position) / math.sqrt(len(q)))
            shares = torch.stack(scores).softmax(0)
            found.append(shares @ (window @ split["value"][h].T))
        return w["attention.output.weight"] @ torch.cat(found)


def norm(w: Weights, name: str, x: Tensor) -> Tensor:
    """Layer normalisation (Ba et al. 2016, eq. 4) with torch's epsilon."""
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return centred / deviation * w[f"{name}.weight"] + w[f"{name}.bias"]


def gate(w: Weights, name: str, x: Tensor, y: Tensor) -> Tensor:
    """Parisotto et al. 2019, section 3.2, the gated-recurrent-unit type."""
    w_r, w_z, w_g = w[f"{name}.of_output.weight"].chunk(3)
    u_r, u_z = w[f"{name}.of_input.weight"].chunk(2)
    r = (w_r @ y + u_r @ x).sigmoid()
    z = (w_z @ y + u_z @ x - w[f"{name}.bias"]).sigmoid()
    return (1 - z) * x + z * (w_g @ y + w[f"{name}.of_reset.weight"] @ (r * x)).tanh()
