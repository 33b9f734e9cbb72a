"""Numbers of the package rliable for fixed scores.

In an environment of its own: pip install rliable==1.2.0 "pandas<3"; python record_rliable.py >
rliable.json
"""

import json
import sys

import numpy as np
from rliable import library, metrics

RANDOM = np.random.default_rng(17)
CASES = {
    "5 runs of 1 task": [RANDOM.normal(300, 40, (5, 1)), RANDOM.normal(260, 30, (5, 1))],
    "10 runs, and 7": [RANDOM.normal(10, 3, (10, 1)), RANDOM.normal(9, 3, (7, 1))],
    "6 runs of 3 tasks, with ties": [RANDOM.integers(0, 9, (6, 3)) * 1.0 for _ in "xy"],
    "3 runs of 1 task": [RANDOM.normal(0, 1, (3, 1)), RANDOM.normal(0, 1, (3, 1))],
}


def numbers(x, y):
    """What rliable finds for scores of two algorithms, [runs, tasks] each."""
    both = {"x": x, "y": y}
    np.random.seed(0)
    iqm, interval = library.get_interval_estimates(
        both, lambda scores: np.array([metrics.aggregate_iqm(scores)]), reps=20_000
    )
    better, better_interval = library.get_interval_estimates(
        {"pair": (x, y)}, metrics.probability_of_improvement, reps=4_000
    )
    thresholds = np.linspace(min(x.min(), y.min()) - 1, max(x.max(), y.max()), 7).round(4)
    profiles, _ = library.create_performance_profile(both, thresholds, reps=10)
    return {
        "x": x.T.tolist(),
        "y": y.T.tolist(),
        "iqm": [float(iqm[key][0]) for key in both],
        "interval": [interval[key][:, 0].tolist() for key in both],
        "improvement": float(better["pair"]),
        "improvement_interval": better_interval["pair"].ravel().tolist(),
        "thresholds": thresholds.tolist(),
        "profiles": [profiles[key].tolist() for key in both],
    }


if __name__ == "__main__":
    found = [(name, numbers(*(scores.round(4) for scores in case))) for name, case in CASES.items()]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in found)
    sys.stdout.write(f"{{\n{lines}\n}}\n")
