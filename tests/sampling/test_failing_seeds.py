"""Environments that raise with certain seeds, in training and in evaluation."""

import numpy as np
import pytest
from agent_runners import MLP
from counting_envs import FailsBySeed, collect

from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.data import columns as col
from rlrun.data.sample_batch import DEFAULT_POLICY_ID
from rlrun.data.seeding import Role, episode_seed
from rlrun.envs.multi_agent_env import make_multi_agent
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.evaluation import run_episodes
from rlrun.sampling.runner_messages import MultiAgentSpec, RunnerSpec, SampleRequest

several_that_fail = make_multi_agent(FailsBySeed)


@pytest.mark.parametrize(("mode", "length"), [("sync", 30), ("async", 6)])
@pytest.mark.parametrize("several", [False, True])
def test_an_env_that_cannot_be_reset_with_a_seed_is_reset_with_another(several, mode, length):
    def made():
        use = f"{__name__}:several_that_fail" if several else "counting_envs:FailsBySeed"
        settings = EnvRunnersConfig(num_envs_per_env_runner=2, gym_env_vectorize_mode=mode)
        spec = RunnerSpec(
            EnvSpec.model_validate({"use": use, "num_agents": 1} if several else use),
            settings,
            seed=1,
            restart_failed_sub_environments=True,
            multi_agent=MultiAgentSpec({DEFAULT_POLICY_ID: MLP}) if several else None,
        )
        return EnvRunner(spec)

    runner, successor = made(), made()
    seeds = [episode.seed for reply in collect(runner, [length] * 2) for episode in reply.episodes]
    planned = [episode_seed(1, Role.TRAIN, 0, i, k) for i in range(2) for k in range(99)]
    replaced = {seed + 1 for seed in planned if seed % 4 == 1}
    assert len(replaced.intersection(seeds)) > length // 10
    assert set(seeds) <= replaced | {seed for seed in planned if seed % 4 != 1}
    for k in range(2, 9 if mode == "sync" else 4):  # also from the middle of such episodes
        successor.set_state(runner.get_state())
        one, other = (each.sample_fragment(SampleRequest(k, 1)) for each in (runner, successor))
        np.testing.assert_array_equal(one.batch[col.OBS], other.batch[col.OBS])
        assert one.episodes == other.episodes
    runner.stop()
    successor.stop()


@pytest.mark.parametrize("in_step", [-1, 1])
@pytest.mark.parametrize("several", [False, True])
def test_an_episode_that_fails_each_time_runs_with_another_seed(several, in_step):
    use = f"{__name__}:several_that_fail" if several else "counting_envs:FailsBySeed"
    env = {"use": use, "in_step": in_step} | ({"num_agents": 1} if several else {})

    def seeds(numbers, num_envs):
        spec = RunnerSpec(
            EnvSpec.model_validate(env),
            EnvRunnersConfig(num_envs_per_env_runner=num_envs),
            restart_failed_sub_environments=True,
            multi_agent=MultiAgentSpec({DEFAULT_POLICY_ID: MLP}) if several else None,
        )
        records = run_episodes(EnvRunner(spec, role=Role.EVALUATION), numbers, seed=3)
        assert [record.episode_id for record in records] == [*numbers]
        return [record.seed for record in records]

    planned = [episode_seed(3, Role.EVALUATION, 0, 0, k) for k in range(40)]
    failing = {k for k, seed in enumerate(planned) if seed % 4 == 1}
    found = seeds(range(40), 3)
    assert len(failing) > 3
    assert {k for k in range(40) if found[k] != planned[k]} == failing
    assert not any(seed % 4 == 1 for seed in found)
    assert seeds(range(10), 2) + seeds(range(10, 40), 1) == found
