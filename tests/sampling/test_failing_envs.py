"""Environments that raise, or return what they must not, and what a runner makes of it."""

import pickle

import numpy as np
import pytest
from counting_envs import CountingEnv, collect, counting_spec

from rlrun.config.schema import ConnectorsConfig, EnvSpec
from rlrun.data import columns as col
from rlrun.data.seeding import Role
from rlrun.envs.errors import EnvError, TooManyFailures
from rlrun.envs.rebuilder import Rebuilder
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest


class Faulty(CountingEnv):
    """Raises in its fourth step, or pays an infinite reward there."""

    def __init__(self, raises, **kwargs):
        super().__init__(**kwargs)
        self.raises = raises

    def step(self, action):
        obs, reward, *further = super().step(action)
        if self.t == 4 and self.raises:
            raise RuntimeError("the user's own words")
        return obs, np.inf if self.t == 4 else reward, *further


@pytest.mark.parametrize("raises", [True, False])
def test_what_goes_wrong_in_a_step_is_named_with_its_place(raises):
    runner = EnvRunner(
        counting_spec(use=f"{__name__}:Faulty", raises=raises, length=9), runner_index=2
    )
    with pytest.raises(EnvError, match="own words" if raises else "reward is inf") as caught:
        runner.sample_fragment(SampleRequest(0, 9))
    error = caught.value
    assert (error.runner_index, error.env_index, error.env_step) == (2, 0, 3)
    if raises:
        assert str(error).startswith("Traceback")
        assert "rlrun/sampling" not in str(error)


def test_an_env_that_cannot_be_built_is_named_with_its_runner():
    with pytest.raises(EnvError, match="no_such_argument") as caught:
        EnvRunner(counting_spec(no_such_argument=1), runner_index=2)
    assert (caught.value.phase, caught.value.runner_index) == ("constructor", 2)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert str(copied) == str(caught.value)


class Generous(CountingEnv):
    """Each of its rewards is finite, and two are not."""

    def step(self, action):
        obs, _, *further = super().step(action)
        return obs, 1e308, *further


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_rewards_that_add_up_to_infinity_are_an_error_with_its_place():
    runner = EnvRunner(counting_spec(use=f"{__name__}:Generous", length=9), runner_index=2)
    with pytest.raises(EnvError, match=r"reward is 1e\+308") as caught:
        runner.sample_fragment(SampleRequest(0, 9))
    assert (caught.value.runner_index, caught.value.env_step) == (2, 1)


class Crashing(CountingEnv):
    """Raises now and then, as its seed has it; once broken, at every reset."""

    built = 0
    broken = False

    def __init__(self, **kwargs):
        Crashing.built += 1
        super().__init__(**kwargs)

    def reset(self, *, seed=None, options=None):
        if self.broken:
            raise RuntimeError("cannot reset")
        return super().reset(seed=seed)

    def step(self, action):
        if self.np_random.random() < 0.08:
            raise RuntimeError("crash")
        return super().step(action)


def crashing(restart=True):
    more = {"restart_failed_sub_environments": restart}
    return EnvRunner(counting_spec(3, use=f"{__name__}:Crashing", length=5, more=more))


def test_a_crashing_env_is_built_again_and_its_episode_dropped():
    runner = crashing()
    built = Crashing.built
    replies = collect(runner, [20, 20, 20])
    faulty = replies[-1].faulty_episodes
    assert faulty > 3
    assert Crashing.built == built + faulty
    for reply in replies:
        assert len(reply.batch) == 60
        assert all(episode.length == 5 for episode in reply.episodes)
        batch = reply.batch
        np.testing.assert_array_equal(batch[col.OBS][:, 1], batch[col.T])
        np.testing.assert_array_equal(batch[col.NEXT_OBS][:, 1], batch[col.T] + 1)
        np.testing.assert_array_equal(batch[col.NEXT_OBS][:, 0], batch[col.OBS][:, 0])
    successor = crashing()
    successor.set_state(runner.get_state())
    further = successor.sample_fragment(SampleRequest(3, 20)).faulty_episodes
    assert further == runner.sample_fragment(SampleRequest(3, 20)).faulty_episodes > faulty


class Answers(CountingEnv):
    """Its fourth step, or its second reset, returns ``wrong``."""

    def __init__(self, method, wrong):
        super().__init__(length=6)
        self.method, self.wrong, self.resets = method, wrong, 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        answer = super().reset(seed=seed)
        return self.wrong if self.method == "reset" and self.resets == 2 else answer

    def step(self, action):
        answer = super().step(action)
        if self.method != "step" or self.t != 4:
            return answer
        return self.wrong if isinstance(self.wrong, tuple) else (answer[0], self.wrong, *answer[2:])


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("method", "wrong", "says", "step"),
    [
        ("step", None, "must be real number, not NoneType: step() must return (observation, r", 3),
        (
            "step",
            10**400,
            "int too large to convert to float: step() must return (observation, r",
            3,
        ),
        ("step", (0, 1.0, False, {}), "(expected 5, got 4): step() must return (observation, ", 3),
        ("reset", None, "reset() must return (observation, info)", -1),
    ],
)
def test_a_wrong_answer_late_in_a_run_is_no_failing_simulator(mode, method, wrong, says, step):
    settings = {"disable_env_checking": True, "gym_env_vectorize_mode": mode}
    spec = counting_spec(
        2,
        use=f"{__name__}:Answers",
        settings=settings,
        more={"restart_failed_sub_environments": True},
        method=method,
        wrong=wrong,
    )
    runner = EnvRunner(spec)
    try:
        with pytest.raises(EnvError) as caught:
            collect(runner, [40])
    finally:
        runner.stop()
    assert says in str(caught.value)
    assert caught.value.env_step == step
    assert "Traceback" not in str(caught.value)


class FailsOnce(CountingEnv):
    """Pays 10 a step; raises in the third step of the second episode of all."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        FailsOnce.episodes += 1
        return super().reset(seed=seed)

    def step(self, action):
        if FailsOnce.episodes == 2 and self.t == 2:
            raise RuntimeError("crash")
        obs, _, *further = super().step(action)
        return obs, 10.0, *further


def test_the_return_of_an_episode_that_crashed_is_none_of_the_next_ones(monkeypatch):
    """Statistics of rewards are those of the returns 10, ..., 40, 10, 20, and 10, ..., 40."""
    monkeypatch.setattr(FailsOnce, "episodes", 0)
    more = {
        "restart_failed_sub_environments": True,
        "connectors": ConnectorsConfig(normalize_rewards=True),
        "gamma": 1.0,
    }
    settings = {"disable_env_checking": True}
    use = f"{__name__}:FailsOnce"
    runner = EnvRunner(counting_spec(1, use=use, length=4, settings=settings, more=more))
    (reply,) = collect(runner, [8])
    assert reply.batch[col.T].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    deltas = reply.connector_deltas["default_policy"]["rewards"]
    returns = [10, 20, 30, 40, 10, 20, 10, 20, 30, 40]
    assert deltas["count"] == len(returns)
    assert deltas["mean"] == pytest.approx(np.mean(returns))


@pytest.mark.parametrize("connectors", [(), "custom_connectors:Identity"])
def test_each_observation_is_counted_once_also_where_an_environment_crashes(
    connectors, monkeypatch
):
    """The filter's statistics are those of steps 0, ..., 4, of 0, 1, 2, of 0, ..., 4 and of 0."""
    monkeypatch.setattr(FailsOnce, "episodes", 0)
    settings = {"disable_env_checking": True, "observation_filter": "MeanStdFilter"}
    settings["env_to_module_connector"] = connectors
    more = {"restart_failed_sub_environments": True}
    use = f"{__name__}:FailsOnce"
    runner = EnvRunner(counting_spec(1, use=use, length=4, settings=settings, more=more))
    (reply,) = collect(runner, [8])
    deltas = reply.connector_deltas["default_policy"]["observations"]
    deltas = deltas.get("default", deltas)
    assert deltas["count"] == 14
    assert deltas["mean"][1] == pytest.approx((10 + 3 + 10) / 14)


def test_without_restarts_a_crash_ends_the_fragment():
    with pytest.raises(EnvError, match="crash"):
        collect(crashing(restart=False), [60])


def test_an_env_that_raises_at_every_reset_ends_the_run_with_its_traceback(monkeypatch):
    runner = crashing()
    collect(runner, [1])
    monkeypatch.setattr(Crashing, "broken", True)
    with pytest.raises(EnvError, match="cannot reset"):
        collect(runner, [20])


class WearsOut(CountingEnv):
    """Raises in all steps but the first ``good`` ones of all such environments."""

    steps = 0

    def __init__(self, good, **kwargs):
        self.good = good
        super().__init__(**kwargs)

    def step(self, action):
        WearsOut.steps += 1
        if WearsOut.steps > self.good:
            raise RuntimeError("worn out")
        return super().step(action)


@pytest.fixture
def wearing_out(monkeypatch):
    """Makes a runner whose environment wears out, and whose episodes have five steps."""

    def make(good, restart="auto"):
        monkeypatch.setattr(WearsOut, "steps", 0)
        env = f"{__name__}:WearsOut"
        more = {"restart_failed_sub_environments": restart}
        settings = {"disable_env_checking": True}  # which would make a step, too
        return EnvRunner(
            counting_spec(1, use=env, length=5, good=good, settings=settings, more=more)
        )

    return make


@pytest.mark.parametrize(
    ("good", "restart", "tries", "why"),
    [
        (5, "auto", 53, "it fails more often than fault_tolerance.max_sub_environment_failures"),
        (4, "auto", 1, "it has not run a whole episode yet; fault_tolerance.restart_failed_sub_"),
        (4, True, 53, "it fails more often than fault_tolerance.max_sub_environment_failures"),
        (9, False, 1, "runner 0, sub-env 0, step 4"),
    ],
)
def test_an_env_that_goes_on_raising_ends_the_run_with_its_traceback(
    wearing_out, good, restart, tries, why
):
    with pytest.raises(EnvError, match="worn out") as caught:
        collect(wearing_out(good, restart), [200])
    assert "in step" in caught.value.user_traceback
    assert WearsOut.steps == good + tries
    assert why in str(caught.value).splitlines()[-1]


@pytest.mark.parametrize("restart", ["auto", False])
def test_an_env_that_was_proven_before_a_resume_may_raise_while_actions_are_repeated(
    wearing_out, restart
):
    runner = wearing_out(8, restart)
    collect(runner, [8])  # an episode, and a part of the next
    successor = wearing_out(2, restart)
    if restart:
        successor.set_state(runner.get_state())
    else:
        with pytest.raises(EnvError, match="worn out"):
            successor.set_state(runner.get_state())


def test_failures_are_told_with_the_first_traceback_and_then_counted(caplog):
    replies = collect(crashing(), [40, 40, 40])
    assert replies[-1].faulty_episodes > 10
    first, tenth = [record.getMessage() for record in caplog.records]
    assert "is rebuilt in runner 0, sub-env" in first
    assert "in step" in first
    assert "has been rebuilt 10 times, now in runner 0, sub-env" in tenth
    assert tenth.endswith("RuntimeError: crash")


def test_failures_are_survived_at_the_tolerated_rate_also_by_a_successor():
    def fail(rebuilder):
        return rebuilder.build(lambda env_index: "new", None, 0, RuntimeError())

    one = Rebuilder("E", "auto", per_1000_steps=10)
    with pytest.raises(TooManyFailures):
        fail(one)
    one.proven = True
    for _ in range(50):  # at the rate, for ever
        one.env_steps += 100
        assert fail(one) == "new"
    assert [fail(one) for _ in range(9)] == ["new"] * 9
    other = Rebuilder("E", "auto", per_1000_steps=10)
    other.set_state(one.get_state())
    for each in (one, other):
        with pytest.raises(TooManyFailures):
            fail(each)
        each.env_steps += 300  # for three more, of which one has been used
        assert [fail(each) for _ in range(2)] == ["new"] * 2
        with pytest.raises(TooManyFailures):
            fail(each)


@pytest.mark.parametrize(
    ("role", "runner"), [(Role.TRAIN, "runner"), (Role.EVALUATION, "evaluation runner")]
)
def test_an_error_tells_training_from_evaluation(role, runner):
    spec = RunnerSpec(EnvSpec(use="CartPole-v1", kwargs={"wheels": 4}))
    with pytest.raises(EnvError, match=f"env 'CartPole-v1', {runner} 3, sub-env 0") as caught:
        EnvRunner(spec, runner_index=3, role=role)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
