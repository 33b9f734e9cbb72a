"""PPO of `EqualWork` as a bare loop in numpy: the bound of what a framework can reach here.

gymnasium's vector of environments (CartPole's own, where there is one), arrays, and the gradient
written out. No seeds of episodes, counts, checks or results; steps in which environments reset
themselves are learned from, too.
"""

import math
import time
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.peers import driver
from benchmarks.peers.driver import WORKS, EqualWork, Iteration

Array = Any
WORKS_OF_MLPS = ("cartpole", "value-clipping", "pendulum", "halfcheetah")


class Network:
    """Two MLPs with tanh, for actions and values, as views of one vector.

    Behind them in the vector are log standard deviations, of continuous actions.
    """

    def __init__(
        self, inputs: int, outputs: int, work: EqualWork, rng: np.random.Generator, *, free: bool
    ) -> None:
        shapes = [
            (i, o) for last in (outputs, 1) for i, o in pairwise((inputs, *work.hidden, last))
        ]  # [inputs, outputs]
        sizes = [size for i, o in shapes for size in (i * o, o)]
        num_free = outputs if free else 0
        self.vector, self.gradient = np.zeros((2, sum(sizes) + num_free), np.float32)
        weights, gradients = (np.split(x, np.cumsum(sizes)) for x in (self.vector, self.gradient))
        self.log_std, self.d_log_std = weights.pop(), gradients.pop()
        layers = [
            (w.reshape(s), b, dw.reshape(s), db)
            for s, w, b, dw, db in zip(
                shapes, weights[::2], weights[1::2], gradients[::2], gradients[1::2], strict=True
            )
        ]
        for weight, *_ in layers:
            weight[:] = rng.normal(0.0, len(weight) ** -0.5, weight.shape)
        self.policy, self.value = layers[: len(layers) // 2], layers[len(layers) // 2 :]


def forward(layers: list[Any], x: Array) -> list[Array]:
    """The input and the output of each layer."""
    kept = [x]
    for i, (weight, bias, _, _) in enumerate(layers):
        x = np.dot(x, weight)
        x += bias
        if i + 1 < len(layers):
            np.tanh(x, out=x)
        kept.append(x)
    return kept


def backward(layers: list[Any], kept: list[Array], d: Array) -> None:
    """Leave the gradients of the layers, given the output's."""
    for i in reversed(range(len(layers))):
        weight, _, d_weight, d_bias = layers[i]
        if i + 1 < len(layers):
            d *= 1.0 - kept[i + 1] ** 2
        np.dot(kept[i].T, d, out=d_weight)
        np.add.reduce(d, axis=0, out=d_bias)
        if i:
            d = np.dot(d, weight.T)


class Adam:
    """Kingma & Ba 2015, in place, of a gradient whose norm is bounded."""

    def __init__(self, network: Network, work: EqualWork) -> None:
        self.network, self.lr, self.bound, self.steps = network, work.lr, work.grad_clip, 0
        self.mean, self.square = np.zeros((2, *network.vector.shape), np.float32)

    def step(self) -> None:
        """Move once along the network's gradient."""
        self.steps += 1
        gradient = self.network.gradient
        gradient *= min(1.0, self.bound / (float(np.dot(gradient, gradient)) ** 0.5 + 1e-6))
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient * gradient - self.square)
        root = np.sqrt(self.square / (1.0 - 0.999**self.steps))
        root += 1e-5
        self.network.vector -= self.lr / (1.0 - 0.9**self.steps) * self.mean / root


def log_softmax(logits: Array) -> Array:
    """Logarithms of probabilities ``[N, n]``."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def learn(network: Network, work: EqualWork, rows: dict[str, Array]) -> None:
    """Leave the gradient of PPO's loss on a minibatch."""
    count = len(rows["obs"])
    acted, valued = forward(network.policy, rows["obs"]), forward(network.value, rows["obs"])
    act = continuous if len(network.log_std) else discrete
    logp, to_outputs = act(network, acted[-1], rows["actions"])
    ratio = np.exp(logp - rows["logp"])
    gain = rows["advantages"] * ratio
    clipped = rows["advantages"] * ratio.clip(1.0 - work.clip, 1.0 + work.clip)
    d_logp = (gain <= clipped) * gain / -count
    backward(network.policy, acted, to_outputs(d_logp, work.entropy_coeff / count))
    values = valued[-1][:, 0]
    errors = values - rows["targets"]
    if work.vf_clip is not None:
        change = values - rows["values"]
        near = rows["values"] + change.clip(-work.vf_clip, work.vf_clip) - rows["targets"]
        errors *= (abs(change) <= work.vf_clip) | (errors**2 > near**2)
    backward(network.value, valued, errors[:, None] * np.float32(work.vf_coeff / count))


def discrete(network: Network, logits: Array, actions: Array) -> tuple[Array, Any]:
    """Log-probabilities ``[N]``, and the way back from their gradient to the logits'."""
    index = np.arange(len(actions))
    logs = log_softmax(logits)

    def to_outputs(d_logp: Array, entropy_share: float) -> Array:
        probabilities = np.exp(logs)
        entropy = -(probabilities * logs).sum(axis=1, keepdims=True)
        d = probabilities * (logs + entropy) * entropy_share
        d -= d_logp[:, None] * probabilities
        d[index, actions] += d_logp
        return d

    return logs[index, actions], to_outputs


def continuous(network: Network, means: Array, actions: Array) -> tuple[Array, Any]:
    """The same of a normal distribution with free standard deviations."""
    precision = np.exp(-network.log_std)
    scaled = (actions - means) * precision
    constant = float(network.log_std.sum()) + 0.5 * len(precision) * math.log(2.0 * math.pi)

    def to_outputs(d_logp: Array, entropy_share: float) -> Array:
        d = scaled * d_logp[:, None]
        np.add.reduce(d * scaled, axis=0, out=network.d_log_std)
        network.d_log_std -= d_logp.sum() + entropy_share * len(d_logp)
        return d * precision

    return -0.5 * (scaled * scaled).sum(axis=1) - constant, to_outputs


def estimate(rewards: Array, ends: Array, values: Array, work: EqualWork) -> Array:
    """Advantages ``[T, B]`` by GAE."""
    advantages, last = np.zeros_like(rewards), np.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        going = work.gamma * (1.0 - ends[t])
        last = rewards[t] + going * values[t + 1] - values[t] + going * work.lambda_ * last
        advantages[t] = last
    return advantages


def trainer(task: Any) -> Any:
    """A function that runs one iteration of the work."""
    work, rng = WORKS[task.work], np.random.default_rng(task.seed)
    mode = "vector_entry_point" if work.env == "CartPole-v1" else "sync"
    envs = gym.make_vec(work.env, work.num_envs, vectorization_mode=mode)
    space, num_inputs = envs.single_action_space, envs.single_observation_space.shape[0]
    is_discrete = isinstance(space, gym.spaces.Discrete)
    num_outputs = int(space.n) if is_discrete else space.shape[0]
    network = Network(num_inputs, num_outputs, work, rng, free=not is_discrete)
    optimizer = Adam(network, work)
    length, shape = work.rollout_length, (work.rollout_length, work.num_envs)
    obs = np.zeros((length + 1, work.num_envs, num_inputs), np.float32)
    actions = np.zeros(shape, np.int64)
    if not is_discrete:
        actions = np.zeros((*shape, num_outputs), np.float32)
    ends, rewards = np.zeros((2, *shape), np.float32)
    outputs = np.zeros((*shape, num_outputs), np.float32)
    obs[-1], _ = envs.reset(seed=task.seed)

    def sample() -> None:
        obs[0] = obs[-1]
        if is_discrete:
            noise = rng.gumbel(size=outputs.shape).astype(np.float32)
        else:
            noise = rng.standard_normal(outputs.shape, np.float32) * np.exp(network.log_std)
        for t in range(length):
            outputs[t] = forward(network.policy, obs[t])[-1]
            if is_discrete:
                actions[t] = sent = (outputs[t] + noise[t]).argmax(axis=1)
            else:
                actions[t] = outputs[t] + noise[t]
                sent = actions[t].clip(-1.0, 1.0) * space.high
            obs[t + 1], rewards[t], terminated, truncated, _ = envs.step(sent)
            ends[t] = terminated | truncated

    def learn_from_batch() -> None:
        values = forward(network.value, obs.reshape(-1, num_inputs))[-1].reshape(length + 1, -1)
        advantages = estimate(rewards, ends, values, work)
        taken = actions.reshape(work.batch_size, *actions.shape[2:])
        act = discrete if is_discrete else continuous
        batch = {
            "obs": obs[:-1].reshape(-1, num_inputs),
            "actions": taken,
            "logp": act(network, outputs.reshape(-1, num_outputs), taken)[0],
            "advantages": (advantages.reshape(-1) - advantages.mean()) / advantages.std(),
            "targets": (advantages + values[:-1]).reshape(-1),
            "values": values[:-1].reshape(-1),
        }
        for _ in range(work.num_epochs):
            for chosen in np.split(
                rng.permutation(work.batch_size), work.batch_size // work.minibatch_size
            ):
                learn(network, work, {name: column[chosen] for name, column in batch.items()})
                optimizer.step()

    def train() -> Iteration:
        start = time.perf_counter()
        sample()
        sampled = time.perf_counter()
        learn_from_batch()
        return Iteration(work.batch_size, sampled - start, time.perf_counter() - sampled)

    return train


def main() -> None:
    task = driver.task_from_command_line(__doc__, works=WORKS_OF_MLPS)
    result = driver.measure_throughput(
        trainer(task), warmup_steps=task.warmup_steps, steps=task.steps
    )
    driver.report(**result, versions=driver.versions("gymnasium", "numpy"))


if __name__ == "__main__":
    main()
