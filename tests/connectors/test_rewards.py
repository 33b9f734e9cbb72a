"""What the policy learns from: clipped and normalised rewards."""

from typing import Any

import numpy as np
import pytest

from rlrun.connectors.rewards import RewardPipeline

NO = np.zeros(3, np.bool_)


class Slots:
    """A pipeline with the running returns of its slots."""

    def __init__(self, clip: bool | float = False, normalize: bool = False, slots: int = 3) -> None:
        self.connector = RewardPipeline(clip=clip, normalize=normalize, gamma=0.9)
        self.returns = np.zeros(slots)

    def __call__(self, rewards: Any, terminateds: Any, truncateds: Any, **more: Any) -> Any:
        return self.connector(rewards, terminateds, truncateds, self.returns, **more)


pipeline = Slots


def test_nothing_to_do_returns_the_argument() -> None:
    rewards = np.array([3.0, -0.5, 0.0])
    connector = pipeline(clip=False)
    assert connector.connector.identity
    assert connector(rewards, NO, NO) is rewards
    assert connector.connector.get_state() == connector.connector.flush_deltas() == {}


@pytest.mark.parametrize(
    ("clip", "expected"),
    [(True, [1, -1, 0]), (2, [2, -0.5, 0]), (0.25, [0.25, -0.25, 0]), (1, [1, -0.5, 0])],
)
def test_clipping(clip: Any, expected: list[float]) -> None:
    rewards = np.array([3.0, -0.5, 0.0])
    result = pipeline(clip)(rewards, NO, NO)
    assert result.tolist() == expected
    assert result.dtype == np.float32
    assert rewards.tolist() == [3.0, -0.5, 0.0]


def test_normalisation_against_a_slow_transcription() -> None:
    """Detail 6 of the continuous ones: divide by the std of the discounted return, mean kept."""
    rng = np.random.default_rng(0)
    connector, seen, returns = pipeline(normalize=True), [], [0.0, 0.0, 0.0]
    for _ in range(40):
        rewards = rng.normal(1.0, 50.0, 3)
        terminateds, truncateds = rng.random(3) < 0.1, rng.random(3) < 0.1
        result = connector(rewards, terminateds, truncateds)
        for env_index in range(3):
            returns[env_index] = returns[env_index] * 0.9 + rewards[env_index]
            seen.append(returns[env_index])
            if terminateds[env_index] or truncateds[env_index]:
                returns[env_index] = 0.0
        expected = np.clip(rewards / np.std(seen, ddof=1), -10, 10)
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_the_first_rewards_are_not_blown_up() -> None:
    single = pipeline(normalize=True, slots=1)
    no = np.zeros(1, np.bool_)
    assert single(np.array([0.5]), no, no).tolist() == [0.5]
    equal = pipeline(normalize=True)
    assert equal(np.ones(3), NO, NO).tolist() == [1, 1, 1]
    assert pipeline(normalize=True)(np.zeros(3), NO, NO).tolist() == [0, 0, 0]


def test_the_result_is_clipped() -> None:
    connector = pipeline(normalize=True)
    for _ in range(100):
        connector(np.array([0.1, 0.0, -0.1]), NO, NO)
    assert connector(np.array([1e9, -1e9, 0.0]), NO, NO, update=False).tolist() == [10, -10, 0]


def test_frozen_statistics_and_returns() -> None:
    connector = pipeline(normalize=True)
    connector(np.array([1.0, 2.0, 3.0]), NO, NO)
    before, returns = connector.connector.get_state(), connector.returns.copy()
    connector(np.array([9.0, 9.0, 9.0]), ~NO, NO, update=False)
    after = connector.connector.get_state()
    assert after["stat"]["count"] == before["stat"]["count"] == 3
    np.testing.assert_array_equal(connector.returns, returns)


def test_steps_that_are_no_transitions_are_not_learned() -> None:
    masked, reference = pipeline(normalize=True), pipeline(normalize=True, slots=2)
    valid = np.array([True, False, True])
    for value in (1.0, 5.0):
        masked(np.array([value, 0.0, -value]), NO, NO, valid=valid)
        reference(np.array([value, -value]), NO[:2], NO[:2])
    np.testing.assert_array_equal(
        masked.connector.get_state()["stat"]["m2"], reference.connector.get_state()["stat"]["m2"]
    )
    assert masked.returns[1] == 0.0


def test_statistics_merge() -> None:
    rng = np.random.default_rng(1)
    central = RewardPipeline(clip=False, normalize=True, gamma=0.9)
    runners, alone = [pipeline(normalize=True), pipeline(normalize=True)], pipeline(False, True, 6)
    for _ in range(5):
        rewards = rng.normal(size=6)
        runners[0](rewards[:3], NO, NO)
        runners[1](rewards[3:], NO, NO)
        alone(rewards, np.zeros(6, np.bool_), np.zeros(6, np.bool_))
    central.apply_deltas([runner.connector.flush_deltas() for runner in runners])
    for runner in runners:
        runner.connector.set_state(central.get_state())
        for key, value in alone.connector.get_state()["stat"].items():
            found = runner.connector.get_state()["stat"][key]
            np.testing.assert_allclose(found, value, rtol=1e-9)
    assert runners[0].connector.flush_deltas()["count"] == 0


def test_returns_that_were_not_flushed_yet_go_with_the_state() -> None:
    one, other = pipeline(normalize=True), pipeline(normalize=True)
    one(np.array([1.0, 5.0, -2.0]), NO, NO)
    other.connector.set_state(one.connector.get_state())
    found, expected = (each.connector.flush_deltas() for each in (other, one))
    assert found == expected
    assert found["count"] == 3
