"""Self-play: copies of a policy at moments when it was good enough become its opponents.

Owns when a copy is made and how many there are. Which policy each agent has is
`multi_agent.agents`; `main_against_others` draws an opponent for each episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

from rlrun.algorithms.callbacks import Callbacks
from rlrun.config.problems import misfit
from rlrun.config.registry import no_such

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm
    from rlrun.algorithms.result import Result
    from rlrun.policies.policy_mapping import EpisodeStart
    from rlrun.sampling.episodes import EpisodeRecord

_FIRST_RATING = 1000.0
_SCALE = 400.0  # with so many points more, a policy is expected to win ten times as often


class League(Callbacks):
    """Adds frozen copies ``<main>_1``, ``<main>_2``, ... to the policies; a callback.

    The result gets the keys ``league/size``, the number of opponents, ``league/newest``, the number
    in the last copy's name, and ``league/elo/<policy>``, the Elo rating of each policy. Ratings
    follow the training episodes: of two agents, the one with the higher return has won. A copy
    begins with the rating of `main`, all others with 1000.

    Args:
        main: the policy that learns.
        at_return: mean return of `main`, over the window of the report, at which it is copied.
        every: fewest iterations between two copies.
        most: copies kept; the oldest is removed for a new one.
        elo_k: most points that one episode moves from a loser to a winner.
    """

    def __init__(
        self,
        main: str = "main",
        at_return: float = 0.5,
        every: int = 10,
        most: int = 5,
        elo_k: float = 16.0,
    ) -> None:
        self._main, self._at_return, self._every, self._most = main, at_return, every, most
        self._elo_k = elo_k
        self._elo: dict[str, float] = {}

    def on_algorithm_init(self, algorithm: Algorithm) -> None:
        if self._main not in algorithm.policies:
            problem = no_such("policy", self._main, algorithm.policies)
            raise misfit("callbacks", f"League copies the policy `main`, but {problem}")
        self._elo = dict.fromkeys(algorithm.policies, _FIRST_RATING)
        algorithm.keep("league", self)

    def on_episode_end(self, algorithm: Algorithm, episode: EpisodeRecord) -> None:
        elo = self._elo
        for (_, one, its_return), (_, other, others_return) in combinations(episode.agents, 2):
            if one == other or not {one, other} <= elo.keys():  # it may have been removed since
                continue
            score = 0.5 * (1 + (its_return > others_return) - (its_return < others_return))
            expected = 1 / (1 + 10 ** ((elo[other] - elo[one]) / _SCALE))
            moved = self._elo_k * (score - expected)
            elo[one] += moved
            elo[other] -= moved

    def on_train_result(self, algorithm: Algorithm, result: Result) -> None:
        reached = result["env_runners"]["policy_return_mean"][self._main]
        due = result["training_iteration"] % self._every == 0
        numbers = self._numbers(algorithm)
        newest = max(numbers, default=0)
        if due and reached is not None and reached >= self._at_return:
            newest += 1
            algorithm.add_policy(f"{self._main}_{newest}", like=self._main)
            self._elo[f"{self._main}_{newest}"] = self._elo[self._main]
            for number in sorted(numbers)[: max(len(numbers) + 1 - self._most, 0)]:
                algorithm.remove_policy(f"{self._main}_{number}")
                del self._elo[f"{self._main}_{number}"]
        # Made of the policies themselves, so that a resumed run goes on with the same league.
        size = len(algorithm.policies) - 1
        result["league"] = {"size": size, "newest": newest, "elo": dict(self._elo)}

    def get_state(self) -> dict[str, Any]:
        """The ratings."""
        return {"elo": self._elo}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state`."""
        self._elo = dict(state["elo"])

    def _numbers(self, algorithm: Algorithm) -> list[int]:
        names = (policy_id.removeprefix(f"{self._main}_") for policy_id in algorithm.policies)
        return [int(name) for name in names if name.isdecimal()]


def main_against_others(agent: str, episode: EpisodeStart, main: str = "main") -> str:
    """``main`` for one of two agents, drawn by the episode's seed; any other policy for the other,
    or ``main`` as well where there is none yet.

    The names of the agents end in two consecutive digits, as ``player_0`` and ``player_1`` do.
    """
    others = [policy for policy in episode.policies if policy != main]
    if int(agent[-1]) % 2 == episode.seed % 2 or not others:
        return main
    return others[int(episode.rng.integers(len(others)))]
