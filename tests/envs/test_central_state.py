"""What all agents observe, beside each agent's own observation."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlrun import MultiAgentEnv, PPOConfig, make_multi_agent
from rlrun.envs.central_state import CentralState
from rlrun.envs.env_state import give_state, offers_state, take_state
from tests.stateful_envs import Walk

GOES_ON = {"__all__": False}


class Scripted(MultiAgentEnv):
    """Agent b joins at step 1 and leaves at step 2; masks are of no interest to the others."""

    possible_agents = ("a", "b")
    action_spaces = dict.fromkeys(possible_agents, spaces.Discrete(2))

    def __init__(self):
        place = {"place": spaces.Discrete(3), "action_mask": spaces.MultiBinary(2)}
        self.observation_spaces = {"a": spaces.Box(0, 9, (2,)), "b": spaces.Dict(place)}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {"a": np.float32([1, 2])}, {}

    def step(self, actions):
        self.t += 1
        observations = {"a": np.float32([self.t, 0])}
        if self.t in (1, 2):
            observations["b"] = {"place": self.t, "action_mask": np.int8([1, 1])}
        leaves = {"b": True} if self.t == 2 else {}
        return observations, {}, GOES_ON | leaves, GOES_ON, {}


class WithOwnState(Scripted):
    state_space = spaces.Box(0, 9, (1,), np.float32)

    def state(self):
        return np.float32([self.t])


def states(env, num_steps=3):
    """The state in each observation of a step, by agent."""
    found = [env.reset()[0], *(env.step({})[0] for _ in range(num_steps))]
    for observations in found:
        for agent, seen in observations.items():
            assert env.observation_spaces[agent].contains(dict(seen))
    return [{agent: seen["state"].tolist() for agent, seen in step.items()} for step in found]


def test_the_state_is_the_latest_observation_of_every_agent():
    env = CentralState(Scripted())
    a_alone, joined, leaving = [1, 2, 0, 0, 0], [1, 0, 0, 1, 0], [2, 0, 0, 0, 1]
    expected = [
        {"a": a_alone},
        {"a": joined, "b": joined},
        {"a": leaving, "b": leaving},
        {"a": [3, 0, 0, 0, 0]},
    ]
    assert states(env) == expected
    assert states(env) == expected  # nothing is left of the episode before


def test_agents_keep_their_own_observations():
    env = CentralState(Scripted())
    env.reset()
    seen = env.step({})[0]
    np.testing.assert_array_equal(seen["a"]["observation"], [1, 0])
    assert seen["b"]["place"] == 1
    assert seen["b"]["action_mask"].tolist() == [1, 1]


def test_an_environment_with_a_state_of_its_own_gives_that():
    env = CentralState(WithOwnState())
    first, *_, last = states(env)
    assert (first, last) == ({"a": [0]}, {"a": [3]})
    assert env.observation_spaces["b"]["state"] is WithOwnState.state_space


def test_it_does_not_replace_an_entry():
    with pytest.raises(ValueError, match="'a' have an entry 'state' already"):
        CentralState(CentralState(Scripted()))


def test_it_offers_the_state_that_its_environment_offers():
    assert not offers_state(CentralState(Scripted()))
    env, other = (CentralState(make_multi_agent(Walk)(num_agents=2)) for _ in range(2))
    assert offers_state(env)
    env.reset(seed=1)
    other.reset(seed=2)
    for _ in range(3):
        env.step({"agent_0": 1})
    give_state(other, take_state(env))
    for _ in range(3):
        np.testing.assert_equal(env.step({"agent_1": 0})[0], other.step({"agent_1": 0})[0])


def test_with_it_values_depend_on_what_the_others_observe_and_actions_do_not(built):
    algorithm = built(
        PPOConfig()
        .environment("MultiAgentCartPole", num_agents=2)
        .env_runners(env_wrappers=["rlrun.envs.central_state:CentralState"])
        .model(hidden=[8], privileged=["state"])
        .training(train_batch_size=32, minibatch_size=32, num_epochs=1)
        .multi_agent(policies=["shared"])
    )
    algorithm.train()
    module = algorithm.learners["shared"].module
    rows = torch.zeros(2, 12)  # the agent's own 4 numbers, then those of both
    rows[1, 8:] = 1.0
    outputs = module.forward_train({"obs": rows})
    assert torch.equal(*outputs["action_dist_inputs"])
    assert not torch.equal(*outputs["vf_preds"])
