"""Sub-environments in processes of their own: what they return, and what becomes of failures."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import numpy as np
import pytest
from counting_envs import Counter

from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest


class Fails(Counter):
    """Raises, or ends its process, in the fourth step of some episodes."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how

    def step(self, action: Any) -> Any:
        if self._seed % 3 == 2 and self._step == 3:
            if self._how == "dies":
                os._exit(7)
            raise RuntimeError("crash")
        return super().step(action)


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_failed_process_is_replaced_and_its_episode_dropped(how: str) -> None:
    settings = EnvRunnersConfig(num_envs_per_env_runner=3, gym_env_vectorize_mode="async")
    env = EnvSpec(use=f"{__name__}:Fails", how=how)
    spec = RunnerSpec(env, settings, restart_failed_sub_environments=True)
    runner, again = EnvRunner(spec), EnvRunner(spec)
    reply = runner.sample_fragment(SampleRequest(0, 40))
    assert reply.faulty_episodes > 3
    assert len(reply.batch) == 120
    assert all(episode.seed % 3 != 2 for episode in reply.episodes)
    np.testing.assert_array_equal(reply.batch["obs"][:, 1], reply.batch["t"])
    again.set_state(reply.state)
    following = [one.sample_fragment(SampleRequest(1, 10)).batch["obs"] for one in (runner, again)]
    np.testing.assert_array_equal(*following)
    runner.stop()
    again.stop()
    assert not multiprocessing.active_children()
