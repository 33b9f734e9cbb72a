"""DQN of `DQNWork` as a bare loop in numpy: the bound of what a framework can reach here.

No seeds, counts, checks or results: an environment, arrays, and the gradient written out.
"""

from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.peers import driver, replay_driver
from benchmarks.peers.replay_driver import DQNWork, EnvStepClock

Array = Any


class Network:
    """An MLP with ReLU: weights ``[in, out]`` and biases as views of one vector."""

    def __init__(self, sizes: tuple[int, ...], rng: np.random.Generator) -> None:
        self.shapes = [shape for i, o in pairwise(sizes) for shape in ((i, o), (o,))]
        size = sum(int(np.prod(shape)) for shape in self.shapes)
        self.vector, self.gradient = np.zeros((2, size), np.float32)
        self.layers, self.gradients = self._views(self.vector), self._views(self.gradient)
        for weight, bias in self.layers:
            bound = len(weight) ** -0.5
            weight[:] = rng.uniform(-bound, bound, weight.shape)
            bias[:] = rng.uniform(-bound, bound, bias.shape)

    def _views(self, vector: Array) -> list[tuple[Array, Array]]:
        ends = np.cumsum([np.prod(shape) for shape in self.shapes])[:-1]
        parts = [
            part.reshape(shape)
            for part, shape in zip(np.split(vector, ends), self.shapes, strict=True)
        ]
        return list(zip(parts[::2], parts[1::2], strict=True))

    def forward(self, x: Array) -> list[Array]:
        """The input and the output of each layer."""
        kept = [x]
        for i, (weight, bias) in enumerate(self.layers):
            x = np.dot(x, weight)
            x += bias
            if i + 1 < len(self.layers):
                np.maximum(x, 0.0, out=x)
            kept.append(x)
        return kept

    def backward(self, kept: list[Array], d: Array) -> None:
        """Leave the gradient in `gradient`."""
        for i in reversed(range(len(self.layers))):
            d_weight, d_bias = self.gradients[i]
            np.dot(kept[i].T, d, out=d_weight)
            np.add.reduce(d, axis=0, out=d_bias)
            if i:
                d = np.dot(d, self.layers[i][0].T)
                d *= kept[i] > 0.0


class Adam:
    """Kingma & Ba 2015, in place."""

    def __init__(self, network: Network, lr: float) -> None:
        self.network, self.lr, self.steps = network, lr, 0
        self.mean, self.square = np.zeros((2, *network.vector.shape), np.float32)

    def step(self) -> None:
        """Move once along the network's gradient."""
        self.steps += 1
        gradient = self.network.gradient
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient * gradient - self.square)
        scale = self.lr / (1.0 - 0.9**self.steps)
        root = np.sqrt(self.square / (1.0 - 0.999**self.steps))
        root += 1e-8
        self.network.vector -= scale * self.mean / root


def measure(task: Any) -> dict[str, Any]:
    """Rate of the env steps after the warm-up."""
    work, clock = DQNWork(), EnvStepClock(task.warmup_steps, task.steps)
    rng = np.random.default_rng(task.seed)
    env = gym.make(work.env)
    sizes = (4, *work.hidden, 2)
    network, target = Network(sizes, rng), Network(sizes, rng)
    optimizer = Adam(network, work.lr)
    observations, following = np.zeros((2, work.buffer_size, 4), np.float32)
    actions = np.zeros(work.buffer_size, np.int64)
    rewards, discounts = np.zeros((2, work.buffer_size), np.float32)
    rows = np.arange(work.minibatch_size)
    steps = 0
    obs, _ = env.reset(seed=task.seed)
    while True:
        if rng.random() < work.epsilon:
            action = int(rng.integers(2))
        else:
            action = int(network.forward(obs[None])[-1].argmax())
        after, reward, terminated, truncated, _ = env.step(action)
        place = steps % work.buffer_size
        observations[place], following[place], actions[place] = obs, after, action
        rewards[place], discounts[place] = reward, 0.0 if terminated else work.gamma
        obs = env.reset()[0] if terminated or truncated else after
        steps += 1
        if steps >= work.learning_starts and steps % work.steps_per_update == 0:
            chosen = rng.integers(min(steps, work.buffer_size), size=work.minibatch_size)
            best = target.forward(following[chosen])[-1].max(axis=1)
            goals = rewards[chosen] + discounts[chosen] * best
            kept = network.forward(observations[chosen])
            gradient = np.zeros_like(kept[-1])
            errors = kept[-1][rows, actions[chosen]] - goals
            gradient[rows, actions[chosen]] = np.clip(errors, -1.0, 1.0) / work.minibatch_size
            network.backward(kept, gradient)
            optimizer.step()
            if steps % work.target_every == 0:
                target.vector[:] = network.vector
        if clock.count():
            return clock.result()


def main() -> None:
    task = replay_driver.task_from_command_line(__doc__)
    driver.report(**measure(task), versions=driver.versions("gymnasium", "numpy"))


if __name__ == "__main__":
    main()
