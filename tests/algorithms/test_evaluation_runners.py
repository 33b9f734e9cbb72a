"""Evaluation: in runners of its own, in parallel, with settings of its own; the same episodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium
import pytest

from rlrun import EnvRunner, PPOConfig
from rlrun.algorithms.runners import require_form
from rlrun.config.problems import ConfigError
from rlrun.sampling import evaluation

FAST = {"num_cpus_per_env_runner": 0.1}


def config(**evaluation: Any) -> Any:
    made = PPOConfig().environment("CartPole-v1").debugging(seed=3)
    made = made.training(train_batch_size=128, minibatch_size=64, num_epochs=2).model(hidden=[8])
    settings = {"interval": 1, "episodes": 7, "num_envs": 2, **evaluation}
    if settings.get("num_env_runners"):
        settings["env_runners"] = {**FAST, **settings.get("env_runners", {})}
    return made.evaluation(**settings)


def one_agent(made: Any) -> Any:
    return made


def several(made: Any) -> Any:
    return made.environment("MultiAgentCartPole").multi_agent(policies=["p"])


def numbers(made: Any, iterations: int = 2, kills: bool = False) -> list[Any]:
    algorithm = made.build()
    try:
        found = []
        for _ in range(iterations):
            if kills:
                pids = algorithm.evaluator.group.foreach_env_runner(lambda _: os.getpid())
                os.kill(pids[-1], signal.SIGKILL)
            row = algorithm.train()
            found.append((row["episode_return_mean"], row["evaluation"]))
        return found
    finally:
        algorithm.stop()


def test_an_evaluation_is_due_after_every_few_iterations() -> None:
    found = [evaluated for _, evaluated in numbers(config(interval=3, episodes=1), iterations=6)]
    due = [evaluated["episode_return_mean"] is not None for evaluated in found]
    assert due == [False, False, True, False, False, True]


@pytest.mark.parametrize(
    ("agents", "more"),
    [
        pytest.param(one_agent, {}, marks=pytest.mark.faults),
        pytest.param(several, {"explore": True}, marks=pytest.mark.faults),
        (one_agent, {"env_steps": 200}),
    ],
)
def test_runners_of_its_own_evaluate_the_same_episodes(
    shared_actors: None, agents: Any, more: dict[str, Any]
) -> None:
    here = numbers(agents(config(**more)))
    assert numbers(agents(config(num_env_runners=2, **more))) == here


class OwnRunner(EnvRunner):
    """A class of the user's own."""


@pytest.fixture(scope="module")
def parallel(local_ray: None, actor_pool: Any) -> Iterator[Any]:
    made = config(num_env_runners=1, parallel_to_training=True)
    with actor_pool.shared():
        algorithm = made.env_runners(env_runner_cls=OwnRunner).build()
    yield algorithm
    algorithm.stop()


def test_evaluation_actors_have_the_class_of_env_runners(parallel: Any) -> None:
    names = parallel.evaluator.group.foreach_env_runner(lambda runner: type(runner).__name__)
    assert names == ["OwnRunner"]


@pytest.mark.faults
def test_a_killed_evaluation_runner_comes_back_and_its_episodes_are_the_same(
    shared_actors: None,
) -> None:
    assert numbers(config(num_env_runners=2), kills=True) == numbers(config())


@pytest.mark.faults
def test_episodes_of_a_lost_evaluation_runner_are_run_by_the_others(shared_actors: None) -> None:
    ignoring = config(num_env_runners=2).fault_tolerance(
        restart_failed_env_runners=False, ignore_env_runner_failures=True
    )
    algorithm, alone = ignoring.build(), config().build()
    os.kill(algorithm.evaluator.group.foreach_env_runner(lambda _: os.getpid())[0], signal.SIGKILL)
    assert algorithm.evaluate() == alone.evaluate()
    algorithm.stop()


def test_an_interrupt_lets_an_evaluation_in_this_process_end() -> None:
    algorithm = config().build()
    expected = algorithm.evaluate()
    algorithm.evaluator.interrupt()
    assert algorithm.evaluate() == expected


def test_in_parallel_the_weights_are_evaluated_with_which_the_iteration_began(
    parallel: Any,
) -> None:
    straight = config().build()
    expected = [straight.evaluate(), straight.train()["evaluation"], straight.train()["evaluation"]]
    assert [parallel.train()["evaluation"] for _ in range(3)] == expected


def test_evaluating_in_a_callback_leaves_the_parallel_evaluation_as_it_was(
    parallel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, training_step = [], parallel.training_step

    def evaluates_after() -> Any:
        learners = training_step()
        inside.extend(parallel.evaluate()["episode_return_mean"] for _ in range(2))
        return learners

    monkeypatch.setattr(parallel, "training_step", evaluates_after)
    before = parallel.evaluate()
    assert parallel.train()["evaluation"] == before
    after = parallel.evaluate()["episode_return_mean"]
    assert inside == [after, after]
    assert after != before["episode_return_mean"]


def test_what_was_begun_in_an_iteration_that_failed_is_not_taken_for_the_present_weights(
    parallel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise RuntimeError("in the middle")

    monkeypatch.setattr(parallel, "training_step", fails)
    with pytest.raises(RuntimeError, match="in the middle"):
        parallel.train()
    straight = config().build()
    parallel.set_weights(straight.get_weights())
    assert parallel.evaluate() == straight.evaluate()


def test_an_interrupt_ends_an_evaluation_whose_runner_fails_instead_of_replacing_it(
    parallel: Any,
) -> None:
    parallel.evaluator.interrupt()
    (pid,) = parallel.evaluator.group.foreach_env_runner(lambda _: os.getpid())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(KeyboardInterrupt):
        parallel.evaluate()


@pytest.mark.faults
def test_a_resumed_run_evaluates_the_same_in_runners_of_its_own(
    shared_actors: None, tmp_path: Any
) -> None:
    first, resumed = (config(num_env_runners=2).build() for _ in range(2))
    resumed.train()  # other weights of the same version
    first.train()
    first.train()
    first.save(tmp_path / "saved")
    resumed.restore(tmp_path / "saved")
    assert resumed.train()["evaluation"] == first.train()["evaluation"]
    first.stop()
    resumed.stop()


def test_each_evaluation_is_a_request_with_a_number_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By which a failure is known that comes back within one evaluation."""
    numbers, load = [], evaluation.load_policies

    def noting(runner: Any, request: Any, *arguments: Any) -> None:
        numbers.append(request.fragment)
        load(runner, request, *arguments)

    monkeypatch.setattr(evaluation, "load_policies", noting)
    algorithm = config().build()
    for _ in range(3):
        algorithm.evaluate()
    assert len(set(numbers)) == 3


def test_env_steps_take_the_fewest_first_episodes_that_suffice() -> None:
    by_episodes = config(episodes=30).build().evaluator.evaluate()
    assert len(by_episodes) == 30
    found = config(env_steps=150, num_envs=5).build().evaluator.evaluate()
    assert [episode.seed for episode in found] == [e.seed for e in by_episodes[: len(found)]]
    lengths = [episode.length for episode in found]
    assert sum(lengths[:-1]) < 150 <= sum(lengths)
    exactly = sum(episode.length for episode in by_episodes[:3])
    assert len(config(env_steps=exactly, num_envs=5).build().evaluator.evaluate()) == 3


class Long(gymnasium.Env[Any, Any]):
    """Lasts ``length`` steps."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)
    closed: ClassVar[list[Any]] = []

    def __init__(self, length: int = 5, reward: float = 1.0) -> None:
        self._length, self._reward = length, reward

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._left = self._length
        return 0, {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return 0, self._reward, self._left == 0, False, {}

    def close(self) -> None:
        Long.closed.append(self)


def test_stopping_closes_the_environments_of_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Long, "closed", [])
    algorithm = config().environment(f"{__name__}:Long").build()
    algorithm.evaluate()
    of_evaluation = algorithm.evaluator.runner().foreach_env(lambda env: env.unwrapped)
    assert not Long.closed
    shown = algorithm.evaluator.runner("rgb_array").foreach_env(lambda env: env.unwrapped)
    assert {id(env) for env in of_evaluation} == {id(env) for env in Long.closed}
    algorithm.stop()
    assert {id(env) for env in shown} <= {id(env) for env in Long.closed}


class Other(Long):
    """Another environment."""


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, (4, 8.0)),
        ({"env": {"length": 9}}, (9, 18.0)),
        ({"env": {"use": f"{__name__}:Other"}}, (5, 5.0)),
        ({"env_runners": {"horizon": 3}}, (3, 6.0)),
    ],
)
def test_evaluation_has_an_environment_and_runner_settings_of_its_own(
    own: dict[str, Any], expected: tuple[int, float]
) -> None:
    made = config(**own).environment(f"{__name__}:Long", length=4, reward=2.0)
    row = made.build().train()
    evaluation = row["evaluation"]
    assert (evaluation["episode_len_mean"], evaluation["episode_return_mean"]) == expected
    assert row["episode_len_mean"] == 4


HANDS = "rlrun.envs.multi_agent_examples"


def against(agents: Any, **evaluation: Any) -> Any:
    """Two players who show rock, and one who shows paper in evaluation alone."""
    same = f"{HANDS}:AlwaysSame"
    made = config(agents=agents, **evaluation).environment(f"{HANDS}:RockPaperScissors", rounds=4)
    policies = {name: {"use": same, "hand": hand, "train": False} for hand, name in enumerate("rp")}
    policies |= {"learns": {"spaces_of": "player_0"}}
    return made.multi_agent(policies=policies, agents={"player_0": "r", "player_1": "r"})


def a_random_hand(agent: str, episode: Any) -> str:
    return "rp"[episode.rng.integers(2)] if agent == "player_1" else "r"


@pytest.mark.parametrize("runners", [0, pytest.param(1, marks=pytest.mark.faults)])
def test_other_policies_may_play_in_evaluation(runners: int) -> None:
    table = {"player_0": "p", "player_*": "r"}
    algorithm = against(table, num_env_runners=runners).build()
    row = algorithm.train()
    algorithm.stop()
    assert row["env_runners"]["policy_return_mean"] == {"r": 0.0, "p": None, "learns": None}
    assert row["evaluation"]["policy_return_mean"] == {"r": -4.0, "p": 4.0, "learns": None}


def test_code_may_choose_who_plays_in_evaluation() -> None:
    row = against(f"{__name__}:a_random_hand", episodes=20).build().train()
    assert -4.0 < row["evaluation"]["agent_return_mean"]["player_0"] < 0.0


@pytest.mark.parametrize(
    ("agents", "says"),
    [
        ({"player_0": "r"}, "agents: agent 'player_1' has no policy; name one of r, p"),
        ({"player_*": "q"}, r"evaluation\.agents\.player_\*: there is no policy 'q'"),
        (f"{__name__}:no_such", "evaluation.agents"),
    ],
)
def test_policies_that_cannot_play_in_evaluation_are_refused(agents: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        against(agents).build()


def test_a_single_agent_has_no_others_in_evaluation() -> None:
    with pytest.raises(ConfigError, match="agents: there is only one agent"):
        config(agents={"a": "b"}).build()


class Boxed(gymnasium.Env[Any, Any]):
    """Its spaces are given."""

    def __init__(self, observations: int = 2, low: float = -1.0, actions: int = 2) -> None:
        self.observation_space = gymnasium.spaces.Box(low, 1.0, (observations,))
        self.action_space = gymnasium.spaces.Discrete(actions)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.low, {}

    def step(self, action: Any) -> Any:
        return self.observation_space.low, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"observations": 3}, r"evaluation\.env: its observations are .*\(3,\).*training.*\(2,\)"),
        ({"actions": 5}, r"its actions are Discrete\(5\), but in training Discrete\(2\)"),
        ({"low": -9.0}, None),
    ],
)
def test_an_evaluation_where_the_policy_cannot_act_is_refused_at_the_start(
    own: dict[str, Any], says: str | None
) -> None:
    made = config(env=own).environment(f"{__name__}:Boxed")
    if says is None:
        made.build().stop()
        return
    with pytest.raises(ConfigError, match=says):
        made.build()


def test_tuples_have_one_form_if_all_their_parts_do() -> None:
    counted, sized = gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(-1.0, 1.0, (3,))
    expected = {"p": (gymnasium.spaces.Tuple((counted, sized)), counted)}
    wide = gymnasium.spaces.Box(-9.0, 9.0, (3,))
    require_form({"p": (gymnasium.spaces.Tuple((counted, wide)), counted)}, expected, "env", "then")
    for parts in ((counted, counted), (counted,), (counted, sized, sized)):
        found = {"p": (gymnasium.spaces.Tuple(parts), counted)}
        with pytest.raises(ConfigError, match=r"env: its observations of policy p are .* but then"):
            require_form(found, expected, "env", "then")
