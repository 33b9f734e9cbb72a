"""An environment whose agents come, go and fall silent at random; a policy that sums its inputs."""

import gymnasium as gym
import numpy as np

from rlrun.data.view_requirement import ViewRequirement
from rlrun.envs.horizon import ALL
from rlrun.envs.multi_agent_env import MultiAgentEnv
from rlrun.policies.policy import Policy, state_views


class RandomAgents(MultiAgentEnv):
    """Random by its seed; asserts that exactly the agents that are due act."""

    possible_agents = ("a", "b", "c", "d")

    def __init__(self, silence=0.3, leaving=0.1, end=0.1, crash=0.0):
        box = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, box)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(4))
        self._silence, self._leaving, self._end, self._crash = silence, leaving, end, crash
        self._rng = np.random.default_rng(0)

    def _see(self, agents):
        return {
            name: np.array([self.possible_agents.index(name), self._rng.normal()], np.float32)
            for name in agents
        }

    def reset(self, *, seed=None, options=None):
        self._rng = np.random.default_rng(seed)
        self._present = set(self._some(self.possible_agents, 0.5)) or {"b"}
        self._gone = set()
        seen = self._see(sorted(self._present))
        self._due = set(seen)
        return seen, {}

    def _some(self, agents, probability):
        return [name for name in agents if self._rng.random() < probability]

    def step(self, actions):
        assert set(actions) == self._due
        if self._rng.random() < self._crash:
            raise RuntimeError("crash")
        rewards = {name: float(self._rng.normal()) for name in sorted(self._present)}
        rewards = {name: rewards[name] for name in self._some(rewards, 0.7)}
        if actions:
            rewards[min(actions)] = float(sum(actions.values()))
        leaving = self._some(sorted(self._present), self._leaving)
        died = set(self._some(leaving, 0.5))
        new = self._some(
            [x for x in self.possible_agents if x not in self._present | self._gone], 0.2
        )
        self._gone |= set(leaving)
        self._present = (self._present | set(new)) - set(leaving)
        over = not self._present or self._rng.random() < self._end
        cut = over and self._rng.random() < 0.5
        seen = self._see(self._some(sorted(self._present | set(leaving)), 1 - self._silence))
        self._due = set(seen) & self._present
        infos = {name: {"number": float(self._rng.normal())} for name in self._some(seen, 0.5)}
        return (
            seen,
            rewards,
            {**{name: name in died for name in leaving}, ALL: over and not cut},
            {**{name: name not in died for name in leaving}, ALL: cut},
            infos,
        )


class SumPolicy(Policy):
    """Its actions follow from everything that it sees, so a wrong row changes all that follow."""

    def __init__(self, observation_space, action_space, config):
        super().__init__(observation_space, action_space, config)
        if "views" in config:
            self.view_requirements = {"obs": ViewRequirement(), **config["views"]}
        if config.get("states"):
            views = {"obs": ViewRequirement(), **self.view_requirements}
            self.view_requirements = {**views, **state_views(self.get_initial_state(), 3)}

    def get_initial_state(self):
        return [np.array([7.0, 0.0], np.float32)] if self.config.get("states") else []

    def compute_actions_from_input_dict(self, input_dict, *, explore=True, noise=None):
        total = np.zeros(len(input_dict["obs"]))
        for name in sorted(input_dict):
            rows = input_dict[name]
            if rows.dtype == np.object_:
                rows = np.vectorize(lambda info: info.get("number", 0.5), otypes=[float])(rows)
            total += np.asarray(rows, np.float64).reshape(len(total), -1).sum(axis=1)
        states = []
        if self.config.get("states"):
            states = [
                np.float32(0.5) * input_dict["state_in_0"] + total[:, None].astype(np.float32)
            ]
        return (np.abs(total * 97) % 4).astype(np.int64), states, {"mark": total.astype(np.float32)}

    def compute_actions(self, obs_batch, state_batches=None, *, explore=True, noise=None):
        return self.compute_actions_from_input_dict({"obs": obs_batch})

    def fragment_columns(self, columns, *, explore=True):
        return {"derived": 2 * columns["mark"] + columns["actions"]}
