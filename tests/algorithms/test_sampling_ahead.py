"""`sample_async`, and runners that come and go while an algorithm trains."""

from __future__ import annotations

import copy
import importlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import ALGORITHMS, BATCH, FILTERED, assert_equal_weights, build, learner_stats, train

from rlrun.actors.env_runner_group import Round
from rlrun.algorithms.algorithm import Algorithm
from rlrun.config.problems import ConfigError
from rlrun.envs.errors import EnvError

pytestmark = pytest.mark.usefixtures("shared_actors")
AHEAD = {"env_runners": {"sample_async": True}, "evaluation": {"interval": 1, "episodes": 2}}
ONE_STEP = {"num_epochs": 1, "minibatch_size": BATCH, "lr": 0.05}


def learned(row: dict[str, Any]) -> dict[str, Any]:
    """A result without what says that runners were restarted."""
    return {key: value for key, value in row.items() if not key.startswith("env_runners")}


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "env", "filtered"),
    [
        ("PPO", "MultiAgentCartPole", True),
        ("PPO, LSTM", "CartPole-v1", False),
        ("DQN", "CartPole-v1", True),
        ("DQN", "CartPole-v1", False),
    ],
)
def test_runners_sample_while_policies_learn_and_equal_runs_are_equal(
    built: Any, tmp_path: Path, name: str, env: str, filtered: bool
) -> None:
    settings = copy.deepcopy(AHEAD)
    if filtered:
        settings["env_runners"] |= FILTERED["env_runners"]
    first = built(build, name, env, runners=2, **settings)
    second = built(build, name, env, runners=2, **settings)
    train(first, 2)
    assert first.env_runner_group.num_in_flight == 2
    first.save(tmp_path / "checkpoint")
    rows = train(first, 3)
    train(second, 2)
    os.kill(second.env_runner_group.foreach_env_runner(lambda _: os.getpid())[0], signal.SIGKILL)
    for row, other in zip(rows, train(second, 3), strict=True):
        assert learned(row) == learned(other)
    causes = {cause: other[f"env_runners/restarts_by_cause/{cause}"] for cause in ("died", "late")}
    assert causes == {"died": 1, "late": 0}
    resumed = built(Algorithm.from_checkpoint, tmp_path / "checkpoint")
    assert train(resumed, 3) == rows
    assert_equal_weights(resumed, first)
    assert [row["env_steps"] for row in rows] == [3 * BATCH, 4 * BATCH, 5 * BATCH]


def in_flight_before_replies(algorithm: Algorithm, patch: pytest.MonkeyPatch) -> list[int]:
    """Will hold how many requests are under way each time that replies are waited for."""
    in_flight, replies = list[int](), Round.replies

    def noting(round_: Round) -> list[Any]:
        in_flight.append(algorithm.env_runner_group.num_in_flight)
        return replies(round_)

    patch.setattr(Round, "replies", noting)
    return in_flight


@pytest.fixture(scope="module")
def ahead(local_ray: None, actor_pool: Any) -> Iterator[Any]:
    """A PPO whose runner samples ahead, its first statistics, and what was in flight meanwhile."""
    sampling = {"sample_async": True, "sample_timeout_s": 20}
    with actor_pool.shared():
        algorithm = build("PPO", runners=1, env_runners=sampling, training=ONE_STEP)
    with pytest.MonkeyPatch.context() as patch:
        in_flight = in_flight_before_replies(algorithm, patch)
        rows = [learner_stats(algorithm) for _ in range(3)]
    yield algorithm, rows, in_flight
    algorithm.stop()


def test_a_batch_sampled_ahead_is_one_update_old_and_is_weighted_for_that(ahead: Any) -> None:
    _, rows, _ = ahead
    assert [row["policy_lag_max"] for row in rows] == [0, 1, 1]
    assert [row["policy_lag_mean"] for row in rows] == [0, 1, 1]
    # The mean of the standardised advantages, weighted by what the update before has changed.
    assert abs(rows[0]["policy_loss"]) < 1e-6
    assert all(abs(row["policy_loss"]) > 1e-4 for row in rows[1:])


@pytest.mark.parametrize("name", ["PPO", "A2C"])
def test_advantages_are_corrected_for_older_weights_when_sampling_ahead(
    built: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    corrected = []
    module = importlib.import_module(f"rlrun.algorithms.{name.lower()}")
    estimated = module.add_advantages

    def noting(*arguments: Any, off_policy: bool) -> Any:
        corrected.append(off_policy)
        return estimated(*arguments, off_policy=off_policy)

    monkeypatch.setattr(module, "add_advantages", noting)
    train(built(build, name), 1)
    train(built(build, name, runners=1, env_runners={"sample_async": True}), 1)
    assert corrected == [False, True]


def test_runners_have_the_next_request_before_they_answer(ahead: Any) -> None:
    _, _, in_flight = ahead
    assert in_flight == [1, 2, 2]


def test_runners_have_no_request_before_their_filters_are_merged(
    built: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = {"sample_async": True, **FILTERED["env_runners"]}
    algorithm = built(build, "PPO", runners=1, env_runners=sampling)
    in_flight = in_flight_before_replies(algorithm, monkeypatch)
    train(algorithm, 3)
    assert in_flight == [1, 1, 1]
    assert algorithm.env_runner_group.num_in_flight == 1


def test_an_algorithm_is_built_when_its_runners_are(built: Any) -> None:
    env = {"use": "counting_envs:FailsElsewhere", "kwargs": {"process_id": os.getpid()}}
    with pytest.raises(EnvError, match="no env"):
        built(build, "PPO", env, runners=1)


def test_what_batches_left_out_in_turns_may_be_read_when_sampling_ahead(
    built: Any, tmp_path: Path
) -> None:
    in_turns = built(build, "PPO")
    train(in_turns, 1)
    assert "action_logp" in in_turns.policies.reads.left_out["default_policy"]
    in_turns.save(tmp_path / "in_turns")
    changes = ["env_runners.sample_async=true", "env_runners.num_env_runners=1"]
    ahead = built(Algorithm.from_checkpoint, tmp_path / "in_turns", changes)
    assert ahead.policies.reads.left_out == {}


@pytest.mark.faults
def test_a_run_that_took_turns_goes_on_sampling_ahead_and_back(built: Any, tmp_path: Path) -> None:
    in_turns = built(build, "PPO", runners=1)
    train(in_turns, 1)
    in_turns.save(tmp_path / "in_turns")
    ahead = built(
        Algorithm.from_checkpoint, tmp_path / "in_turns", ["env_runners.sample_async=true"]
    )
    train(ahead, 2)
    ahead.restore(tmp_path / "in_turns")  # what is under way is forgotten
    assert [learner_stats(ahead)["policy_lag_max"] for _ in range(2)] == [0, 1]
    ahead.save(tmp_path / "ahead")
    back = built(Algorithm.from_checkpoint, tmp_path / "ahead", ["env_runners.sample_async=false"])
    assert "policy_lag_max" not in learner_stats(back)
    assert back.env_steps == 4 * BATCH


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("DQN", {"sample_async": True}),
        ("IMPALA", {}),
        ("A3C", {}),
    ],
)
def test_runners_come_and_go_and_batches_stay_as_large(
    built: Any, name: str, settings: dict[str, Any]
) -> None:
    algorithm = built(build, name, runners=1, env_runners=settings)
    train(algorithm, 1)
    for number in (2, 1, 2):
        algorithm.resize_env_runners(number)
        row = algorithm.train()
        assert row["env_steps_this_iter"] == BATCH
        assert row["env_runners"]["healthy"] == number
    with pytest.raises(ValueError, match="one must remain"):
        algorithm.resize_env_runners(0)


def test_a_local_runner_stays_the_only_one(built: Any) -> None:
    algorithm = built(build, "PPO")
    with pytest.raises(ValueError, match="only remote env runners can be added or removed"):
        algorithm.resize_env_runners(2)
    assert algorithm.config.env_runners.num_env_runners == 0


def test_a_runner_that_is_replaced_between_iterations_is_not_waited_for(ahead: Any) -> None:
    algorithm, _, _ = ahead
    algorithm.resize_env_runners(2)
    train(algorithm, 1)
    algorithm.resize_env_runners(1)
    algorithm.resize_env_runners(2)
    row = algorithm.train()
    assert (row["env_runners"]["restarts"], row["env_steps_this_iter"]) == (0, BATCH)
    statistics = row["learners"]["default_policy"]["learner_stats"]
    assert statistics["policy_lag_max"] == 0, "what was under way is forgotten"


@pytest.mark.faults
def test_a_runner_that_comes_back_goes_on_where_it_stood(built: Any) -> None:
    algorithm = built(build, "PPO", runners=2)
    train(algorithm, 1)
    before = algorithm.env_runner_group.get_states()[2]
    algorithm.resize_env_runners(1)
    train(algorithm, 1)
    algorithm.resize_env_runners(2)
    numbers = algorithm.env_runner_group.foreach_env_runner(lambda runner: runner.get_state())
    np.testing.assert_array_equal(numbers[1]["episodes"]["number"], before["episodes"]["number"])
    with pytest.raises(ValueError, match=r"training.train_batch_size: 32 is too small"):
        built(
            build, "PPO", runners=2, env_runners={"rollout_fragment_length": 8}
        ).resize_env_runners(3)


@pytest.mark.parametrize(
    ("name", "runners", "message"),
    [("PPO", 0, "set env_runners.num_env_runners to 1"), ("IMPALA", 1, "samples while it learns")],
)
def test_where_nothing_could_be_sampled_ahead_it_is_refused(
    name: str, runners: int, message: str
) -> None:
    config = ALGORITHMS[name]().environment("CartPole-v1")
    config.env_runners(num_env_runners=runners, sample_async=True)
    with pytest.raises(ConfigError, match=f"env_runners.sample_async: .*{message}"):
        config.experiment()
