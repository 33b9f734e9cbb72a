"""Which spaces policies have, and what is said of agents that do not fit theirs."""

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rlrun.config.policies import PolicySettings
from rlrun.config.schema import ModelConfig, TrainingConfig
from rlrun.policies.policy_mapping import AgentMapping, MappingError, policy_spaces

SMALL, LARGE = Box(-1, 1, (2,), np.float32), Box(-1, 1, (3,), np.float32)
TWO, FIVE = Discrete(2), Discrete(5)
SETTINGS = PolicySettings(ModelConfig(), TrainingConfig())


def spaces(agents, observations=(SMALL, SMALL), actions=(TWO, TWO), policies="pq"):
    names = ("a", "b")
    env = SimpleNamespace(
        possible_agents=list(names),
        observation_spaces=dict(zip(names, observations, strict=True)),
        action_spaces=dict(zip(names, actions, strict=True)),
    )
    return policy_spaces(env, AgentMapping(agents), dict.fromkeys(policies, SETTINGS))


def test_each_policy_has_the_spaces_of_its_agents():
    found = spaces({"a": "p", "b": "q"}, observations=(SMALL, LARGE))
    assert found == {"p": (SMALL, TWO), "q": (LARGE, TWO)}


@pytest.mark.parametrize(
    ("differing", "kind"),
    [
        ({"observations": (SMALL, LARGE)}, "observation"),
        ({"actions": (TWO, FIVE)}, "action"),
    ],
)
def test_agents_of_one_policy_must_have_the_same_spaces(differing, kind):
    with pytest.raises(MappingError, match=f"agent 'b' cannot have policy 'p': its {kind} space"):
        spaces({"*": "p"}, policies="p", **differing)
