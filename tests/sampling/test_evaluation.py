"""Evaluation plays exactly N fresh episodes."""

from collections import defaultdict

import numpy as np
import pytest
from agent_runners import MLP
from counting_envs import Counter, FailsOnce

from rlrun import Callbacks
from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.config.section import UseSpec
from rlrun.data.sample_batch import DEFAULT_POLICY_ID
from rlrun.data.seeding import Role, episode_seed
from rlrun.envs.errors import EnvError
from rlrun.envs.multi_agent_env import make_multi_agent
from rlrun.experiment.recording import TransitionRecorder
from rlrun.sampling import evaluation
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.episodes import CountedPlan
from rlrun.sampling.evaluation import run_episodes
from rlrun.sampling.policy_actor import PolicyActor
from rlrun.sampling.runner_messages import MultiAgentSpec, RunnerCallbacks, RunnerSpec


def make_runner(num_envs, env="CartPole-v1"):
    spec = RunnerSpec(
        EnvSpec(use=env),
        EnvRunnersConfig(num_envs_per_env_runner=num_envs, observation_filter="MeanStdFilter"),
    )
    runner = EnvRunner(spec, role=Role.EVALUATION)
    rng = np.random.default_rng(0)
    runner.load(0.3 * rng.normal(size=len(runner.policy.get_weights())).astype(np.float32), 1, None)
    return runner


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("num_episodes", [1, 5, 12])
def test_exactly_n_episodes_that_do_not_depend_on_the_sub_environments(num_episodes, explore):
    played = [
        run_episodes(make_runner(num_envs), range(num_episodes), seed=3, explore=explore)
        for num_envs in (1, 4, 7)
    ]
    for records in played:
        assert [record.episode_id for record in records] == list(range(num_episodes))
    outcomes = [[(r.seed, r.episode_return, r.length) for r in records] for records in played]
    assert outcomes[0] == outcomes[1] == outcomes[2]
    seeds = [episode_seed(3, Role.EVALUATION, 0, 0, k) for k in range(num_episodes)]
    assert [record.seed for record in played[0]] == seeds


def test_a_seed_gives_the_same_episodes_again_and_another_seed_others():
    runner = make_runner(3)
    first, again = (run_episodes(runner, range(6), seed=1) for _ in range(2))
    assert first == again
    other = run_episodes(runner, range(6), seed=2)
    assert [r.seed for r in other] != [r.seed for r in first]


def test_short_episodes_are_not_preferred():
    runner = make_runner(4)
    records = run_episodes(runner, range(10), seed=0, explore=True)
    assert [record.env_index for record in records] == [k % 4 for k in range(10)]


def test_steps_that_environments_spend_on_their_own_reset_do_not_count():
    spec = RunnerSpec(
        EnvSpec(use="counting_envs:PaysAtReset"), EnvRunnersConfig(num_envs_per_env_runner=2)
    )
    records = run_episodes(EnvRunner(spec, role=Role.EVALUATION), range(9), seed=3)
    assert {record.length for record in records} == {2, 3, 4}
    for record in records:  # a reward is the number of the step, and 10 for each unit of the action
        steps = record.length * (record.length + 1) / 2
        assert steps <= record.episode_return <= steps + 20 * record.length
        assert (record.episode_return - steps) % 10 == 0


def test_an_episode_explores_with_noise_of_its_own_where_environments_reset_themselves():
    def taken(num_envs):
        """The actions of each episode, which follow from the noise alone."""
        spec = RunnerSpec(
            EnvSpec(use="counting_envs:PaysAtReset"),
            EnvRunnersConfig(num_envs_per_env_runner=num_envs),
        )
        runner, actions = EnvRunner(spec, role=Role.EVALUATION), defaultdict(list)
        runner.load(np.zeros_like(runner.policy.get_weights()), 1, None)

        def record(step):
            for number, action in zip(step.episodes, step.actions, strict=True):
                actions[number].append(int(action))

        run_episodes(runner, range(12), seed=3, explore=True, recorder=record)
        return [actions[number] for number in range(12)]

    for alone, together in zip(taken(1), taken(3), strict=True):
        common = min(len(alone), len(together))
        assert alone[:common] == together[:common]


def test_steps_that_no_view_looks_at_are_dropped_now_and_then(monkeypatch):
    steps, dropped_after, discard = [], [], PolicyActor.discard

    def noted(actor):
        dropped_after.append(len(steps))
        discard(actor)

    monkeypatch.setattr(PolicyActor, "discard", noted)
    run_episodes(make_runner(2), range(40), seed=1, recorder=steps.append)
    assert dropped_after == [*range(64, len(steps) + 1, 64)]
    assert len(dropped_after) > 2


@pytest.mark.parametrize(("length", "said"), [(100, 1), (300, 0)])
def test_an_episode_that_does_not_end_is_warned_of_once(length, said, monkeypatch, caplog):
    monkeypatch.setattr(evaluation, "_LONG", length)
    (record,) = run_episodes(make_runner(1, "MountainCar-v0"), range(1), seed=1)
    assert record.length == 200
    assert caplog.messages == said * [
        "MountainCar-v0: an episode has not ended after 128 steps; env_runners.horizon ends it"
    ]


def test_the_recorder_sees_every_step_of_every_episode_and_may_stop():
    steps = []

    def record(step):
        steps.append((list(step.episodes), step.rewards.copy()))

    records = run_episodes(make_runner(2), range(3), seed=0, recorder=record)
    returns = dict.fromkeys(range(3), 0.0)
    for episodes, rewards in steps:
        for env_index, k in enumerate(episodes):
            if k is not None:
                returns[k] += rewards[env_index]
    assert returns == {record.episode_id: record.episode_return for record in records}
    assert run_episodes(make_runner(2), range(3), seed=0, recorder=lambda step: True) == []


GYMNASIUM, AUTONOMOUS = "counting_envs:gymnasium_sync", "counting_envs:autonomous"


@pytest.mark.parametrize(
    "env",
    [
        {"use": "counting_envs:Counter"},
        *({"use": GYMNASIUM, "mode": mode} for mode in ("SAME_STEP", "DISABLED", "NEXT_STEP")),
        *({"use": AUTONOMOUS, "mode": mode} for mode in ("SAME_STEP", "NEXT_STEP")),
    ],
    ids=lambda env: "-".join(map(str, env.values())),
)
def test_the_recorder_sees_what_each_step_saw_and_led_to(env):
    seen = defaultdict(list)

    def record(step):
        for row, k in enumerate(step.episodes):
            if k is not None:
                seen[k].append((step.obs[row].copy(), step.next_obs[row].copy()))

    settings = EnvRunnersConfig(num_envs_per_env_runner=3)
    runner = EnvRunner(RunnerSpec(EnvSpec.model_validate(env), settings), role=Role.EVALUATION)
    records = run_episodes(runner, range(10), seed=0, recorder=record)
    for each in records:
        steps = np.array(seen[each.episode_id])  # [T, 2, (seed, step)]
        assert steps[:, 0, 1].tolist() == [*range(each.length)]
        assert steps[:, 1, 1].tolist() == [*range(1, each.length + 1)]
        assert len(np.unique(steps[..., 0])) == 1


def test_a_plan_numbers_the_episodes_that_nobody_asked_for_behind_those_asked_for():
    plan = CountedPlan([4, 5, 6], seed=0, num_envs=2)
    assert [plan.first(0), plan.first(1)] == [4, 5]
    assert plan.num_episodes == 7
    assert [plan.next(4), plan.next(5), plan.next(6), plan.next(8)] == [6, 7, 8, 10]
    assert plan.instead(0, 5) == 5


def test_an_episode_that_has_failed_twice_has_another_seed_each_time():
    """The first failure may have been the machine's, and its episode is tried again."""
    plan = CountedPlan([4, 5], seed=0, num_envs=1)
    seeds = [plan.seed(plan.first(0), plan.instead(0, 4)) for _ in range(4)]
    assert len(set(seeds)) == 4
    assert seeds[0] == CountedPlan([4], seed=0, num_envs=1).seed(0, 4)
    assert plan.seed(0, 5) == CountedPlan([5], seed=0, num_envs=1).seed(0, 5)


class CountsSteps(Callbacks):
    def on_episode_step(self, env_runner, episode):
        episode.custom_metrics["steps"] = float(episode.length)


COUNTS_STEPS = RunnerCallbacks(
    UseSpec(use=f"{__name__}:CountsSteps"), frozenset({"on_episode_step"})
)
several_that_fail = make_multi_agent(FailsOnce)


@pytest.mark.parametrize("several", [False, True])
def test_recorders_forget_the_steps_of_an_episode_that_is_repeated(several):
    use = f"{__name__}:several_that_fail" if several else "counting_envs:FailsOnce"
    spec = RunnerSpec(
        EnvSpec.model_validate({"use": use, "num_agents": 1} if several else use),
        EnvRunnersConfig(num_envs_per_env_runner=2, disable_env_checking=True),
        restart_failed_sub_environments=True,
        callbacks=(COUNTS_STEPS,),
        multi_agent=MultiAgentSpec({DEFAULT_POLICY_ID: MLP}) if several else None,
    )
    runner, transitions = EnvRunner(spec, role=Role.EVALUATION), TransitionRecorder()
    FailsOnce.left = 9
    records = run_episodes(runner, range(8), seed=3, recorder=transitions)
    assert FailsOnce.left < -1
    expected = [record.length for record in records]
    assert [record.custom_metrics["steps"] for record in records] == expected
    columns = transitions.columns()
    assert np.bincount(columns["agent_0/episode" if several else "episode"]).tolist() == expected


several_that_always_fail = make_multi_agent(Counter)


@pytest.mark.parametrize("several", [False, True])
def test_an_environment_that_always_fails_ends_each_evaluation_with_its_traceback(several):
    use = f"{__name__}:several_that_always_fail" if several else "counting_envs:Counter"
    spec = RunnerSpec(
        EnvSpec(use=use, kwargs={"fail_at": 1, **({"num_agents": 1} if several else {})}),
        EnvRunnersConfig(num_envs_per_env_runner=1, disable_env_checking=True),
        restart_failed_sub_environments="auto",
        max_sub_environment_failures_per_1000_steps=500,
        multi_agent=MultiAgentSpec({DEFAULT_POLICY_ID: MLP}) if several else None,
    )
    runner = EnvRunner(spec, role=Role.EVALUATION, runner_index=2)
    for _ in range(2):
        with pytest.raises(EnvError, match="runner 2, sub-env 0, step 1; it failed") as caught:
            run_episodes(runner, range(4), seed=3)
        assert "ValueError: the counter stopped" in caught.value.user_traceback
        assert caught.value.note == "it failed 101 times in one evaluation"
