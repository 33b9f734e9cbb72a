"""Steps of agents whose observations are numbers, each of which occurs once."""

from typing import NamedTuple

import numpy as np

from rlrun.data import columns as col
from rlrun.data.sample_batch import MultiAgentBatch, SampleBatch

GAMMA = 0.9
STATE = "state_in_0"


class Row(NamedTuple):
    env_index: int
    episode: int
    agent: int
    t: int
    obs: float
    action: int
    reward: float
    new_obs: float
    terminated: bool
    truncated: bool

    @property
    def done(self):
        return self.terminated or self.truncated


class Experience:
    """What env runners send, fragment by fragment; ``rows`` are all of a policy's, in their order.

    Agent i has policy "ab"[i % 2]. One agent alone acts in every env step, several now and then.
    """

    def __init__(self, seed, num_envs=2, num_agents=1):
        self.rng = np.random.default_rng(seed)
        self.acts = 1.0 if num_agents == 1 else 0.6
        self.moment, self.fragment = 0.0, 0
        self.episode, self.t = list(range(num_envs)), [0] * num_envs
        slots = [(env, agent) for env in range(num_envs) for agent in range(num_agents)]
        self.obs = {slot: self.new_moment() for slot in slots}
        self.rows = {"a": [], "b": []}

    def new_moment(self):
        self.moment += 1.0
        return self.moment

    def batches(self, length, *, shared=False):
        """``length`` env steps of each sub-environment; rows lie slot after slot."""
        by_slot = {slot: [] for slot in self.obs}
        for env_index in range(len(self.t)):
            for _ in range(length):
                self._step(env_index, by_slot)
        batches = {}
        for i, policy in enumerate("ab"):
            rows = [row for slot in by_slot if slot[1] % 2 == i for row in by_slot[slot]]
            self.rows[policy] += rows
            if rows:
                batches[policy] = self._batch(rows, shared)
        self.fragment += 1
        return MultiAgentBatch(batches, length * len(self.t))

    def batch(self, length, *, shared=False):
        """As `batches`, of a single agent."""
        return self.batches(length, shared=shared)["a"]

    def _step(self, env_index, by_slot):
        ends = [bool(end) for end in self.rng.random(2) < 0.1]
        episode, t = self.episode[env_index], self.t[env_index]
        for slot in by_slot:
            if slot[0] == env_index and (any(ends) or self.rng.random() < self.acts):
                action, reward = int(self.rng.integers(5)), float(self.rng.normal())
                before, self.obs[slot] = self.obs[slot], self.new_moment()
                at = (*slot[:1], episode, slot[1], t)
                by_slot[slot].append(Row(*at, before, action, reward, self.obs[slot], *ends))
        self.t[env_index] += 1
        if any(ends):
            self.t[env_index], self.episode[env_index] = 0, episode + len(self.t)
            self.obs |= {slot: self.new_moment() for slot in self.obs if slot[0] == env_index}

    def _batch(self, rows, shared):
        columns = Row(*map(np.array, zip(*rows, strict=True)))
        slot = columns.env_index * 4 + columns.agent
        obs, new_obs = (x[:, None].astype(np.float32) for x in (columns.obs, columns.new_obs))
        batch = SampleBatch(
            {
                col.ACTIONS: columns.action,
                col.REWARDS: columns.reward.astype(np.float32),
                col.TERMINATEDS: columns.terminated,
                col.TRUNCATEDS: columns.truncated,
                col.EPS_ID: columns.episode,
                col.AGENT_INDEX: columns.agent,
                col.T: columns.t,
                col.UNROLL_ID: slot + (self.fragment << 16) + (3 << 48),
                STATE: -obs,
            }
        )
        if shared:
            storage, index = np.unique(np.concatenate([obs, new_obs]), return_inverse=True)
            batch.set_shared(col.OBS, storage[:, None], index.ravel()[: len(rows)])
            batch.set_shared(col.NEXT_OBS, storage[:, None], index.ravel()[len(rows) :])
        else:
            batch[col.OBS], batch[col.NEXT_OBS] = obs, new_obs
        return batch


def followers(rows, first):
    """Numbers of the transitions of the same agent and episode from ``first`` on, itself too."""
    key = rows[first][:3]
    return [first, *(i for i, row in enumerate(rows) if row[:3] == key and row.t > rows[first].t)]


def assert_returns(batch, rows, n_step):
    """Each sampled return against a walk through all rows."""
    names = (col.OBS, col.ACTIONS, col.REWARDS, col.NEXT_OBS)
    names += (col.TERMINATEDS, col.TRUNCATEDS, col.DISCOUNTS)
    expected = []
    for item in batch[col.ITEM_IDS].tolist():
        steps = [rows[j] for j in followers(rows, item)][:n_step]
        first, last = steps[0], steps[-1]
        total = sum(GAMMA**k * row.reward for k, row in enumerate(steps))
        expected.append((first.obs, first.action, total, *last[-3:], GAMMA ** len(steps)))
    found = np.stack([batch[name].reshape(len(expected), -1)[:, 0] for name in names], axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def assert_equal_batches(one, other):
    assert set(one) == set(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
