"""The effect of each setting of a sweep on the score: charts, importance, parallel coordinates.

Owns which settings vary among the trials with a score, and their values as numbers. It must not
know where charts are shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rlrun.experiment.report.charts import Axis, Chart, Curve
from rlrun.experiment.report.numbers import short
from rlrun.experiment.sweep.points import value_text
from rlrun.experiment.sweep.trials import Trial, TrialTable


def effects_of(table: TrialTable) -> list["Effect"]:
    """The effect of each setting that varies, in the order of the settings."""
    trials = [trial for trial in table.trials if isinstance(trial.score, int | float)]
    effects = [Effect.of(address, trials) for address in (trials[0].settings if trials else ())]
    return [effect for effect in effects if len(set(effect.numbers)) > 1]


@dataclass(frozen=True)
class Effect:
    """The values of a setting as numbers; others are numbered in order of appearance."""

    address: str
    trials: Sequence[Trial]
    """The trials with a score, [N]."""
    numbers: Sequence[float]
    """The value of each trial, [N]."""
    names: Sequence[str] = ()
    """Names of values that are not numbers."""

    @classmethod
    def of(cls, address: str, trials: Sequence[Trial]) -> "Effect":
        """The effect of the setting at an address."""
        values: list[Any] = [trial.settings.get(address) for trial in trials]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            return cls(address, trials, list(map(float, values)))
        texts = list(map(value_text, values))
        names = list(dict.fromkeys(texts))
        return cls(address, trials, [float(names.index(text)) for text in texts], names)

    @property
    def importance(self) -> float:
        """Share of the variance of the scores' ranks that the setting explains, 0 to 1.

        For numbers with many values it is the squared rank correlation, else the variance between
        the groups of equal values.
        """
        ranks = _ranked([trial.score or 0.0 for trial in self.trials])
        values = np.array(self.numbers)
        if not self.names and len(set(self.numbers)) > len(values) / 2:
            return float(np.corrcoef(ranks, _ranked(values))[0, 1] ** 2) if np.ptp(ranks) else 0.0
        groups = [ranks[values == each] for each in dict.fromkeys(self.numbers)]
        between = sum(len(group) * (group.mean() - ranks.mean()) ** 2 for group in groups)
        total = float(((ranks - ranks.mean()) ** 2).sum())
        return float(between) / total if total else 0.0

    @property
    def _over_decades(self) -> bool:
        low, high = min(self.numbers), max(self.numbers)
        return not self.names and low > 0 and high / low >= 10

    def chart(self, metric: str, best: Trial | None) -> Chart:
        """The setting against the score, with the statuses of the trials, and the best one."""
        curves: dict[str, tuple[list[float], list[float]]] = {}
        for trial, number in zip(self.trials, self.numbers, strict=True):
            x, y = curves.setdefault("best" if trial is best else trial.status, ([], []))
            x.append(number)
            y.append(trial.score or 0.0)
        return Chart(
            f"{metric} over {self.address}",
            self.address,
            [
                Curve(label, *curves[label], dots=True)
                for label in sorted(curves, key=lambda label: (label == "best", label))
            ],
            log_x=self._over_decades,
            x_names=self.names,
        )

    def axis(self) -> Axis:
        """The axis of the setting among parallel coordinates."""
        names = self.names or (short(min(self.numbers)), short(max(self.numbers)))
        numbers = np.log10(self.numbers).tolist() if self._over_decades else self.numbers
        return Axis(self.address, names[0], names[-1], numbers)


def _ranked(values: ArrayLike) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The ranks of values, [N] -> [N]; equal values share their mean rank."""
    numbers = np.asarray(values, np.float64)
    below = (numbers[:, None] > numbers).sum(axis=-1)
    equal = (numbers[:, None] == numbers).sum(axis=-1)
    return below + (equal - 1) / 2
