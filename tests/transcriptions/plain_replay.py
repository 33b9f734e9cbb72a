"""Whole iterations of DQN, R2D2 and SAC in plain torch, from the log of the environments.

M  rows of a minibatch    n  actions    K  atoms of a value's distribution
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from logged_envs import Rows, join
from plain_learners import Acting, Learner, Run, next_row
from plain_networks import ACTIVATIONS, Memory, Weights, convolutions, mlp
from plain_returns import at, projected, rescale, squashed, unrescale
from torch import Tensor


class Replay:
    """The buffer, and the updates that are due after each round of sampling.

    Items are rows of the streams one behind the other, in the order in which they were added.
    """

    def __init__(self, run: Run, *, by_priority: bool | None = None, burn_in: int = 0) -> None:
        self._run, self.rows = run, join(run.streams)
        self._burn_in = burn_in
        self._steps = len(run.streams[0]["t"])
        self._known = 0  # steps of each stream
        self._items: list[int] = []
        self._by_priority = run.replay.prioritized if by_priority is None else by_priority
        self._alpha = run.replay.alpha if run.replay.prioritized else 0.0
        self._priorities: list[float | None] = []  # None: nothing to learn from follows as yet
        self._highest = 1.0
        self.drawn: list[int] = []

    def updates(
        self, sampled: Callable[[int], None] = lambda _: None
    ) -> Iterator[tuple[int, bool]]:
        """Env steps at each update, and whether it is the last of its round.

        Args:
            sampled: called with the number of each fragment.
        """
        run, due = self._run, 0.0
        s = run.settings
        for number in range(run.iterations * run.fragments):
            sampled(number)
            self._known += run.length
            for k in range(len(run.streams)):
                newest = range(self._known - run.length, self._known)
                self._items += [k * self._steps + i for i in newest]
                self._priorities += [None] * run.length
            for k, row in enumerate(self._items):
                if self._priorities[k] is None and self._is_learned_behind(row):
                    self._priorities[k] = self._highest
            steps = self._known * run.envs
            if steps >= s.num_steps_sampled_before_learning_starts:
                due += run.fragment_steps * s.training_intensity
            count = int(due // s.minibatch_size)
            due -= count * s.minibatch_size
            yield from ((steps, i == count - 1) for i in range(count))

    def draw(self, size: int, env_steps: int) -> tuple[list[int], Tensor]:
        """Rows, and their weights (Schaul et al. 2016, eq. 1 and section 3.4)."""
        held = range(max(len(self._items) - self._run.replay.capacity, 0), len(self._items))
        if not self._by_priority:
            self.drawn = [held[i] for i in self._run.draw("integers")]
            return [self._items[i] for i in self.drawn], torch.ones(size).double()
        ring = sorted(held, key=lambda i: i % self._run.replay.capacity)
        ring = [i for i in ring if self._priorities[i] is not None]
        scaled = np.array([self._priorities[i] for i in ring]) ** self._alpha
        masses = self._run.draw("random") * scaled.sum()
        places = np.searchsorted(scaled.cumsum(), masses, side="right")
        self.drawn = [ring[place] for place in places]
        weights = (len(ring) * scaled / scaled.sum()) ** -at(self._run.replay.beta, env_steps)
        return [self._items[i] for i in self.drawn], torch.tensor((weights / weights.max())[places])

    def report(self, errors: Tensor) -> None:
        """Absolute errors become priorities, the last one of an item that was drawn twice."""
        if self._run.replay.prioritized:
            found = errors.abs().detach() + self._run.replay.epsilon
            for i, priority in zip(self.drawn, found.tolist(), strict=True):
                self._priorities[i] = priority
            self._highest = max(self._highest, found.max().item())

    def following(self, row: int, most: int) -> list[int]:
        """The row and those after it in its episode, as far as they were added."""
        known = row - row % self._steps + self._known
        rows = [row]
        while len(rows) < most and not self.rows["ends"][rows[-1]] and rows[-1] + 1 < known:
            rows.append(rows[-1] + 1)
        return rows

    def _is_learned_behind(self, row: int) -> bool:
        at_the_start = not self.rows["t"][row]
        return bool(at_the_start or len(self.following(row, self._burn_in + 1)) > self._burn_in)

    def n_step(self, sums: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Discounted rewards of each list of rows, the discount behind it, and its last row."""
        gamma, rewards = self._run.settings.gamma, self.rows["rewards"]
        returns = [sum(gamma**k * rewards[i] for k, i in enumerate(rows)) for rows in sums]
        discounts = torch.tensor([gamma ** len(rows) for rows in sums]).double()
        return torch.stack(returns), discounts, torch.tensor([rows[-1] for rows in sums])


class QNetwork:
    """Action values ``[N, n]``, or logits ``[N, n, K]``."""

    def __init__(self, activation: str = "tanh", atoms: int = 1) -> None:
        self._activation, self._atoms = activation, atoms

    def __call__(self, w: Weights, obs: Tensor, noise: Any = None) -> Tensor:
        features = features_of(w, obs, self._activation)
        if "q.0.weight" in w:
            return self._by_action(mlp(w, "q", features, self._activation, noise))
        value, advantages = (
            mlp(w, name, features, self._activation, noise) for name in ("value", "advantage")
        )
        advantages = self._by_action(advantages)  # Wang et al. 2016, eq. 9
        value = value if self._atoms == 1 else value[:, None]
        return value + advantages - advantages.mean(1, keepdim=True)

    def _by_action(self, x: Tensor) -> Tensor:
        return x if self._atoms == 1 else x.unflatten(1, (-1, self._atoms))


def features_of(w: Weights, obs: Tensor, activation: str) -> Tensor:
    """Of images, or of numbers, which may have no encoder before the streams."""
    if obs.dim() > 2:
        return convolutions(w, obs)
    return mlp(w, "encoder", obs, activation) if "encoder.0.weight" in w else obs


def drawn_noise(run: Run, w: Weights) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Fortunato et al. 2018, eq. 10 and 11: for each noisy layer f(e) of inputs and of outputs."""
    noise: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for name, sigma in w.items():
        if name.endswith("weight_sigma"):
            e = torch.tensor(run.draw("standard_normal")).double()
            f = e.sign() * e.abs().sqrt()
            noise.setdefault(name.split(".")[0], []).append(f.split(sigma.shape[::-1]))
    return noise


def td_loss(chosen: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Huber's loss of each row, and the errors."""
    errors = chosen - targets
    return torch.where(errors.abs() < 1, 0.5 * errors.square(), errors.abs() - 0.5), errors


def bellman(returns: Tensor, discounts: Tensor, over: Tensor, values: Tensor, h: bool) -> Tensor:
    """Targets; with ``h`` of values that are rescaled."""
    following = torch.where(over, 0.0, unrescale(values) if h else values)
    return rescale(returns + discounts * following) if h else returns + discounts * following


def moved(target: Learner, learner: Learner, s: Any) -> Learner:
    """Lillicrap et al. 2016: tau theta + (1 - tau) theta'."""
    old, new = target.copy(), learner.copy()
    return Learner({name: s.tau * new[name] + (1 - s.tau) * old[name] for name in old}, s)


def dqn(run: Run, net: QNetwork, weights: Weights) -> Weights:
    """Mnih et al. 2015, algorithm 1, and the parts of Hessel et al. 2018."""
    learner, target, s = (
        Learner(weights, run.settings),
        Learner(weights, run.settings),
        run.settings,
    )
    replay, copied_at = Replay(run), 0
    atoms = torch.linspace(s.v_min, s.v_max, s.num_atoms).double()
    for steps, last_of_round in replay.updates():
        first, importance = replay.draw(s.minibatch_size, steps)
        noise = [drawn_noise(run, w) or None for w in (learner.w, target.w)]
        returns, discounts, last = replay.n_step([replay.following(i, s.n_step) for i in first])
        obs, new_obs = replay.rows["obs"][first], replay.rows["new_obs"][last]
        over, actions = replay.rows["terminateds"][last], replay.rows["actions"][first]
        rows = torch.arange(len(first))
        chosen = net(learner.w, obs, noise[0])[rows, actions]
        with torch.no_grad():
            following = net(target.w, new_obs, noise[1])
            choosing = net(learner.w, new_obs, noise[0]) if s.double_q else following
            if s.num_atoms > 1:
                choosing = choosing.softmax(-1) @ atoms
            following = following[rows, choosing.argmax(1)]
            if s.num_atoms > 1:
                kept = torch.where(over, 0.0, discounts)
                targets = projected(following.softmax(-1), returns, kept, atoms)
            else:
                targets = bellman(returns, discounts, over, following, s.value_rescaling)
        if s.num_atoms > 1:  # cross-entropies, and for priorities Kullback-Leibler divergences
            losses = -(targets * chosen.log_softmax(-1)).sum(-1)
            errors = losses + torch.xlogy(targets, targets).sum(-1)
        else:
            losses, errors = td_loss(chosen, targets)
        learner.step((importance * losses).mean(), at(s.lr, steps))
        replay.report(errors)
        if last_of_round and steps - copied_at >= s.target_network_update_freq:
            target, copied_at = moved(target, learner, s), steps
    return learner.copy()


class RecurrentQ:
    """The action values of a network with a memory, step by step.

    Args:
        dueling: its value head is the state's value, the other one the advantages.
    """

    memory = True

    def __init__(self, net: Memory, *, dueling: bool) -> None:
        self._net, self._dueling, self.start = net, dueling, net.start

    def step(self, w: Weights, row: Rows, state: Any) -> tuple[Tensor, Tensor, Any]:
        """Values ``[n]``, nothing, and the next state."""
        values, value, state = self._net.step(w, row, state)
        return (value + values - values.mean() if self._dueling else values), value, state


def r2d2(run: Run, memory: Memory, weights: Weights) -> Weights:
    """Kapturowski et al. 2019, section 2.3: sequences from stored states, behind a burn-in."""
    learner, target, s = (
        Learner(weights, run.settings),
        Learner(weights, run.settings),
        run.settings,
    )
    net, replay = (
        RecurrentQ(memory, dueling=s.dueling),
        Replay(run, by_priority=True, burn_in=run.replay.burn_in),
    )
    copied_at = 0
    acting, states = Acting(net, len(run.streams)), [list[Any]() for _ in run.streams]

    def sampled(number: int) -> None:
        for k, found in enumerate(acting.states(learner.copy(), run.fragment(number)) or []):
            states[k] += found

    def unrolled(w: Weights, sequence: list[int], burn_in: int) -> Tensor:
        """Values at each step behind the burn-in, and at the observation behind the last."""
        stream, first = divmod(sequence[0], len(run.streams[0]["t"]))
        state, found = states[stream][first], []
        for k, i in enumerate(sequence):
            row = {name: column[i] for name, column in replay.rows.items()}
            with torch.set_grad_enabled(torch.is_grad_enabled() and k >= burn_in):
                values, _, state = net.step(w, row, state)
            found.append(values)
        found.append(net.step(w, next_row(row), state)[0])
        return torch.stack(found[burn_in:])

    length = run.replay.burn_in + run.max_seq_len
    for steps, last_of_round in replay.updates(sampled):
        first, importance = replay.draw(max(s.minibatch_size // length, 1), steps)
        losses, priorities = [], []
        for i, weight in zip(first, importance, strict=True):
            sequence = replay.following(i, length)
            burn_in = 0 if replay.rows["t"][i] == 0 else run.replay.burn_in
            learned = sequence[burn_in:]
            values = unrolled(learner.w, sequence, burn_in)
            with torch.no_grad():
                following = unrolled(target.w, sequence, burn_in)
            sums = [learned[k : k + s.n_step] for k in range(len(learned))]
            returns, discounts, last = replay.n_step(sums)
            behind = last - learned[0] + 1
            choosing = values.detach() if s.double_q else following
            best = following[behind, choosing[behind].argmax(1)]
            over = replay.rows["terminateds"][last]
            targets = bellman(returns, discounts, over, best, s.value_rescaling)
            chosen = values[torch.arange(len(learned)), replay.rows["actions"][learned]]
            of_steps, errors = td_loss(chosen, targets)
            losses.append(weight * of_steps)
            errors = errors.detach().abs()
            priorities.append(0.9 * errors.max() + 0.1 * errors.mean())
        learner.step(torch.cat(losses).mean(), at(s.lr, steps))
        replay.report(torch.stack(priorities))
        if last_of_round and steps - copied_at >= s.target_network_update_freq:
            target, copied_at = moved(target, learner, s), steps
    return learner.copy()


def twin(w: Weights, obs: Tensor, actions: Tensor | None, activation: str) -> Tensor:
    """Both critics, whose weights are ``[2, inputs, outputs]``: ``[2, M, outputs]``."""
    number, found = sum(".weights." in name for name in w), []
    x = features_of(w, obs, activation)
    x = x if actions is None else torch.cat((x, actions), -1)
    for critic in range(2):
        y = x
        for i in range(number):
            y = y @ w[f"q.weights.{i}"][critic] + w[f"q.biases.{i}"][critic]
            y = ACTIVATIONS[activation](y) if i < number - 1 else y
        found.append(y)
    return torch.stack(found)


def sac(run: Run, activation: str, weights: Weights) -> Weights:
    """Haarnoja et al. 2018, algorithm 1 with section 5; Christodoulou 2019 for discrete actions."""
    s, replay, prefix = run.settings, Replay(run), "critics."
    discrete = run.actions == "discrete"
    of_critics = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    critic, target = Learner(of_critics, s), Learner(of_critics, s).copy()
    policy = Learner({k: v for k, v in weights.items() if not k.startswith(prefix)}, s)
    log_alpha = torch.tensor([s.initial_alpha]).double().log().requires_grad_()
    temperature = torch.optim.Adam([log_alpha], eps=1e-8)
    wanted = s.target_entropy
    if wanted is None:
        wanted = 0.98 * np.log(3) if discrete else -2.0

    def soft_value(critics: Weights, obs: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Expected min_i Q_i - alpha log pi, and the entropy, ``[M]`` each."""
        features = features_of(policy.w, obs, activation)
        inputs, alpha = mlp(policy.w, "pi", features, activation), log_alpha.detach().exp()
        if noise is None:
            logp = inputs.log_softmax(-1)
            smaller = twin(critics, obs, None, activation).amin(0)
            return (logp.exp() * (smaller - alpha * logp)).sum(-1), -(logp.exp() * logp).sum(-1)
        actions, logp = squashed(inputs, noise)
        smaller = twin(critics, obs, actions, activation)[..., 0].amin(0)
        return smaller - alpha * logp, -logp

    for steps, _ in replay.updates():
        first, importance = replay.draw(s.minibatch_size, steps)
        returns, discounts, last = replay.n_step([replay.following(i, s.n_step) for i in first])
        obs, new_obs = replay.rows["obs"][first], replay.rows["new_obs"][last]
        over, actions = replay.rows["terminateds"][last], replay.rows["actions"][first]
        noise = next_noise = None
        if not discrete:
            noise, next_noise = torch.tensor(run.draw("standard_normal")).double()
        with torch.no_grad():
            following, _ = soft_value(target, new_obs, next_noise)
            targets = bellman(returns, discounts, over, following, h=False)
        if discrete:
            values = twin(critic.w, obs, None, activation)[:, torch.arange(len(first)), actions]
        else:
            values = twin(critic.w, obs, actions, activation)[..., 0]
        errors = values - targets
        rates = [s.lr if lr is None else lr for lr in (s.critic_lr, s.lr, s.alpha_lr)]
        loss = 0.5 * (importance * errors.square()).mean(1).sum()
        critic.step(loss, at(rates[0], steps))
        value, entropy = soft_value(critic.copy(), obs, noise)
        policy.step(-value.mean(), at(rates[1], steps))
        temperature.param_groups[0]["lr"] = at(rates[2], steps)
        log_alpha.grad = (entropy.mean() - wanted).detach()[None]
        temperature.step()
        for name, slow in target.items():
            slow.add_(s.tau * (critic.w[name].detach() - slow))
        replay.report(errors.abs().mean(0))
    return policy.copy() | {f"{prefix}{name}": v for name, v in critic.copy().items()}
