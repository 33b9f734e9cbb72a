"""Rounds of sampling add up to the train batch, however it divides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.config.batch_arithmetic import fragment_lengths, fragment_problems
from rlrun.config.schema import EnvRunnersConfig


def env_steps(rounds: list[list[int]], envs: int) -> int:
    return sum(map(sum, rounds)) * envs


@given(
    runners=st.integers(0, 5),
    envs=st.integers(1, 9),
    more=st.integers(0, 200),
    least=st.integers(1, 20),
)
def test_short_rounds_add_up_and_none_is_empty(runners, envs, more, least):
    batch = envs * (max(runners, 1) + more)
    settings = EnvRunnersConfig(num_env_runners=runners, num_envs_per_env_runner=envs)
    rounds = fragment_lengths(batch, settings, least)
    assert env_steps(rounds, envs) == batch
    assert all(length >= 1 for lengths in rounds for length in lengths)
    assert all(len(lengths) == max(runners, 1) for lengths in rounds)
    if len(rounds) > 1:
        assert min(env_steps([lengths], envs) for lengths in rounds) >= least


@pytest.mark.parametrize(("length", "rounds"), [("auto", 16), (2, 8)])
def test_a_given_fragment_length_decides(length, rounds):
    settings = EnvRunnersConfig(num_envs_per_env_runner=4, rollout_fragment_length=length)
    assert len(fragment_lengths(64, settings, 4)) == rounds


@pytest.mark.parametrize(
    ("size", "runners", "envs", "length", "ways"),
    [
        (6, 2, 4, "auto", "set it to 8 or more, or env_runners.num_envs_per_env_runner to 2"),
        (7, 2, 4, "auto", "set it to 8 or more, or env_runners.num_envs_per_env_runner to 1"),
        (3, 4, 2, "auto", "set it to 8 or more"),
        (32, 2, 4, 10, "set it to 80 or more, or env_runners.rollout_fragment_length to auto"),
        (6, 3, 4, 1, "set it to 12 or more, or env_runners.num_envs_per_env_runner to 2"),
        (90, 2, 4, 10, "set it to 80 or 160"),
    ],
)
def test_a_refused_batch_size_names_ways_that_work(size, runners, envs, length, ways):
    settings = EnvRunnersConfig(
        num_env_runners=runners, num_envs_per_env_runner=envs, rollout_fragment_length=length
    )
    ((key, message),) = fragment_problems(size, settings)
    assert key == "training.train_batch_size"
    assert message.endswith(f"; {ways}")
