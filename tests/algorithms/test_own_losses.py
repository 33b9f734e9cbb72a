"""Losses of a user's own: a hook around the algorithm's, connectors before it, a policy's own."""

from itertools import count

import gymnasium as gym
import numpy as np
import pytest
import torch
from tiny import ALGORITHMS, SEVERAL_AGENTS, learner_stats

from rlrun import (
    Callbacks,
    EnvRunner,
    LearningPolicy,
    MultiAgentBatch,
    PPOConfig,
    RunnerSpec,
    SampleBatch,
    ViewRequirement,
)
from rlrun.config.loader import load_experiment
from rlrun.config.problems import ConfigError
from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.data import columns as col
from rlrun.policies.rl_module import ActorCritic
from rlrun.policies.torch_policy import TorchPolicy


def nothing(module, rows, loss, statistics):
    return 0.0 * loss, {"mine": 7.0, "rows": len(rows[col.OBS])}


def unchanged(module, rows, loss, statistics):
    return loss, {"seen": torch.ones(())}


def wrong(module, rows, loss, statistics):
    return 3.0


def detached(module, rows, loss, statistics):
    return loss.detach(), {}


calls = count()


def irregular(module, rows, loss, statistics):
    """Other statistics from call to call, and in another order."""
    k = next(calls)
    mine = {"one": 1.0, "two": 2.0, "min_k": k, "max_k": k}
    return loss, dict(reversed(mine.items())) if k % 2 else {"zero": 0.0, **mine}


def trained(built, name, hook, **env_runners):
    env = "Pendulum-v1" if "SAC" in name else "CartPole-v1"
    config = ALGORITHMS[name]().environment(env).debugging(seed=0)
    config = config.env_runners(num_envs_per_env_runner=4, **env_runners)
    return built(config.training(loss=hook and f"{__name__}:{hook}"))


SHIPPED = ["PPO", "PPO, LSTM", "A2C", "PG", "A3C", "IMPALA", "APPO", "DQN", "SAC"]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_hook_changes_the_loss_of_every_algorithm_and_reports(built, name) -> None:
    algorithm = trained(built, name, "nothing")
    before = algorithm.get_weights()
    results = [algorithm.train() for _ in range(2)]
    after = algorithm.get_weights()
    assert all(np.array_equal(before[key], after[key]) for key in before)
    statistics = results[-1]["learners"]["default_policy"]["learner_stats"]
    assert statistics["mine"] == 7.0


@pytest.mark.parametrize(("name", "rel"), [("A2C", 1e-5), ("PG", 0.0)])
def test_a_hook_that_changes_nothing_changes_nothing(built, name, rel) -> None:
    """But for the last bits, where the gradient is computed in closed form without one."""
    with_hook, plain = (trained(built, name, hook) for hook in ("unchanged", None))
    stats = learner_stats(with_hook)
    assert stats.pop("seen") == 1.0
    assert stats == pytest.approx(learner_stats(plain), rel=rel, abs=rel)


@pytest.mark.parametrize("name", ["PPO", "A3C", "IMPALA", "APPO", "DQN"])
def test_a_hook_may_report_other_statistics_from_call_to_call(built, name) -> None:
    algorithm = trained(built, name, "irregular", rollout_fragment_length=4)
    first = next(calls) + 1
    found = learner_stats(algorithm)
    assert [found[key] for key in ("zero", "one", "two")] == [0.0, 1.0, 2.0]
    assert (found["min_k"], found["max_k"]) == (first, next(calls) - 1)


@pytest.mark.parametrize("hook", ["wrong", "detached"])
def test_what_a_hook_must_return_is_said(built, hook) -> None:
    algorithm = trained(built, "PPO", hook)
    with pytest.raises(TypeError, match=r"training.loss must return a scalar tensor with gradient"):
        algorithm.train()


def two_numbers(module, rows, loss, statistics):
    return loss, {"mine": torch.ones(2)}


@pytest.mark.parametrize("name", ["PPO", "PPO, LSTM", "A2C", "A3C", "IMPALA", "DQN", "SAC"])
def test_a_statistic_that_is_a_vector_is_named(built, name) -> None:
    algorithm = trained(built, name, "two_numbers")
    with pytest.raises(ValueError, match=r"statistic 'mine' must be one number, not tensor\(\[1"):
        algorithm.train()


class Foresees(ActorCritic):
    """An actor-critic whose losses find the observation and the reward that a step led to."""

    def __init__(self, observation_space, action_space, model, looks_back=False):
        super().__init__(observation_space, action_space, model)
        self.view_requirements["next_obs"] = ViewRequirement("obs", shift=1)
        self.view_requirements["rewards"] = ViewRequirement()
        if looks_back:  # batches of such modules are others
            view = ViewRequirement("actions", shift=-1, used_for_compute_actions=True)
            self.view_requirements["prev_actions"] = view


def forward_model(module, rows, loss, statistics):
    """How much further the cart is than its velocity said, which is nothing."""
    obs, then = rows[col.OBS], rows["next_obs"]
    error = (then[:, 0] - obs[:, 0] - 0.02 * obs[:, 1]).abs()
    return loss, {"max_error": error.max(), "reward": rows[col.REWARDS].mean()}


@pytest.mark.parametrize("looks_back", [False, True])
@pytest.mark.parametrize("name", ["PPO", "A2C", "PG", "A3C", "IMPALA", "APPO"])
def test_a_hook_finds_what_a_step_led_to_where_the_module_asks_for_it(
    built, name, looks_back
) -> None:
    config = ALGORITHMS[name]().environment("CartPole-v1").debugging(seed=0)
    config.model(use=f"{__name__}:Foresees", looks_back=looks_back)
    algorithm = built(config.training(loss=f"{__name__}:forward_model"))
    for _ in range(2):
        stats = learner_stats(algorithm)
        assert stats["max_error"] == pytest.approx(0.0, abs=1e-5)
        assert stats["reward"] == 1.0


class Shift:
    """A learner connector that raises rewards."""

    def __init__(self, by=10.0) -> None:
        self.by = by

    def __call__(self, batch):
        batch[col.REWARDS] = batch[col.REWARDS] + self.by
        return batch


def test_learner_connectors_change_what_is_learned_from_and_not_the_metrics(built) -> None:
    def loss_and_return(*connectors):
        config = ALGORITHMS["PPO"]().environment("CartPole-v1").debugging(seed=0)
        algorithm = built(config.training(learner_connectors=connectors))
        result = algorithm.train()
        row = result["learners"]["default_policy"]["learner_stats"]
        return row["vf_loss"], result["episode_return_mean"]

    plain, shifted = loss_and_return(), loss_and_return({"use": f"{__name__}:Shift", "by": 20})
    assert shifted[0] > 10 * plain[0]
    assert shifted[1] == plain[1]


class Empties:
    """A learner connector that leaves nothing of every second batch."""

    kept = False

    def __call__(self, batch):
        self.kept = not self.kept
        return batch if self.kept else batch.slice(0, 0)


@pytest.mark.parametrize("name", ["PPO", "PPO, LSTM", "A2C", "PG", "IMPALA", "APPO"])
def test_nothing_is_learned_where_learner_connectors_leave_no_rows(built, name) -> None:
    config = ALGORITHMS[name]().environment("CartPole-v1").debugging(seed=0)
    algorithm = built(config.training(learner_connectors=[f"{__name__}:Empties"]))
    assert algorithm.train()["learners"]["default_policy"]["num_agent_steps_trained"] > 0
    weights = algorithm.get_weights()
    assert algorithm.train()["learners"]["default_policy"]["num_agent_steps_trained"] == 0
    for key, value in algorithm.get_weights().items():
        np.testing.assert_array_equal(value, weights[key])


class OneReward:
    """A learner connector that sums up what it should have kept apart."""

    def __call__(self, batch):
        batch[col.REWARDS] = batch[col.REWARDS].sum(keepdims=True)
        return batch


class LearnsFromTheSum(Callbacks):
    def on_learn_on_batch(self, algorithm, policy_id, batch):
        OneReward()(batch)


@pytest.mark.parametrize("name", ["PPO", "PPO, LSTM", "DQN", "SAC"])
@pytest.mark.parametrize(
    ("place", "code"), [("learner_connectors", "OneReward"), ("callbacks", "on_learn_on_batch")]
)
def test_a_column_of_too_few_rows_is_never_broadcast(built, name, place, code) -> None:
    config = ALGORITHMS[name]().environment("Pendulum-v1" if name == "SAC" else "CartPole-v1")
    config = config.env_runners(num_envs_per_env_runner=2)
    if place == "callbacks":
        algorithm = built(config.callbacks(f"{__name__}:LearnsFromTheSum"))
    else:
        algorithm = built(config.training(learner_connectors=[f"{__name__}:OneReward"]))
    with pytest.raises(ValueError, match=f"{code}: column 'rewards' has \\[1\\] rows where others"):
        algorithm.train()


class Growing:
    """A learner connector with a state: it adds more to the rewards of each batch."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, batch):
        self.calls += 1
        batch[col.REWARDS] = batch[col.REWARDS] + 10.0 * self.calls
        return batch

    def get_state(self):
        return {"calls": self.calls}

    def set_state(self, state):
        self.calls = state["calls"]


def test_the_state_of_learner_connectors_is_part_of_a_checkpoint(built) -> None:
    config = ALGORITHMS["PPO"]().environment("CartPole-v1").debugging(seed=0)
    config = config.training(learner_connectors=[f"{__name__}:Growing", f"{__name__}:Shift"])
    straight, resumed = built(config), built(config)
    straight.train()
    resumed.set_weights(straight.get_weights())
    resumed.set_state(straight.get_state())
    assert learner_stats(resumed) == learner_stats(straight)


def test_a_policy_that_comes_back_has_new_learner_connectors(built) -> None:
    code = {"learner_connectors": [f"{__name__}:Growing"]}
    algorithm = built("PPO", SEVERAL_AGENTS, multi_agent={"policies": ["main"]}, training=code)
    for _ in range(2):
        algorithm.add_policy("other", like="main", train=True)
        state = algorithm.get_state()
        assert state["policies"]["learner_connectors"]["other"] == [{"calls": 0}]
        state["policies"]["learner_connectors"]["other"] = [{"calls": 7}]
        algorithm.set_state(state)
        algorithm.remove_policy("other")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("loss: 'fake:no'", "training.loss"),
        (f"loss: '{__name__}:Shift'", "called with"),
        (f"learner_connectors: [{{use: '{__name__}:Shift', bye: 1}}]", "did you mean by?"),
    ],
)
def test_wrong_code_is_found_before_a_run(tmp_path, line, message) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"algorithm: PPO\nenv: CartPole-v1\ntraining: {{{line}}}\n")
    with pytest.raises(ConfigError) as caught:
        load_experiment(path)
    assert message in str(caught.value)


class Reinforce(LearningPolicy):
    """The policy gradient with the rewards of single steps."""

    def loss(self, module, rows):
        inputs = module.forward_train(rows)[col.ACTION_DIST_INPUTS]
        logp = module.distribution.logp(inputs, rows[col.ACTIONS])
        loss = -(logp * rows[col.REWARDS]).mean()
        return loss, {"policy_loss": loss.detach()}

    def extra_grad_process(self, module):
        return {"asked": torch.ones(())}


SPACES = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)


def test_a_policys_own_loss_is_what_training_uses(built) -> None:
    policy = {"use": f"{__name__}:Reinforce", "kwargs": {"lr": 0.01, "hidden": [8]}}
    config = PPOConfig().environment("MultiAgentCartPole").training(train_batch_size=64)
    config = config.multi_agent(policies={"p": policy}, agents={"*": "p"}).debugging(seed=3)
    algorithm, twin = built(config), built(config)
    weights = algorithm.policies.present_weights()["p"]
    np.testing.assert_array_equal(weights, twin.policies.present_weights()["p"])
    of_another_seed = built(config.copy().debugging(seed=4)).policies.present_weights()["p"]
    assert (of_another_seed != weights).any()
    row = algorithm.train()["learners"]["p"]
    assert row["num_agent_steps_trained"] > 0
    assert {"policy_loss", "asked", "grad_norm", "lr"} <= row["learner_stats"].keys()
    assert (algorithm.policies.present_weights()["p"] != weights).any()
    twin.train()
    twin.set_state(algorithm.get_state())
    assert algorithm.train()["learners"]["p"] == twin.train()["learners"]["p"]


def test_a_policy_of_its_own_loss_learns_with_dropout_and_acts_without() -> None:
    policy = Reinforce(*SPACES, {"use": "tiny:DropsOut"})
    rows = SampleBatch(
        {
            col.OBS: np.ones((1, 4), np.float32),
            col.NEXT_OBS: np.ones((1, 4), np.float32),
            col.ACTIONS: np.zeros(1, np.int64),
            col.REWARDS: np.ones(1, np.float32),
        }
    )
    gradients = [policy.compute_gradients(rows)[0] for _ in range(2)]
    assert (gradients[0] != gradients[1]).any()
    assert not policy.module.training


def test_applied_gradients_are_what_learning_does() -> None:
    torch.manual_seed(0)
    settings = EnvRunnersConfig(num_envs_per_env_runner=2, rollout_fragment_length=20)
    spec = RunnerSpec(EnvSpec(use="CartPole-v1"), settings, policy_factory=Reinforce_)
    one, other = EnvRunner(spec), EnvRunner(spec)
    other.set_weights(one.get_weights())
    batch = one.sample()
    statistics = one.learn_on_batch(batch)["default_policy"]
    gradients, _ = other.compute_gradients(MultiAgentBatch({"default_policy": batch}, len(batch)))
    other.apply_gradients(gradients)
    np.testing.assert_array_equal(one.policy.get_weights(), other.policy.get_weights())
    assert statistics["grad_norm"] > 0


def Reinforce_(observation_space, action_space, model):
    return Reinforce(observation_space, action_space, {"hidden": [8]})


def test_a_policys_own_learning_rate_follows_the_rows_that_it_has_learned_from() -> None:
    spec = RunnerSpec(
        EnvSpec(use="CartPole-v1"),
        EnvRunnersConfig(rollout_fragment_length=20),
        policy_factory=lambda o, a, _: Reinforce(o, a, {"lr": [[0, 0.01], [100, 0.0]]}),
    )
    runner = EnvRunner(spec)
    found = [runner.learn_on_batch(runner.sample())["default_policy"]["lr"] for _ in range(3)]
    assert found == pytest.approx([0.008, 0.006, 0.004])


def test_a_policy_without_a_loss_does_not_learn_silently() -> None:
    from rlrun.config.schema import ModelConfig

    policy = TorchPolicy(*SPACES, ModelConfig())
    for call in (policy.learn_on_batch, policy.compute_gradients, policy.apply_gradients):
        with pytest.raises(TypeError, match=r"loss|defines no"):
            call(None)
