"""The settings of `training` arrive where they count, each as what it is."""

import pytest

from rlrun import (
    A2CConfig,
    A3CConfig,
    APPOConfig,
    DQNConfig,
    EnvRunner,
    IMPALAConfig,
    PGConfig,
    PPOConfig,
    SACConfig,
)
from rlrun.actors import ray_runtime
from rlrun.algorithms import a2c, a3c, appo, asynchronous, dqn, impala, ppo, progress
from rlrun.algorithms.result import PhaseTimers
from rlrun.algorithms.runners import with_ray
from rlrun.config.schedules import value_at
from rlrun.learning import optimizers, returns, vtrace
from rlrun.learning.vtrace import VTraceSettings

BATCH = 128
REPLAYED = {"num_steps_sampled_before_learning_starts": 1, "minibatch_size": 16}


@pytest.fixture
def learning(built):
    """Builds a tiny experiment with these settings of `training`."""

    def build(config, env="CartPole-v1", **training):
        config = config.environment(env).model(hidden=[8]).debugging(seed=3)
        return built(config.training(train_batch_size=BATCH, gamma=0.7, **training))

    return build


@pytest.fixture
def seen_by(monkeypatch):
    """Makes a list that grows by the keyword arguments of each call of a function."""

    def spy(module, name):
        calls, real = [], getattr(module, name)

        def recorded(*arguments, **settings):
            calls.append(settings)
            return real(*arguments, **settings)

        monkeypatch.setattr(module, name, recorded)
        return calls

    return spy


@pytest.mark.parametrize(
    ("config", "lambda_"), [(PPOConfig, 0.3), (A2CConfig, 0.3), (A3CConfig, 0.3), (PGConfig, None)]
)
def test_advantages_have_their_gamma_and_lambda(learning, seen_by, config, lambda_):
    calls = seen_by(returns, "gae_of_rows")
    learning(config(), **({} if lambda_ is None else {"lambda_": lambda_})).train()
    expected = {"gamma": 0.7, "lambda_": 1.0 if lambda_ is None else lambda_}
    assert calls
    assert all(settings == expected for settings in calls)


@pytest.mark.parametrize("config", [PPOConfig, A2CConfig, A3CConfig])
def test_the_optimizer_has_its_epsilon(learning, seen_by, config):
    calls = seen_by(optimizers, "FlatAdam")
    learning(config())
    learning(config(), adam_epsilon=1e-3)
    assert {settings["eps"] for settings in calls} == {1e-5, 1e-3}


@pytest.mark.parametrize("config", [IMPALAConfig, APPOConfig])
def test_vtrace_has_its_clips(learning, seen_by, config):
    calls = seen_by(vtrace, "vtrace_of_rows")
    clips = {"vtrace_clip_rho_threshold": 1.5, "vtrace_clip_pg_rho_threshold": 2.5}
    learning(config(), lambda_=0.3, **clips).train()
    assert calls
    assert all(each["settings"] == VTraceSettings(0.7, 0.3, 1.5, 2.5) for each in calls)


@pytest.mark.parametrize(
    ("config", "module", "loss", "more"),
    [
        (PPOConfig, ppo, "ppo_gradient", {"clip_param": 0.15}),
        (A2CConfig, a2c, "a2c_gradient", {}),
        (A3CConfig, a3c, "a2c_gradient", {}),
        (IMPALAConfig, impala, "a2c_gradient", {}),
        (APPOConfig, appo, "appo_gradient", {"clip_param": 0.15}),
    ],
)
def test_losses_have_their_coefficients_at_this_point_of_the_run(
    learning, seen_by, config, module, loss, more
):
    calls = seen_by(module, loss)
    schedule = [[0, 0.08], [4 * BATCH, 0.0]]
    algorithm = learning(config(), vf_loss_coeff=0.25, entropy_coeff=schedule, **more)
    algorithm.train()
    calls.clear()
    algorithm.train()
    assert calls
    for settings in calls:
        assert settings["vf_loss_coeff"] == 0.25
        # Env runners, of which A3C asks for gradients, are told at each request.
        assert 0.04 <= settings["entropy_coeff"] <= 0.06 + 1e-9
        assert settings.get("clip_param") == more.get("clip_param")


@pytest.mark.parametrize(
    ("config", "env", "within", "settings"),
    [
        *((config, "CartPole-v1", False, {}) for config in (PGConfig, A2CConfig, PPOConfig)),
        *((config, "CartPole-v1", False, {}) for config in (IMPALAConfig, APPOConfig)),
        (A3CConfig, "CartPole-v1", True, {}),
        (DQNConfig, "CartPole-v1", True, REPLAYED),
        (
            SACConfig,
            "Pendulum-v1",
            True,
            {**REPLAYED, "training_intensity": 16},
        ),
    ],
)
def test_learning_rates_follow_their_schedule(learning, monkeypatch, config, env, within, settings):
    """Within an iteration if there are many updates in turn with sampling; else as it begins."""
    schedule = ((0, 1e-3), (4 * BATCH, 0.0))
    algorithm = learning(config(), env, lr=schedule, **settings)
    seen, step = [], optimizers.FlatAdam.step

    def spy(self, lr):
        if self is algorithm.learner.optimizer:
            seen.append((algorithm.env_steps, lr))
        return step(self, lr)

    monkeypatch.setattr(optimizers.FlatAdam, "step", spy)
    for iteration in range(3):
        seen.clear()
        algorithm.train()
        steps = [now if within else iteration * BATCH for now, _ in seen]
        assert len(set(steps)) > 1 if within else len(set(steps)) == 1
        assert [lr for _, lr in seen] == [value_at(schedule, at) for at in steps]


@pytest.mark.parametrize(
    ("config", "env"), [(DQNConfig, "CartPole-v1"), (SACConfig, "Pendulum-v1")]
)
@pytest.mark.parametrize("prioritized", [False, True])
def test_buffers_have_their_gamma_and_steps(learning, config, env, prioritized):
    config, unlearned = config().replay(prioritized=prioritized), 10_000
    algorithm = learning(config, env, n_step=3, num_steps_sampled_before_learning_starts=unlearned)
    algorithm.train()
    buffer = algorithm.replay.buffers["default_policy"]
    assert (buffer.gamma, buffer.n_step) == (0.7, 3)


def test_sequences_have_their_gamma_steps_burn_in_and_alpha(learning, seen_by):
    calls = seen_by(dqn, "load_sequences")
    config = DQNConfig().model(use_lstm=True, lstm_cell_size=8, max_seq_len=5)
    config = config.replay(burn_in=2, prioritized=True, alpha=0.3)
    algorithm = learning(config, n_step=3, **REPLAYED)
    algorithm.train()
    assert calls
    assert all(each == {"burn_in": 2, "n_step": 3, "gamma": 0.7} for each in calls)
    buffer = algorithm.replay.buffers["default_policy"]
    assert (buffer.length, buffer.alpha) == (7, 0.3)


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize(("num_atoms", "loss"), [(1, "dqn_gradient"), (2, "c51_gradient")])
def test_double_q_is_a_switch(learning, seen_by, double_q, num_atoms, loss):
    calls = seen_by(dqn, loss)
    learning(DQNConfig(), double_q=double_q, num_atoms=num_atoms, **REPLAYED).train()
    assert calls
    assert all(each["double_q"] is double_q for each in calls)


@pytest.mark.parametrize(("learner_queue_size", "expected"), [(None, 4), (3, 3)])
def test_the_fragments_of_a_batch_may_wait_or_as_many_as_are_said(
    learning, seen_by, learner_queue_size, expected
):
    samplers = seen_by(asynchronous, "AsynchronousSampler")
    config = IMPALAConfig().env_runners(num_envs_per_env_runner=2, rollout_fragment_length=16)
    learning(config, learner_queue_size=learner_queue_size)
    assert [settings["queue_size"] for settings in samplers] == [expected]


@pytest.mark.parametrize(
    ("minimum", "steps"),
    [
        ({"min_sample_timesteps_per_iteration": BATCH + 1}, 2),
        ({"min_train_timesteps_per_iteration": 2 * BATCH + 1}, 3),
        ({"min_time_s_per_iteration": 4.0}, 4),
    ],
)
def test_an_iteration_goes_on_until_it_has_done_enough(learning, monkeypatch, minimum, steps):
    clock = iter(range(1, 100))  # a second for each training step
    monkeypatch.setattr(PhaseTimers, "elapsed", lambda self: float(next(clock)))
    algorithm = learning(PPOConfig().reporting(**minimum))
    assert algorithm.train()["env_steps_this_iter"] == steps * BATCH
    if "min_time_s_per_iteration" not in minimum:  # the clock that stands in never begins again
        assert algorithm.train()["env_steps_this_iter"] == steps * BATCH


def never(policy_id, batch):
    return False


@pytest.mark.parametrize(
    ("minimum", "learns", "steps"),
    [
        ({"min_time_s_per_iteration": 3600}, True, 2),
        ({"min_train_timesteps_per_iteration": 1}, False, 2),
        ({"min_train_timesteps_per_iteration": 4 * BATCH}, True, 3),
        ({"min_sample_timesteps_per_iteration": 3 * BATCH}, False, 3),
    ],
)
def test_an_interrupted_iteration_waits_for_nothing_that_may_never_come(
    built, minimum, learns, steps
):
    config = PPOConfig().environment("MultiAgentCartPole").reporting(**minimum).debugging(seed=3)
    config.multi_agent(policies=["p"], agents={"*": "p"})
    config.multi_agent(policies_to_train=["p"] if learns else f"{__name__}:never")
    algorithm = built(config.training(train_batch_size=BATCH, num_epochs=1, minibatch_size=BATCH))
    made, training_step = [], algorithm.training_step

    def noting():
        made.append(training_step())
        if len(made) == 2:
            algorithm.progress.interrupt()
        return made[-1]

    algorithm.training_step = noting
    algorithm.train()
    assert len(made) == steps


class OwnRunner(EnvRunner):
    """A class of the user's own."""


def test_env_runners_have_their_class_and_their_average(learning, monkeypatch):
    coefficients, real = [], progress.RunnerStatistics

    def recorded(coefficient):
        coefficients.append(coefficient)
        return real(coefficient)

    monkeypatch.setattr(progress, "RunnerStatistics", recorded)
    own = {"env_runner_cls": OwnRunner, "sampler_perf_stats_ema_coef": 0.3}
    algorithm = learning(PPOConfig().env_runners(**own))
    assert algorithm.train()["env_runners"]["vector_step_env_ms"] > 0
    assert type(algorithm.env_runner_group.local_env_runner) is OwnRunner
    assert type(algorithm.evaluator.runner()) is OwnRunner
    assert coefficients == [0.3]


@pytest.mark.parametrize("cpus", [0.5, 1.0])
def test_a_fraction_of_a_cpu_for_each_runner_is_told(monkeypatch, caplog, cpus):
    monkeypatch.setattr(ray_runtime, "start_ray", lambda *_: cpus)
    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=2)
    started = with_ray(config.experiment(), None)
    assert started.env_runners.num_cpus_per_env_runner == cpus
    assert len(caplog.records) == (cpus < 1.0)
