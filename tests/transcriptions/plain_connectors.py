"""What connectors make of the log: statistics over all that a runner has seen, in its order."""

from __future__ import annotations

import numpy as np
import torch
from logged_envs import Rows


def deviation(numbers: list[np.ndarray]) -> np.ndarray:
    """Sample deviation; of a single row its mean's size."""
    stacked = np.stack(numbers)
    return stacked.std(0, ddof=1) if len(stacked) > 1 else np.abs(stacked[0])


class Filter:
    """A runner's observations less their mean so far, by their deviation, within 10.

    Attributes:
        seen: all that its statistics were learned from; ``own``, the part since others shared.
    """

    def __init__(self, streams: list[Rows]) -> None:
        self._raw, self.seen, self.own = streams, list[np.ndarray](), list[np.ndarray]()
        names = "obs", "new_obs"
        self.streams = [rows | {name: rows[name].clone() for name in names} for rows in streams]

    def learn(self, name: str, slots: list[int], t: int) -> None:
        """Observations that were seen together."""
        rows = [self._raw[slot][name][t].numpy() for slot in slots]
        self.own += rows
        everything = self.seen + self.own
        scaled = (rows - np.mean(everything, 0)) / (deviation(everything) + 1e-6)
        for slot, values in zip(slots, scaled.clip(-10, 10), strict=True):
            self.streams[slot][name][t] = torch.from_numpy(values)

    def step(self, t: int) -> None:
        """What follows a step, and the first observations of new episodes."""
        slots, goes_on = list(range(len(self._raw))), t + 1 < len(self._raw[0]["t"])
        if not t:
            self.learn("obs", slots, 0)
        self.learn("new_obs", slots, t)
        for slot in slots if goes_on else ():
            self.streams[slot]["obs"][t + 1] = self.streams[slot]["new_obs"][t]
        ended = [slot for slot in slots if self._raw[slot]["ends"][t]]
        if ended and goes_on:
            self.learn("obs", ended, t + 1)


def filtered(streams: list[Rows], length: int, *, runners: int = 1) -> list[Rows]:
    """What `MeanStdFilter` makes of observations.

    Args:
        length: of a fragment, after which runners share what they saw.
    """
    size = len(streams) // runners
    filters = [Filter(streams[k * size : (k + 1) * size]) for k in range(runners)]
    for t in range(len(streams[0]["t"])):
        for each in filters:
            each.step(t)
        if (t + 1) % length == 0:
            fresh = [row for each in filters for row in each.own]
            for each in filters:
                each.seen, each.own = [*each.seen, *fresh], []
    return [rows for each in filters for rows in each.streams]


def scaled_rewards(streams: list[Rows], *, gamma: float, clip: float) -> list[Rows]:
    """Rewards within ``clip``, by the deviation of the discounted returns so far, within 10."""
    returns, seen = np.zeros(len(streams)), list[np.ndarray]()
    found = [{**rows, "rewards": rows["rewards"].clip(-clip, clip)} for rows in streams]
    for t in range(len(streams[0]["t"])):
        returns = gamma * returns + [rows["rewards"][t].item() for rows in found]
        seen += [*returns]
        for k, rows in enumerate(found):
            rows["rewards"][t] = (rows["rewards"][t] / deviation(seen)).clip(-10, 10)
            returns[k] *= not rows["ends"][t]
    return found
