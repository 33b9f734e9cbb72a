"""Which spaces policies have, and what is said of agents that do not fit theirs."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rlrun.config.policies import PolicySettings
from rlrun.config.problems import ConfigError
from rlrun.config.schema import ModelConfig, TrainingConfig
from rlrun.policies.policy_mapping import AgentMapping, EpisodeStart, policy_spaces

SMALL, LARGE = Box(-1, 1, (2,), np.float32), Box(-1, 1, (3,), np.float32)
TWO, FIVE = Discrete(2), Discrete(5)
SETTINGS = PolicySettings(ModelConfig(), TrainingConfig())


def spaces(
    agents, observations=(SMALL, SMALL), actions=(TWO, TWO), policies="pq", in_training=None
):
    names = "abc"[: len(observations)]
    env = SimpleNamespace(
        possible_agents=list(names),
        observation_spaces=dict(zip(names, observations, strict=True)),
        action_spaces=dict(zip(names, actions, strict=True)),
    )
    settings = dict.fromkeys(policies, SETTINGS) if isinstance(policies, str) else policies
    trained = None if in_training is None else AgentMapping(in_training, settings)
    return policy_spaces(env, AgentMapping(agents, settings, trained), settings)


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
    with pytest.raises(ConfigError, match=f"agent 'b' cannot have policy 'p': its {kind} space"):
        spaces({"*": "p"}, policies="p", **differing)


def test_a_policy_without_an_agent_has_the_spaces_that_all_agents_share():
    assert spaces({"*": "p"}) == {"p": (SMALL, TWO), "q": (SMALL, TWO)}


@pytest.mark.parametrize(
    "differing",
    [
        {"observations": (SMALL, LARGE)},
        {"actions": (TWO, FIVE)},
        {"observations": (SMALL, LARGE, SMALL), "actions": (TWO, TWO, TWO)},
    ],
)
def test_a_policy_without_an_agent_must_name_one_where_these_differ(differing):
    agents = {"a": "p", "b": "r", "c": "p"}
    with pytest.raises(ConfigError, match=r"'q' has no agent at first.* such as spaces_of: a"):
        spaces(agents, policies="pqr", **differing)
    named = {**dict.fromkeys("pr", SETTINGS), "q": replace(SETTINGS, spaces_of="b")}
    found = spaces(agents, policies=named, **differing)
    assert found["q"] == found["r"] != found["p"]


def test_a_policy_without_an_agent_in_evaluation_has_the_spaces_of_its_agents_in_training():
    trained = {"a": "p", "b": "q"}  # c is an agent of the evaluation's environment alone
    table = {"b": "r", "*": "p"}
    named = {**dict.fromkeys("pq", SETTINGS), "r": replace(SETTINGS, spaces_of="b")}
    three = {"observations": (SMALL, LARGE, SMALL), "actions": (TWO, TWO, TWO)}
    found = spaces(table, policies=named, in_training=trained, **three)
    assert found["q"] == found["r"] == (LARGE, TWO)


def test_spaces_of_an_agent_that_does_not_exist_are_an_error_that_names_those_that_do():
    named = {"p": SETTINGS, "q": replace(SETTINGS, spaces_of="c")}
    with pytest.raises(ConfigError, match=r"'q': spaces_of names no possible agent: 'c'.* a, b"):
        spaces({"*": "p"}, policies=named)


def rotated(agent, episode, *, order, by=0):
    return order[(int(agent) + by + episode.seed) % len(order)]


@pytest.mark.parametrize(("settings", "expected"), [({}, "q"), ({"by": 1}, "p")])
def test_a_function_is_called_with_its_own_settings(settings, expected):
    mapping = AgentMapping({"use": f"{__name__}:rotated", "order": ["p", "q"], **settings})
    episode = EpisodeStart(0, ("p", "q"), np.random.default_rng(0))
    assert mapping.policy_of(1, episode) == expected
