"""Statistics of a few runs: interquartile mean, bootstrap intervals, profiles.

Owns the formulas of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", section 4; the numbers equal those of their package rliable. It must not
know what the scores are.

    N    runs, the last axis of scores
    ...  any leading axes, such as points of a curve
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Scores = NDArray[np.float64]

MIN_RUNS = 5
"""Fewest runs for an interval; with fewer, bootstrap samples hardly differ."""


@dataclass(frozen=True)
class Estimate:
    """A number of several runs, with its uncertainty."""

    value: float
    low: float | None = None
    high: float | None = None
    kind: Literal["interval", "range", "single"] = "single"
    """A 95 % interval; with fewer than MIN_RUNS runs their range, with one run no bounds."""


def estimate(scores: ArrayLike) -> Estimate:
    """The interquartile mean of runs, [N], and its bounds."""
    value, runs = float(iqm(scores)), np.asarray(scores)
    if len(runs) < 2:
        return Estimate(value)
    if len(runs) < MIN_RUNS:
        return Estimate(value, float(runs.min()), float(runs.max()), "range")
    low, high = bootstrap_interval(iqm, scores)
    return Estimate(value, float(low), float(high), "interval")


def iqm(*tasks: ArrayLike) -> Scores:
    """The interquartile mean: the mean of the runs of all tasks, [..., N] each, -> [...].

    The lowest and highest quarters are left out, rounded down to whole runs; with three runs, none.
    """
    ordered = np.sort(np.concatenate([np.asarray(t, np.float64) for t in tasks], -1), axis=-1)
    count = ordered.shape[-1]
    if count == 0:
        raise ValueError("the interquartile mean of no scores is undefined")
    middle = ordered[..., count // 4 : count - count // 4]
    # From the lowest score upwards: the mean of equal scores is exactly that score.
    low = middle[..., :1]
    return low[..., 0] + (middle - low).mean(axis=-1)


def probability_of_improvement(scores: ArrayLike, others: ArrayLike) -> Scores:
    """Probability that a run is better than another configuration's: [..., N], [..., M] -> [...].

    Ties count half, as in the Mann-Whitney U statistic.
    """
    left, right = np.asarray(scores)[..., :, None], np.asarray(others)[..., None, :]
    return ((left > right) + 0.5 * (left == right)).mean(axis=(-2, -1))


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> Scores:
    """Share of the runs above each threshold: [N], [T] -> [T]."""
    return (np.asarray(scores) > np.asarray(thresholds)[:, None]).mean(axis=-1)


def bootstrap_interval(
    statistic: Callable[..., Scores],
    *samples: ArrayLike,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[Scores, Scores]:
    """The percentile interval of a statistic over resampled runs, stratified by sample.

    Args:
        statistic: function of all samples: [..., N] each -> [...].
        samples: the runs of each task or configuration, [..., N]; each is resampled by itself, with
            the same draws for all leading axes.
        confidence: probability with which the interval contains the true number.
        resamples: number of sets of runs to draw, each as large as the original.
        seed: seed of the draws; equal scores give equal intervals.

    Returns:
        The lower and the upper bound, [...] each.
    """
    random = np.random.default_rng(seed)
    drawn = []
    for sample in samples:
        scores = np.asarray(sample, np.float64)
        rows = random.integers(scores.shape[-1], size=(resamples, scores.shape[-1]))
        drawn.append(scores[..., rows])
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(statistic(*drawn), [tail, 1.0 - tail], axis=-1)
    return low, high
