"""The built-in connector of rewards: clipping and normalisation.

The policy learns from the result; reported returns are sums of the environments' own rewards. Must
not know of environments, networks or torch.

    k  slots of a step
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlrun.connectors.connector import Connector, State
from rlrun.connectors.filters import RunningStat
from rlrun.data.column_data import Array

NORMALIZED_CLIP = 10.0


class RewardPipeline(Connector):
    """Clips rewards, then divides them by the running standard deviation of the discounted return.

    The return of each slot is accumulated over its episode and starts at 0 in the next one. No mean
    is subtracted, as that would change what is optimal. The result is clipped to [-10, 10] ("The 37
    Implementation Details of PPO", continuous details 8 and 9).

    Args:
        clip: True takes the sign, a number clips to plus or minus that, False does nothing.
        normalize: divide by the running standard deviation.
        gamma: discount of the accumulated return.

    Attributes:
        clip: as given.
        identity: whether rewards pass unchanged.
    """

    def __init__(self, *, clip: bool | float, normalize: bool, gamma: float) -> None:
        self.clip = clip
        self._sign = clip is True
        self._limit = None if isinstance(clip, bool) else float(clip)
        self._normalize = normalize
        self._gamma = gamma
        self._stat = RunningStat()
        self._deltas = RunningStat()
        self.identity = not normalize and not self._sign and self._limit is None

    def __call__(
        self,
        rewards: Array,
        terminateds: Array,
        truncateds: Array,
        returns: Array,
        *,
        valid: Array | None = None,
        update: bool = True,
    ) -> Array:
        """Rewards of one step, float64 [k] -> float32 [k], or the argument if `identity`.

        Args:
            rewards: as the environments gave them.
            terminateds, truncateds: bool [k].
            returns: the slots' discounted returns so far, float64 [k], updated in place.
            valid: bool [k], False in slots whose step was not a transition; None if all were.
            update: whether to update the statistics; False in evaluation.
        """
        if self.identity:
            return rewards
        if self._sign:
            rewards = np.sign(rewards)
        elif self._limit is not None:
            rewards = np.clip(rewards, -self._limit, self._limit)
        if self._normalize:
            if update:
                self._learn(returns, rewards, terminateds | truncateds, valid)
            rewards = np.clip(rewards / self._std(), -NORMALIZED_CLIP, NORMALIZED_CLIP)
        return rewards.astype(np.float32)

    def _learn(self, returns: Array, rewards: Array, dones: Array, valid: Array | None) -> None:
        if valid is None:
            returns *= self._gamma
            returns += rewards
            seen = returns
        else:
            returns[valid] = returns[valid] * self._gamma + rewards[valid]
            seen = returns[valid]
        fresh = self._stat.batch(seen)
        self._stat.merge(fresh)
        self._deltas.merge(fresh)
        returns[dones] = 0.0

    def _std(self) -> float:
        """Standard deviation of the returns; 1 while they are all equal."""
        variance = float(self._stat.variance()) if self._stat.count > 1 else 0.0
        return float(np.sqrt(variance)) if variance > 0.0 else 1.0

    def get_state(self) -> State:
        if not self._normalize:
            return {}
        return {"stat": self._stat.get_state(), "deltas": self._deltas.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        if not (self._normalize and state):
            return
        self._stat.set_state(state["stat"])
        self._deltas.set_state(state["deltas"])

    def flush_deltas(self) -> State:
        if not self._normalize:
            return {}
        deltas = self._deltas.get_state()
        self._deltas = RunningStat()
        return deltas

    def apply_deltas(self, deltas: Iterable[Mapping[str, Any]]) -> None:
        for delta in deltas:
            if self._normalize:
                self._stat.merge(RunningStat.from_state(delta))
