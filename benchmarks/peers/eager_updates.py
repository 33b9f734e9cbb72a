"""Updates on a GPU in plain PyTorch, kernel by kernel, in the style of CleanRL's scripts.

Written for `benchmarks.gpu_work`: networks of `torch.nn` layers, losses by autograd,
`torch.optim.Adam`, whole batches on the GPU as float32. Random numbers stand for what was sampled.
"""

from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Normal

Rows = dict[str, NDArray[np.float32]]


def mlp(sizes: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    """Linear layers of these widths with activations between them."""
    layers: list[nn.Module] = []
    for width, following in pairwise(sizes):
        layers += [nn.Linear(width, following), activation()]
    return nn.Sequential(*layers[:-1])


class GaussianAgent(nn.Module):
    """Separate networks of two layers for policy and value, a learned standard deviation."""

    def __init__(self, num_obs: int, num_actions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.mean = mlp((num_obs, *hidden, num_actions), nn.Tanh)
        self.value = mlp((num_obs, *hidden, 1), nn.Tanh)
        self.log_std = nn.Parameter(torch.zeros(1, num_actions))

    def forward(self, obs: Tensor) -> tuple[Distribution, Tensor]:
        mean = self.mean(obs)
        return Normal(mean, self.log_std.expand_as(mean).exp()), self.value(obs)


class ImageAgent(nn.Module):
    """The Nature CNN, shared by policy and value."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(4, 32, 8, stride=4), nn.ReLU()),
            *(nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3, stride=1), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU()),
        )
        self.logits, self.value = nn.Linear(512, num_actions), nn.Linear(512, 1)

    def forward(self, obs: Tensor) -> tuple[Distribution, Tensor]:
        features = self.features(obs / 255.0)
        return Categorical(logits=self.logits(features)), self.value(features)


class PPOUpdates:
    """PPO's epochs of minibatches.

    Args:
        batch: ``obs``, ``actions``, ``logp``, ``advantages``, ``returns`` and ``values``.
    """

    def __init__(
        self, agent: nn.Module, batch: Rows, minibatch_size: int, lr: float, device: str
    ) -> None:
        self._agent = agent.to(device)
        self._batch = {name: torch.from_numpy(each).to(device) for name, each in batch.items()}
        self._batch["obs"] = self._batch["obs"].float()
        self._size = minibatch_size
        self._optimizer = torch.optim.Adam(agent.parameters(), lr=lr, eps=1e-5)

    def epoch(self) -> None:
        """One pass over the batch."""
        batch, clip = self._batch, 0.2
        order = np.random.permutation(len(batch["obs"]))
        for begin in range(0, len(order), self._size):
            index = order[begin : begin + self._size]
            distribution, values = self._agent(batch["obs"][index])
            logp, entropy = distribution.log_prob(batch["actions"][index]), distribution.entropy()
            if logp.dim() > 1:
                logp, entropy = logp.sum(1), entropy.sum(1)
            log_ratio = logp - batch["logp"][index]
            ratio = log_ratio.exp()
            with torch.no_grad():
                ((ratio - 1) - log_ratio).mean()  # the approximate KL that scripts log
                ((ratio - 1.0).abs() > clip).float().mean().item()
            advantages = batch["advantages"][index]
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            first = -advantages * ratio
            second = -advantages * torch.clamp(ratio, 1 - clip, 1 + clip)
            value_loss = 0.5 * ((values.view(-1) - batch["returns"][index]) ** 2).mean()
            loss = torch.max(first, second).mean() - 0.01 * entropy.mean() + 0.5 * value_loss
            self._optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self._agent.parameters(), 0.5)
            self._optimizer.step()


class SACUpdates:
    """SAC's updates of critics, policy, temperature and target."""

    def __init__(
        self, num_obs: int, num_actions: int, hidden: tuple[int, ...], device: str
    ) -> None:
        self._device, widths = device, (num_obs + num_actions, *hidden, 1)
        networks = [mlp(widths, nn.ReLU).to(device) for _ in range(4)]
        self._critics, self._targets = networks[:2], networks[2:]
        for critic, target in zip(self._critics, self._targets, strict=True):
            target.load_state_dict(critic.state_dict())
        self._policy = mlp((num_obs, *hidden, 2 * num_actions), nn.ReLU).to(device)
        self._log_alpha = torch.zeros(1, requires_grad=True, device=device)
        self._alpha, self._target_entropy = 1.0, -float(num_actions)
        of_critics = list(chain(*(critic.parameters() for critic in self._critics)))
        self._critic_optimizer = torch.optim.Adam(of_critics, lr=1e-3)
        self._policy_optimizer = torch.optim.Adam(self._policy.parameters(), lr=3e-4)
        self._alpha_optimizer = torch.optim.Adam([self._log_alpha], lr=1e-3)

    def _sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self._policy(obs).chunk(2, 1)
        normal = Normal(mean, log_std.clamp(-20, 2).exp())
        raw = normal.rsample()
        actions = raw.tanh()
        logp = normal.log_prob(raw) - torch.log(1 - actions.pow(2) + 1e-6)
        return actions, logp.sum(1, keepdim=True)

    def update(self, rows: Rows) -> None:
        """One update on a minibatch out of host memory."""
        on_gpu = {name: torch.from_numpy(each).to(self._device) for name, each in rows.items()}
        obs, actions, next_obs = on_gpu["obs"], on_gpu["actions"], on_gpu["new_obs"]
        with torch.no_grad():
            next_actions, next_logp = self._sample(next_obs)
            both = torch.cat([next_obs, next_actions], 1)
            next_values = torch.min(*(target(both) for target in self._targets))
            next_values -= self._alpha * next_logp
            ends, rewards = on_gpu["terminateds"], on_gpu["rewards"]
            targets = rewards + (1 - ends) * 0.99 * next_values.view(-1)
        both = torch.cat([obs, actions], 1)
        values = [critic(both).view(-1) for critic in self._critics]
        loss = sum(nn.functional.mse_loss(each, targets) for each in values)
        self._critic_optimizer.zero_grad()
        loss.backward()
        self._critic_optimizer.step()

        own_actions, logp = self._sample(obs)
        both = torch.cat([obs, own_actions], 1)
        policy_loss = self._alpha * logp - torch.min(*(critic(both) for critic in self._critics))
        self._policy_optimizer.zero_grad()
        policy_loss.mean().backward()
        self._policy_optimizer.step()

        with torch.no_grad():
            _, logp = self._sample(obs)
        alpha_loss = (-self._log_alpha.exp() * (logp + self._target_entropy)).mean()
        self._alpha_optimizer.zero_grad()
        alpha_loss.backward()
        self._alpha_optimizer.step()
        self._alpha = self._log_alpha.exp().item()

        for critic, target in zip(self._critics, self._targets, strict=True):
            for own, slow in zip(critic.parameters(), target.parameters(), strict=True):
                slow.data.copy_(0.005 * own.data + 0.995 * slow.data)
