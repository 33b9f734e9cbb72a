"""PPO of `EqualWork` as a bare loop in numpy: the bound of what a framework can reach here.

gymnasium's own vector of CartPoles, arrays, and the gradient written out. No seeds of episodes,
counts, checks or results; steps in which environments reset themselves are learned from, too.
"""

import time
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.peers import driver
from benchmarks.peers.driver import EqualWork, Iteration

Array = Any


class Network:
    """Two MLPs with tanh, for actions and values, as views of one vector."""

    def __init__(self, hidden: tuple[int, ...], rng: np.random.Generator) -> None:
        shapes = [
            (i, o) for last in (2, 1) for i, o in pairwise((4, *hidden, last))
        ]  # [inputs, outputs]
        sizes = [size for i, o in shapes for size in (i * o, o)]
        self.vector, self.gradient = np.zeros((2, sum(sizes)), np.float32)
        weights, gradients = (
            np.split(x, np.cumsum(sizes)[:-1]) for x in (self.vector, self.gradient)
        )
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
    index, count = np.arange(len(rows["obs"])), len(rows["obs"])
    acted, valued = forward(network.policy, rows["obs"]), forward(network.value, rows["obs"])
    logs = log_softmax(acted[-1])
    probabilities = np.exp(logs)
    ratio = np.exp(logs[index, rows["actions"]] - rows["logp"])
    gain = rows["advantages"] * ratio
    clipped = rows["advantages"] * ratio.clip(1.0 - work.clip, 1.0 + work.clip)
    d_logp = (gain <= clipped) * gain / -count
    entropy = -(probabilities * logs).sum(axis=1, keepdims=True)
    d = probabilities * (logs + entropy) * (work.entropy_coeff / count)
    d -= d_logp[:, None] * probabilities
    d[index, rows["actions"]] += d_logp
    backward(network.policy, acted, d)
    errors = valued[-1] - rows["targets"][:, None]
    backward(network.value, valued, errors * np.float32(work.vf_coeff / count))


def trainer(task: Any) -> Any:
    """A function that runs one iteration of the work."""
    work, rng = EqualWork(), np.random.default_rng(task.seed)
    network = Network(work.hidden, rng)
    optimizer = Adam(network, work)
    envs = gym.make_vec(work.env, work.num_envs, vectorization_mode="vector_entry_point")
    length, shape = work.rollout_length, (work.rollout_length, work.num_envs)
    obs = np.zeros((length + 1, work.num_envs, 4), np.float32)
    actions, ends = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    rewards, logits = np.zeros(shape, np.float32), np.zeros((*shape, 2), np.float32)
    rows = np.arange(work.batch_size)
    obs[-1], _ = envs.reset(seed=task.seed)

    def sample() -> None:
        obs[0] = obs[-1]
        noise = rng.gumbel(size=(*shape, 2)).astype(np.float32)
        for t in range(length):
            logits[t] = forward(network.policy, obs[t])[-1]
            actions[t] = (logits[t] + noise[t]).argmax(axis=1)
            obs[t + 1], rewards[t], terminated, truncated, _ = envs.step(actions[t])
            ends[t] = terminated | truncated

    def learn_from_batch() -> None:
        values = forward(network.value, obs.reshape(-1, 4))[-1].reshape(length + 1, -1)
        advantages, last = np.zeros(shape, np.float32), np.zeros(work.num_envs, np.float32)
        for t in reversed(range(length)):
            going = work.gamma * (1.0 - ends[t])
            last = rewards[t] + going * values[t + 1] - values[t] + going * work.lambda_ * last
            advantages[t] = last
        batch = {
            "obs": obs[:-1].reshape(-1, 4),
            "actions": actions.reshape(-1),
            "logp": log_softmax(logits.reshape(-1, 2))[rows, actions.reshape(-1)],
            "advantages": advantages.reshape(-1),
            "targets": (advantages + values[:-1]).reshape(-1),
        }
        batch["advantages"] = (advantages.reshape(-1) - advantages.mean()) / advantages.std()
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
    task = driver.task_from_command_line(__doc__, works=("cartpole",))
    result = driver.measure_throughput(
        trainer(task), warmup_steps=task.warmup_steps, steps=task.steps
    )
    driver.report(**result, versions=driver.versions("gymnasium", "numpy"))


if __name__ == "__main__":
    main()
