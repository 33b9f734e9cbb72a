"""The interquartile mean of runs, and its bootstrap interval.

Owns the two formulas of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", section 4. It must not know the meaning of the numbers.

    scores   [N], one number a run
    strata   an array of scores for each task; runs are resampled within their task
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Scores = NDArray[np.float64]
Statistic = Callable[[Scores], Scores]
"""[..., N] scores -> [...] numbers."""


def iqm(scores: ArrayLike) -> Scores:
    """The mean of the middle half of the scores, along the last axis: [..., N] -> [...].

    Exactly half of the weight is kept for every N: of three scores all of the middle one and a
    quarter of the two others. (Dropping whole scores would drop none of three.)
    """
    ordered = np.sort(np.asarray(scores, np.float64), axis=-1)
    count = ordered.shape[-1]
    if count == 0:
        raise ValueError("the interquartile mean of no scores is undefined")
    # In quarters of a score: the middle half begins at `count` of them and ends at 3 * count.
    quarters = np.clip(4 * np.arange(count + 1), count, 3 * count)
    weights = np.diff(quarters) / (2 * count)
    # From the lowest score upwards: the mean of equal scores is exactly that score.
    return ordered[..., 0] + (ordered - ordered[..., :1]) @ weights


def bootstrap_interval(
    strata: Sequence[ArrayLike],
    statistic: Statistic = iqm,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """The percentile interval of ``statistic`` over resampled runs of each task.

    Args:
        strata: the scores of each task, one array a task.
        statistic: of all tasks' scores together.
        confidence: probability with which the interval contains the true number.
        resamples: number of sets of runs to draw, each as large as the original.
        seed: of the draws; equal scores give equal intervals.

    """
    random = np.random.default_rng(seed)
    drawn = []
    for stratum in strata:
        scores = np.asarray(stratum, np.float64)
        rows = random.integers(len(scores), size=(resamples, len(scores)))
        drawn.append(scores[rows])
    values = statistic(np.concatenate(drawn, axis=-1))
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(values, [tail, 1.0 - tail])
    return float(low), float(high)
