"""Whole iterations of the algorithms in plain torch, from the log of the environments.

w  weights by name    N  rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from logged_envs import Rows, cut, join
from plain_networks import Weights
from plain_returns import (
    action_distribution,
    at,
    discounted_returns,
    divergence,
    gae,
    standardized,
    vtrace,
)
from torch import Tensor


@dataclass
class Run:
    """What happened in a run, for one policy.

    Attributes:
        settings: of training; ``replay``: of the buffer.
        actions: a name of `logged_envs.ACTIONS`.
        draws: what the learner's random numbers were: method and result, in order.
        length: steps of each sub-environment in a fragment.
        fragments: in an iteration.
        max_seq_len: of a network with a memory.
    """

    settings: Any
    replay: Any
    streams: list[Rows]
    draws: list[tuple[str, Any]]
    length: int
    fragments: int
    envs: int
    actions: str
    max_seq_len: int
    iterations: int

    def draw(self, method: str) -> Any:
        """The next random numbers."""
        name, drawn = self.draws.pop(0)
        assert name == method
        return drawn

    def fragment(self, number: int) -> list[Rows]:
        """A chunk of each sub-environment."""
        return cut(self.streams, number * self.length, (number + 1) * self.length)

    @property
    def fragment_steps(self) -> int:
        """Env steps of a fragment."""
        return self.length * self.envs


class Learner:
    """Weights, and an optimizer of torch's own."""

    def __init__(self, weights: Weights, s: Any) -> None:
        self.w = {k: v.double().requires_grad_() for k, v in weights.items()}
        self._bound, self._by, self._adam = s.grad_clip, s.grad_clip_by, s.optimizer == "adam"
        parameters = [*self.w.values()]
        if self._adam:
            self._optimizer: Any = torch.optim.Adam(parameters, eps=s.adam_epsilon)
        else:
            self._squares = [torch.full_like(p, s.rmsprop_start) for p in parameters]
            self._decay, self._eps = s.rmsprop_decay, s.rmsprop_epsilon

    def step(self, loss: Tensor, lr: float) -> None:
        """One step down the gradient of the loss."""
        parameters = [*self.w.values()]
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        for p, grad in zip(parameters, grads, strict=True):
            p.grad = torch.zeros_like(p) if grad is None else grad.clone()
        if self._bound is not None and self._by == "value":
            torch.nn.utils.clip_grad_value_(parameters, self._bound)
        elif self._bound is not None:
            for group in [parameters] if self._by == "global_norm" else [[p] for p in parameters]:
                torch.nn.utils.clip_grad_norm_(group, self._bound)
        if self._adam:
            self._optimizer.param_groups[0]["lr"] = lr
            self._optimizer.step()
            return
        with torch.no_grad():  # RMSProp as TensorFlow has it
            for p, square in zip(parameters, self._squares, strict=True):
                square.add_((1 - self._decay) * (p.grad.square() - square))
                p.sub_(lr * p.grad / (square + self._eps).sqrt())

    def copy(self) -> Weights:
        """The weights as they are now."""
        return {name: p.detach().clone() for name, p in self.w.items()}


class Batch:
    """Chunks of rows one after the other; with a memory, sequences of them and their states.

    Args:
        acting: for each chunk the state before each of its rows, None without a memory.
    """

    def __init__(self, chunks: list[Rows], acting: list[list[Any]] | None, max_seq_len: int):
        self.rows, self.lengths = join(chunks), [len(chunk["t"]) for chunk in chunks]
        self.size, self.sequences = sum(self.lengths), list[range]()
        self.states = None if acting is None else [state for part in acting for state in part]
        starts = [0, *accumulate(self.lengths)]
        begin = 0
        for i in range(1, self.size + 1):
            full = i - begin == max_seq_len
            if i in starts or self.rows["ends"][i - 1] or full:
                self.sequences.append(range(begin, i))
                begin = i

    def outputs(self, net: Any, w: Weights, which: Any = None) -> tuple[Tensor, Tensor, Tensor]:
        """Distribution inputs, values, and values of what the rows led to.

        Args:
            which: rows, or sequences of a network with a memory; None for all.
        """
        if not net.memory:
            index = slice(None) if which is None else which
            inputs, values = net(w, self.rows["obs"][index])
            return inputs, values, net(w, self.rows["new_obs"][index])[1]
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        assert self.states is not None
        for sequence in self.sequences if which is None else which:
            state = self.states[sequence[0]]
            first = len(found)
            for i in sequence:
                inputs, value, state = net.step(w, self.row(i), state)
                found.append((inputs, value, value))
            _, last, _ = net.step(w, next_row(self.row(i)), state)
            following = [*(value for _, value, _ in found[first + 1 :]), last]
            found[first:] = [(*f[:2], v) for f, v in zip(found[first:], following, strict=True)]
        inputs, values, next_values = zip(*found, strict=True)
        return torch.stack(inputs), torch.stack(values), torch.stack(next_values)

    def row(self, i: int) -> Rows:
        """One row."""
        return {name: column[i] for name, column in self.rows.items()}

    def minibatches(self, size: int, order: Any) -> Iterator[tuple[Tensor, Any]]:
        """Rows of each minibatch, and what `outputs` takes for them: the sequences of a memory.

        Args:
            order: a permutation of all rows, or of the sequences, which stay whole.
        """
        if self.states is None:
            for rows in torch.as_tensor(order).split(size):
                yield rows, rows
            return
        groups: dict[int, list[range]] = {}
        begin = 0
        for k in order:
            groups.setdefault(begin // size, []).append(self.sequences[k])
            begin += len(self.sequences[k])
        for sequences in groups.values():
            yield torch.tensor([i for sequence in sequences for i in sequence]), sequences


def next_row(row: Rows) -> Rows:
    """What is seen after a row, if its episode goes on."""
    shifted = {
        f"prev_{name}": torch.cat((row[f"prev_{name}"][1:], row[name][None]))
        for name in ("actions", "rewards")
    }
    return {"obs": row["new_obs"], **shifted}


class Acting:
    """The states that a memory had while it acted."""

    def __init__(self, net: Any, num_streams: int) -> None:
        self._net, self._states = net, [None] * num_streams

    def states(self, w: Weights, chunks: list[Rows]) -> list[list[Any]] | None:
        """Before each row of the chunks, which follow the last ones; None without a memory."""
        if not self._net.memory:
            return None
        found = []
        with torch.no_grad():
            for k, chunk in enumerate(chunks):
                found.append([])
                state: Any = self._states[k]
                for i in range(len(chunk["t"])):
                    row = {name: column[i] for name, column in chunk.items()}
                    if not row["t"]:
                        state = self._net.start(w)
                    found[-1].append(state)
                    state = self._net.step(w, row, state)[2]
                self._states[k] = state
        return found


def batches(run: Run, net: Any, weights: Callable[[], Weights]) -> Iterator[tuple[int, Batch]]:
    """The train batch of each iteration, and the env steps before it.

    Args:
        weights: those that act in the iteration.
    """
    acting = Acting(net, len(run.streams))
    for iteration in range(run.iterations):
        numbers = range(iteration * run.fragments, (iteration + 1) * run.fragments)
        chunks, states = list[Rows](), list[list[Any]]()
        for number in numbers:
            chunks += (fragment := run.fragment(number))
            states += acting.states(weights(), fragment) or []
        steps = iteration * run.fragments * run.fragment_steps
        yield steps, Batch(chunks, states if net.memory else None, run.max_seq_len)


def actor_critic_loss(
    outputs: Any, rows: Rows, advantages: Tensor, targets: Tensor, run: Run, entropy_coeff: float
) -> Tensor:
    """Mnih et al. 2016, algorithm S3, with means in place of sums."""
    policy = action_distribution(outputs[0], run.actions)
    policy_loss = -(policy.log_prob(rows["actions"]) * advantages).mean()
    value_loss = 0.5 * (outputs[1] - targets).square().mean()
    return (
        policy_loss
        + run.settings.vf_loss_coeff * value_loss
        - entropy_coeff * policy.entropy().mean()
    )


def pg(run: Run, net: Any, weights: Weights) -> Weights:
    """Williams 1992: returns alone, one step on each batch."""
    learner, s = Learner(weights, run.settings), run.settings
    for steps, batch in batches(run, net, lambda: learner.w):
        returns = discounted_returns(batch.rows, batch.lengths, s.gamma)
        policy = action_distribution(batch.outputs(net, learner.w)[0], run.actions)
        loss = -(policy.log_prob(batch.rows["actions"]) * returns).mean()
        learner.step(loss, at(s.lr, steps))
    return learner.copy()


def a2c(run: Run, net: Any, weights: Weights, *, asynchronous: bool = False) -> Weights:
    """One step on each batch; A3C makes a step on each fragment, with the rate after it."""
    learner, s = Learner(weights, run.settings), run.settings
    if asynchronous:
        run.iterations, run.fragments = run.iterations * run.fragments, 1
    for steps, batch in batches(run, net, lambda: learner.w):
        outputs = batch.outputs(net, learner.w)
        values, next_values = (part.detach() for part in outputs[1:])
        advantages = gae(batch.rows, batch.lengths, values, next_values, s.gamma, s.lambda_)
        coeff, targets = at(s.entropy_coeff, steps), advantages + values
        loss = actor_critic_loss(outputs, batch.rows, advantages, targets, run, coeff)
        learner.step(loss, at(s.lr, steps + run.fragment_steps * asynchronous))
    return learner.copy()


def a3c(run: Run, net: Any, weights: Weights) -> Weights:
    """A2C, fragment by fragment."""
    return a2c(run, net, weights, asynchronous=True)


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Schulman et al. 2017, eq. 7, to be minimised."""
    return -torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages).mean()


def adapted(coeff: float, kl: float, target: float) -> float:
    """Schulman et al. 2017, section 4, with other factors (docs/correctness.md)."""
    return coeff * (1.5 if kl > 2 * target else 0.5 if kl < target / 2 else 1.0)


def ppo(run: Run, net: Any, weights: Weights) -> Weights:
    """Schulman et al. 2017, algorithm 1 with eq. 9, and eq. 8's KL term."""
    learner, s = Learner(weights, run.settings), run.settings
    kl_coeff = s.kl_coeff
    for steps, batch in batches(run, net, lambda: learner.w):
        rows = batch.rows
        with torch.no_grad():
            old_inputs, values, next_values = batch.outputs(net, learner.w)
            old_logp = action_distribution(old_inputs, run.actions).log_prob(rows["actions"])
        advantages = gae(rows, batch.lengths, values, next_values, s.gamma, s.lambda_)
        targets = advantages + values
        if s.normalize_advantages == "batch":
            advantages = standardized(advantages)
        kls = list[float]()
        for index, which in epochs(run, batch, s.num_epochs, s.minibatch_size):
            inputs, now, _ = batch.outputs(net, learner.w, which)
            policy = action_distribution(inputs, run.actions)
            old = action_distribution(old_inputs[index], run.actions)
            log_ratio = policy.log_prob(rows["actions"][index]) - old_logp[index]
            far = (log_ratio.exp() - 1 - log_ratio).mean().item()
            if s.target_kl and far > 1.5 * s.target_kl:
                break
            gains = advantages[index]
            if s.normalize_advantages == "minibatch":
                gains = standardized(gains)
            loss = clipped_surrogate(log_ratio.exp(), gains, at(s.clip_param, steps))
            errors = (now - targets[index]).square()
            if s.vf_clip_param is not None:
                change = (now - values[index]).clamp(-s.vf_clip_param, s.vf_clip_param)
                errors = torch.max(errors, (values[index] + change - targets[index]).square())
            kl = divergence(old, policy).mean()
            loss = loss + 0.5 * s.vf_loss_coeff * errors.mean() + kl_coeff * kl
            learner.step(
                loss - at(s.entropy_coeff, steps) * policy.entropy().mean(), at(s.lr, steps)
            )
            kls.append(kl.item())
        kl_coeff = adapted(kl_coeff, float(np.mean(kls)), s.kl_target)
    return learner.copy()


def epochs(run: Run, batch: Batch, number: int, size: int | None) -> Iterator[tuple[Tensor, Any]]:
    """Minibatches of so many passes."""
    for _ in range(number):
        yield from batch.minibatches(size or batch.size, run.draw("permutation"))


def behaviour_batches(run: Run, net: Any, learner: Learner) -> Iterator[tuple[int, Batch, Tensor]]:
    """Train batches with log mu of their actions: broadcasts come every few batches."""
    broadcasts, interval = [learner.copy()], run.settings.broadcast_interval
    for number, (steps, batch) in enumerate(batches(run, net, lambda: broadcasts[-1])):
        acting = broadcasts[-1]
        with torch.no_grad():
            inputs = batch.outputs(net, acting)[0]
            if net.memory:  # acted from the present state, not from a sequence's first one
                assert batch.states is not None
                pairs = enumerate(batch.states)
                inputs = torch.stack([net.step(acting, batch.row(i), x)[0] for i, x in pairs])
        mu = action_distribution(inputs, run.actions)
        yield steps, batch, mu.log_prob(batch.rows["actions"])
        if (number + 1) % interval == 0:
            broadcasts.append(learner.copy())


def impala(run: Run, net: Any, weights: Weights) -> Weights:
    """Espeholt et al. 2018, section 4: V-trace before each pass, then A2C's loss."""
    learner, s = Learner(weights, run.settings), run.settings
    for steps, batch, log_mu in behaviour_batches(run, net, learner):
        for _ in range(s.num_epochs):
            with torch.no_grad():
                inputs, values, next_values = batch.outputs(net, learner.w)
                policy = action_distribution(inputs, run.actions)
                ratios = (policy.log_prob(batch.rows["actions"]) - log_mu).exp()
            trace = batch.rows, batch.lengths, ratios, values, next_values, s
            targets, advantages = vtrace(*trace)
            for index, which in epochs(run, batch, 1, s.minibatch_size):
                outputs, coeff = batch.outputs(net, learner.w, which), at(s.entropy_coeff, steps)
                rows = {"actions": batch.rows["actions"][index]}
                parts = rows, advantages[index], targets[index]
                loss = actor_critic_loss(outputs, *parts, run, coeff)
                learner.step(loss, at(s.lr, steps))
    return learner.copy()


def appo(run: Run, net: Any, weights: Weights) -> Weights:
    """Luo et al. 2020 (IMPACT), algorithm 1: batches are used several times, beside a target."""
    learner, s = Learner(weights, run.settings), run.settings
    target, kl_coeff, updates = learner.copy(), s.kl_coeff, 0
    buffer, filled = list[list[Any]](), False  # batch, log mu, uses left
    for steps, new_batch, new_mu in behaviour_batches(run, net, learner):
        uses, kls = s.circular_buffer_iterations_per_batch, list[float]()
        buffer = [*buffer, [new_batch, new_mu, uses]][-s.circular_buffer_num_batches :]
        filled |= len(buffer) == s.circular_buffer_num_batches
        for _ in range(uses if filled else 1):
            drawn = buffer[int(run.draw("integers"))]
            batch, log_mu, _ = drawn
            drawn[2] -= 1
            buffer = [held for held in buffer if held[2]]
            for _ in range(s.num_epochs):
                with torch.no_grad():
                    old_inputs = batch.outputs(net, target)[0]
                    _, values, next_values = batch.outputs(net, learner.w)
                old = action_distribution(old_inputs, run.actions)
                log_old = old.log_prob(batch.rows["actions"])
                ratios = (log_old - log_mu).exp()
                trace = batch.rows, batch.lengths, ratios, values, next_values, s
                targets, advantages = vtrace(*trace)
                if s.normalize_advantages:
                    advantages = standardized(advantages)
                for index, which in epochs(run, batch, 1, s.minibatch_size):
                    inputs, now, _ = batch.outputs(net, learner.w, which)
                    policy = action_distribution(inputs, run.actions)
                    pi = policy.log_prob(batch.rows["actions"][index]).exp()
                    ratio = pi / torch.max(log_old[index].exp(), log_mu[index].exp() / 2)
                    old = action_distribution(old_inputs[index], run.actions)
                    kl = divergence(old, policy).mean()
                    errors = (now - targets[index]).square()
                    loss = clipped_surrogate(ratio, advantages[index], at(s.clip_param, steps))
                    loss = loss + 0.5 * s.vf_loss_coeff * errors.mean() + kl_coeff * kl
                    loss = loss - at(s.entropy_coeff, steps) * policy.entropy().mean()
                    learner.step(loss, at(s.lr, steps))
                    kls.append(kl.item())
            updates += 1
            if updates % s.target_network_update_freq == 0:
                target = learner.copy()
        kl_coeff = adapted(kl_coeff, float(np.mean(kls)), s.kl_target)
    return learner.copy()
