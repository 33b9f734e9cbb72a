"""A league: when a policy is copied to be an opponent, and who plays against whom."""

from collections import Counter

import numpy as np
import pytest

from rlrun import ConfigError
from rlrun.algorithms.league import League, main_against_others
from rlrun.policies.policy_mapping import EpisodeStart
from rlrun.sampling.episodes import EpisodeRecord


class Policies:
    """What a league needs of an algorithm."""

    def __init__(self, *names):
        self.policies = dict.fromkeys(names)

    def add_policy(self, name, like):
        self.policies[name] = like

    def remove_policy(self, name):
        del self.policies[name]

    def keep(self, name, part):
        assert name == "league"


def began(algorithm, **settings):
    league = League(**settings)
    league.on_algorithm_init(algorithm)
    return league


def told(league, algorithm, iteration, reached):
    """The league's part of a result, without the ratings."""
    mean = {"policy_return_mean": {"main": reached}}
    result = {"env_runners": mean, "training_iteration": iteration}
    league.on_train_result(algorithm, result)
    assert result["league"].pop("elo").keys() == algorithm.policies.keys()
    return result["league"]


@pytest.mark.parametrize(
    ("iteration", "reached", "copied"),
    [
        (10, 0.5, True),
        (20, 0.9, True),
        (10, 0.49, False),
        (10, None, False),
        (11, 0.9, False),
        (9, 0.9, False),
    ],
)
def test_the_main_policy_is_copied_in_some_iterations_if_it_is_good_enough(
    iteration, reached, copied
):
    algorithm = Policies("main")
    found = told(began(algorithm), algorithm, iteration, reached)
    assert algorithm.policies == ({"main": None, "main_1": "main"} if copied else {"main": None})
    assert found == {"size": int(copied), "newest": int(copied)}


def test_the_oldest_copy_leaves_a_league_that_is_full():
    algorithm = Policies("main")
    league = began(algorithm, every=1, most=2)
    found = [told(league, algorithm, 1 + i, 1.0) for i in range(4)]
    assert found == [
        {"size": 1, "newest": 1},
        {"size": 2, "newest": 2},
        {"size": 2, "newest": 3},
        {"size": 2, "newest": 4},
    ]
    assert list(algorithm.policies) == ["main", "main_3", "main_4"]


def test_a_league_that_may_be_smaller_than_it_is_becomes_so():
    algorithm = Policies("main", *(f"main_{number}" for number in range(1, 6)))
    assert told(began(algorithm, every=1, most=3), algorithm, 1, 1.0) == {"size": 3, "newest": 6}
    assert list(algorithm.policies) == ["main", "main_4", "main_5", "main_6"]


def test_a_resumed_run_goes_on_with_the_league_that_it_finds():
    algorithm = Policies("main", "random", "main_7", "main_9")
    assert told(began(algorithm, every=1), algorithm, 3, 0.0) == {"size": 3, "newest": 9}
    assert told(began(algorithm, every=1), algorithm, 4, 1.0) == {"size": 4, "newest": 10}
    assert "main_10" in algorithm.policies


def ended(*agents):
    names = (f"player_{i}" for i in range(len(agents)))
    parts = tuple((name, *agent) for name, agent in zip(names, agents, strict=True))
    return EpisodeRecord(0, 0, 0, 0.0, 1, agents=parts)


def test_ratings_follow_the_episodes():
    algorithm = Policies("main", "other")
    league = began(algorithm, elo_k=16, every=1)
    league.on_episode_end(algorithm, ended(("main", 1.0), ("other", -1.0)))
    assert league.get_state() == {"elo": {"main": 1008.0, "other": 992.0}}
    expected = 1 / (1 + 10 ** (-16 / 400))
    league.on_episode_end(algorithm, ended(("other", 0.0), ("main", 0.0)))  # a draw
    main = 1008 + 16 * (0.5 - expected)
    assert league.get_state()["elo"] == pytest.approx({"main": main, "other": 2000 - main})
    before = league.get_state()["elo"].copy()
    league.on_episode_end(algorithm, ended(("main", 1.0), ("main", -1.0)))
    league.on_episode_end(algorithm, ended(("main", 1.0), ("gone", -1.0)))
    assert league.get_state()["elo"] == before
    told(league, algorithm, 1, 1.0)
    assert league.get_state()["elo"] == before | {"main_1": before["main"]}
    resumed = began(algorithm)
    resumed.set_state(league.get_state())
    assert resumed.get_state() == league.get_state()


def opponents(policies, seed):
    """Of both agents, in episodes with this seed."""
    episode = EpisodeStart(seed, policies, np.random.default_rng(seed))
    return [main_against_others(agent, episode) for agent in ("player_0", "player_1")]


def test_the_main_policy_is_one_of_both_agents_and_each_other_as_often_its_opponent():
    pairs = [opponents(("main", "main_1", "main_2"), seed) for seed in range(400)]
    assert all(pair.count("main") == 1 for pair in pairs)
    assert sum(pair[0] == "main" for pair in pairs) == 200
    met = Counter(policy for pair in pairs for policy in pair if policy != "main")
    assert set(met) == {"main_1", "main_2"}
    assert min(met.values()) > 150


def test_the_episodes_seed_says_which_agent_has_the_main_policy():
    assert opponents(("main", "other"), 6) == ["main", "other"]
    assert opponents(("main", "other"), 7) == ["other", "main"]


def test_the_main_policy_is_both_agents_where_it_is_alone():
    assert opponents(("main",), 6) == opponents(("main",), 7) == ["main", "main"]


def test_a_league_of_a_policy_that_there_is_not_is_refused():
    began(Policies("main", "other"))
    with pytest.raises(ConfigError, match=r"callbacks: .*policy 'hero'; choose from main, other"):
        League(main="hero").on_algorithm_init(Policies("main", "other"))
