"""Returns, targets and distributions in plain torch, step by step as their papers sum them up.

N  rows    P  inputs of the action distribution    K  atoms
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.distributions as td
from logged_envs import Rows
from torch import Tensor


def at(schedule: Any, env_steps: int) -> float:
    """A number, or points ``(env steps, value)`` with straight lines between them."""
    if not isinstance(schedule, tuple):
        return float(schedule)
    if env_steps >= schedule[-1][0]:
        return float(schedule[-1][1])
    for (begin, first), (end, last) in pairwise(schedule):
        if env_steps < end:
            return float(first + (last - first) * (env_steps - begin) / (end - begin))
    raise AssertionError


class Several(td.Distribution):
    """Independent parts of an action, one in each column; torch's own for each."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, parts: list[Any]) -> None:
        super().__init__()
        self.parts = parts

    def log_prob(self, value: Tensor) -> Tensor:
        columns = zip(self.parts, value.unbind(-1), strict=True)
        return torch.stack([part.log_prob(column) for part, column in columns]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)


def action_distribution(inputs: Tensor, actions: str) -> Any:
    """Of logits, or of means and log standard deviations, ``[N, P]``.

    Args:
        actions: a name of `logged_envs.ACTIONS`.
    """
    if actions == "discrete":
        return td.Categorical(logits=inputs)
    if actions == "binary":
        return Several([td.Bernoulli(logits=column) for column in inputs.unbind(-1)])
    if actions == "categories":
        return Several([td.Categorical(logits=part) for part in inputs.split([2, 3], -1)])
    mean, log_std = inputs.chunk(2, -1)
    return Several(list(map(td.Normal, mean.unbind(-1), log_std.exp().unbind(-1))))


def divergence(old: Any, new: Any) -> Tensor:
    """KL(old || new), ``[N]``."""
    if not isinstance(old, Several):
        return td.kl_divergence(old, new)
    parts = zip(old.parts, new.parts, strict=True)
    return torch.stack([td.kl_divergence(*pair) for pair in parts]).sum(0)


def squashed(inputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Haarnoja et al. 2018, appendix C: actions ``tanh(u)`` and their log-probabilities."""
    mean, log_std = inputs.chunk(2, -1)
    std = log_std.clamp(-20, 2).exp()
    u = mean + std * noise
    log_cosh_squared = 2 * torch.logaddexp(u, -u) - math.log(4)  # 1 - tanh^2 = 1 / cosh^2
    logp = td.Normal(mean, std).log_prob(u) + log_cosh_squared
    return u.tanh(), logp.sum(-1)


def steps_to_end(rows: Rows, lengths: list[int]) -> list[range]:
    """For each row, itself and the rows after it up to the end of its episode or chunk."""
    found: list[range] = []
    begin = 0
    for length in lengths:
        for i in range(begin, begin + length):
            ends = [k for k in range(i, begin + length) if rows["ends"][k]]
            found.append(range(i, (ends[0] if ends else begin + length - 1) + 1))
        begin += length
    return found


def discounted_returns(rows: Rows, lengths: list[int], gamma: float) -> Tensor:
    """Sums of the rewards that follow in the chunk, without a value behind it."""
    rewards = rows["rewards"]
    sums = [
        sum(gamma ** (k - i) * rewards[k] for k in reach)
        for i, reach in enumerate(steps_to_end(rows, lengths))
    ]
    return torch.stack(sums)  # type: ignore[arg-type]


def gae(
    rows: Rows, lengths: list[int], values: Tensor, next_values: Tensor, gamma: float, lam: float
) -> Tensor:
    """Schulman et al. 2016, eq. 16: the sum over l of (gamma lambda)^l delta_{t+l}."""
    bootstraps = torch.where(rows["terminateds"], 0.0, next_values)
    deltas = rows["rewards"] + gamma * bootstraps - values
    sums = [
        sum((gamma * lam) ** (k - i) * deltas[k] for k in reach)
        for i, reach in enumerate(steps_to_end(rows, lengths))
    ]
    return torch.stack(sums)  # type: ignore[arg-type]


def vtrace(
    rows: Rows, lengths: list[int], ratios: Tensor, values: Tensor, next_values: Tensor, s: Any
) -> tuple[Tensor, Tensor]:
    """Espeholt et al. 2018, eq. 1 (with remark 2's lambda), and the advantages of section 4.2.

    Args:
        s: settings with gamma, lambda_, and the two bounds on ``ratios`` pi / mu.
    """
    gamma, c = s.gamma, s.lambda_ * ratios.clamp(max=1.0)
    bounds = s.vtrace_clip_rho_threshold, s.vtrace_clip_pg_rho_threshold
    rhos, pg_rhos = (ratios if b is None else ratios.clamp(max=b) for b in bounds)
    bootstraps = torch.where(rows["terminateds"], 0.0, next_values)
    deltas = rhos * (rows["rewards"] + gamma * bootstraps - values)
    reaches = steps_to_end(rows, lengths)
    targets = torch.stack(
        [
            values[i] + sum(gamma ** (k - i) * c[i:k].prod() * deltas[k] for k in reach)
            for i, reach in enumerate(reaches)
        ]
    )
    # vs of the next step; what a memory says of it may depend on where its sequence begins.
    following = bootstraps.clone()
    for i, reach in enumerate(reaches):
        if len(reach) > 1:
            following[i] += targets[i + 1] - values[i + 1]
    return targets, pg_rhos * (rows["rewards"] + gamma * following - values)


def standardized(advantages: Tensor) -> Tensor:
    """Mean 0 and deviation 1."""
    centred = advantages - advantages.mean()
    return centred / (centred.square().mean().sqrt() + 1e-8)


def rescale(x: Tensor) -> Tensor:
    """h of Pohlen et al. 2018, section 3.2."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + 1e-3 * x


def unrescale(x: Tensor) -> Tensor:
    """Its inverse, proposition A.2."""
    root = ((1 + 4e-3 * (x.abs() + 1 + 1e-3)).sqrt() - 1) / 2e-3
    return x.sign() * (root.square() - 1)


def projected(shares: Tensor, rewards: Tensor, discounts: Tensor, atoms: Tensor) -> Tensor:
    """Bellemare et al. 2017, algorithm 1: of ``reward + discount Z`` on the atoms, ``[N, K]``."""
    found = torch.zeros_like(shares)
    low, high, gap = atoms[0], atoms[-1], atoms[1] - atoms[0]
    for row, share in enumerate(shares):
        for j, atom in enumerate(atoms):
            b = ((rewards[row] + discounts[row] * atom).clamp(low, high) - low) / gap
            below, above = int(b.floor()), int(b.ceil())
            found[row, below] += share[j] * (1.0 if below == above else above - b)
            found[row, above] += share[j] * (b - below)
    return found
