"""An environment of several agents for the benchmarks, as PettingZoo has them.

Imported inside the peers' environments, so it may use gymnasium, numpy and PettingZoo only.
"""

from typing import Any

from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from pettingzoo import ParallelEnv

AGENTS = 4
EPISODE_STEPS = 500


class CartPoles(ParallelEnv[str, Any, int]):
    """A cart with a pole for each agent; one that falls is put up again.

    All agents are there until the episode ends after 500 steps, since SuperSuit turns only such
    environments into vectors for Stable-Baselines3.
    """

    def __init__(self) -> None:
        self.metadata = {"name": "cart_poles"}
        self.render_mode = None
        self.possible_agents = [f"cart_{i}" for i in range(AGENTS)]
        self._carts = {agent: CartPoleEnv() for agent in self.possible_agents}
        self.agents: list[str] = []
        self._step = 0

    def observation_space(self, agent: str) -> Any:
        return self._carts[agent].observation_space

    def action_space(self, agent: str) -> Any:
        return self._carts[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._step = [*self.possible_agents], 0
        observations = {
            agent: cart.reset(seed=None if seed is None else seed + i)[0]
            for i, (agent, cart) in enumerate(self._carts.items())
        }
        return observations, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        self._step += 1
        ends = self._step == EPISODE_STEPS
        observations, rewards = {}, {}
        for agent, cart in self._carts.items():
            observations[agent], rewards[agent], fell, _, _ = cart.step(int(actions[agent]))
            if fell:
                observations[agent], _ = cart.reset()
        flags = (dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, ends))
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        if ends:
            self.agents = []
        return observations, rewards, *flags, infos
