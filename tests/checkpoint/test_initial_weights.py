"""What is taken of another run's checkpoint, and what is refused."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun import DQNConfig, IMPALAConfig, Policy, PPOConfig, SACConfig
from rlrun.checkpoint.checkpoint import read_checkpoint
from rlrun.checkpoint.initial_weights import with_paths_from
from rlrun.config.problems import ConfigError

AGENTS = "MultiAgentCartPole"
FILTER = {"observation_filter": "MeanStdFilter"}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def ppo(env="CartPole-v1", *, model=None, **env_runners):
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=2, **env_runners)
        .model(**{"hidden": [8], **(model or {})})
        .training(train_batch_size=64, minibatch_size=32, num_epochs=1)
        .debugging(seed=1)
    )


def agents(policies, to="*", config=ppo):
    return config(AGENTS).multi_agent(policies=policies, agents={to: next(iter(policies))})


def small(config_class, env):
    training = {"train_batch_size": 64, "minibatch_size": 16, "training_intensity": 4}
    starts = {"num_steps_sampled_before_learning_starts": 20}
    config = config_class().environment(env).training(**training, **starts)
    return config.model(hidden=[8]).debugging(seed=1)


def sac(env="Pendulum-v1"):
    return small(SACConfig, env)


@pytest.fixture
def trained(built):
    """Train an algorithm for an iteration, and save it as ``source``."""

    def train(config):
        algorithm = built(config)
        algorithm.train()
        algorithm.save("source")
        return algorithm

    return train


def statistics(algorithm):
    return algorithm.policies.connectors.get_state()["default_policy"]["observations"]["stat"]


def test_the_first_fragment_acts_with_the_statistics_and_adds_to_them(trained, built):
    before = statistics(trained(ppo(**FILTER)))
    begun = built(ppo(**FILTER).initial_weights("source"))
    local = begun.env_runner_group.local_env_runner
    begun.sample_round([1])
    own = local.actors["default_policy"].connectors.get_state()["observations"]["stat"]
    assert own["count"] == statistics(begun)["count"] == before["count"] + 4
    np.testing.assert_allclose(own["mean"], before["mean"], atol=0.1)


def runners_and_learners(config):
    return config.env_runners(num_env_runners=2, num_cpus_per_env_runner=0.1)


def test_runners_in_other_processes_begin_alike(trained, built, local_ray):
    source = trained(ppo(**FILTER))
    apart = built(runners_and_learners(ppo(**FILTER)).initial_weights("source"))
    before = statistics(source)["count"]
    (first, second) = apart.sample_round([1, 1])
    alone = built(ppo(**FILTER).initial_weights("source"))
    assert apart.evaluate() == alone.evaluate() == source.evaluate()
    assert statistics(apart)["count"] == before + 8
    assert {first.weights_version, second.weights_version} == {0}


@pytest.mark.faults
def test_learners_in_other_processes_begin_alike(trained, built):
    source = trained(ppo())
    shared = ppo().resources(num_learners=2, num_cpus_per_learner=0.1)
    results = []
    for config in (ppo(), shared):
        algorithm = built(config.copy().initial_weights("source"))
        for name, array in source.get_weights().items():
            np.testing.assert_array_equal(algorithm.get_weights()[name], array)
        algorithm.train()
        results.append(algorithm.get_weights())
    for name, array in results[0].items():
        np.testing.assert_allclose(results[1][name], array, atol=1e-4)


def test_neither_counters_nor_optimizers_are_taken(trained, built):
    trained(ppo())
    begun = built(ppo().initial_weights(Path("source")))
    fresh = built(ppo())
    assert begun.learner.get_state()["optimizer"]["num_steps"] == 0
    first, expected = begun.train(), fresh.train()
    for counter in ("training_iteration", "env_steps", "episodes", "agent_steps_trained"):
        assert first[counter] == expected[counter]


def test_a_policy_may_begin_with_another_of_a_run(trained, built):
    main = {"main": {}, "old": {"train": False}}
    source = trained(agents(main))
    source.add_policy("main_1", like="main")
    source.train()
    source.save("league")
    given = {"old": {"path": "league", "policy": "main_1"}}
    begun = built(agents(main).initial_weights(given))
    weights, fresh = begun.get_weights(), built(agents(main)).get_weights()
    for name, array in source.get_weights().items():
        policy_id, _, rest = name.partition("/")
        if policy_id == "main_1":
            np.testing.assert_array_equal(weights[f"old/{rest}"], array)
        elif policy_id == "main":
            np.testing.assert_array_equal(weights[name], fresh[name])


def test_paths_mean_what_they_mean_where_the_experiment_was_given():
    given = {"main": "runs/a", "rival": {"path": "/runs/b", "policy": "main"}}
    experiment = agents({"main": {}, "rival": {}}).initial_weights(given).experiment()
    assert with_paths_from(experiment, os.getcwd()) == experiment
    found = with_paths_from(experiment, "/there").initial_weights
    assert found == {**given, "main": "/there/runs/a"}
    one = experiment.model_copy(update={"initial_weights": "runs/a"})
    assert with_paths_from(one, "/there").initial_weights == "/there/runs/a"
    begun = experiment.begun
    assert with_paths_from(begun, "/there") == begun


def test_policies_that_the_run_lacks_are_left_out(trained, built):
    source = trained(agents({"main": {}, "other": {}}))
    begun = built(agents({"main": {}}).initial_weights("source"))
    for name, array in begun.get_weights().items():
        np.testing.assert_array_equal(source.get_weights()[name], array)


def test_a_frozen_policy_of_sac_needs_no_critics(trained, built):
    source = trained(agents({"main": {}}, config=sac))
    frozen = agents({"main": {"train": False}}, config=sac).initial_weights("source")
    weights = built(frozen).get_weights()
    assert weights
    for name, array in weights.items():
        np.testing.assert_array_equal(source.get_weights()[name], array)


def test_critics_of_sac_and_targets_begin_with_the_sources(trained, built):
    source = trained(sac())
    begun = built(sac().initial_weights("source"))
    updater = begun.replay.updaters["default_policy"]
    critics = source.replay.updaters["default_policy"].critic.get_weights()
    np.testing.assert_array_equal(updater.critic.get_weights(), critics)
    np.testing.assert_array_equal(updater.target.get_state()["weights"], critics)
    assert updater.temperature.alpha == 1.0


class Remembers(Policy):
    """Learns nothing but how often it was taught."""

    taught = 0

    def compute_actions(self, obs_batch, state_batches=None, *, explore=True, noise=None):
        return np.full(len(obs_batch), self.taught % 2), [], {}

    def learn_on_batch(self, batch):
        self.taught += 1
        return {}

    def get_weights(self):
        return {"taught": self.taught}

    def set_weights(self, weights):
        self.taught = weights["taught"]


def scratch():
    config = PPOConfig().environment("CartPole-v1").policy(Remembers)
    return config.training(train_batch_size=64).debugging(seed=1)


def test_a_policy_written_from_scratch_begins_with_its_weights(trained, built):
    trained(scratch())
    begun = built(scratch().initial_weights("source"))
    assert begun.policies.custom["default_policy"].taught == 1
    assert begun.policies.acting_weights["default_policy"] == {"taught": 1}


def test_no_code_of_the_source_is_imported(trained, built):
    Path("theirs.py").write_text(
        "import gymnasium\n\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
    )
    source = trained(ppo("theirs:make"))
    Path("theirs.py").write_text("raise SystemError('imported')\n")
    del __import__("sys").modules["theirs"]
    assert "theirs:make" in read_checkpoint(Path("source")).config_yaml
    begun = built(ppo().initial_weights("source"))
    np.testing.assert_array_equal(begun.learner.get_weights(), source.learner.get_weights())


MISFITS = {
    "another width": (
        ppo(model={"hidden": [9]}),
        "pi.0.weight has shape (8, 4), not (9, 4); model.hidden is [8] there and [9] here",
    ),
    "another activation": (
        ppo(model={"activation": "relu"}),
        "does not fit this experiment: model.activation is tanh there and relu here",
    ),
    "another module": (
        ppo(model={"use": "rlrun.policies.rl_module:ActorCritic"}),
        "model.use is null there and",
    ),
    "another filter": (
        ppo(**FILTER),
        "env_runners.observation_filter is NoFilter there and MeanStdFilter here",
    ),
    "another env": (ppo("Acrobot-v1"), "pi.0.weight has shape (8, 4), not (8, 6)"),
    "another algorithm": (
        small(DQNConfig, "CartPole-v1"),
        "it has no parameter default_policy/advantage.0.weight; it is of PPO",
    ),
    "a policy from scratch": (
        scratch(),
        "policy.use is null there and 'test_initial_weights:Remembers' here",
    ),
    "another policy": (
        agents({"mian": {}}),
        "there is no policy 'mian'; choose from default_policy; "
        "{mian: {path: source, policy: default_policy}} takes another",
    ),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_what_does_not_fit_is_refused_with_both_sides(trained, built, kind):
    trained(ppo())
    config, said = MISFITS[kind]
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        built(config.copy().initial_weights("source"))
    assert str(refused.value).startswith("initial_weights: source: ")


def test_a_longer_sequence_or_another_start_is_no_misfit(trained, built):
    source = trained(ppo())
    other = {"log_std_init": -1.0, "max_seq_len": 5}
    begun = built(ppo(model=other).initial_weights("source"))
    np.testing.assert_array_equal(begun.learner.get_weights(), source.learner.get_weights())


class Scaled(torch.nn.Module):
    """A layer, and a factor that is no parameter."""

    output_size = 8

    def __init__(self, observation_space, scale=1.0):
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(4, 8), scale

    def forward(self, obs):
        return self.scale * self.layer(obs)


def test_an_argument_of_a_network_that_differs_is_a_misfit(trained, built):
    scaled = {"use": Scaled, "scale": 2.0}
    trained(PPOConfig().environment("CartPole-v1").model(**scaled))
    other = PPOConfig().environment("CartPole-v1").model(use=Scaled)
    with pytest.raises(ConfigError, match=r"model.scale is 2.0 there and null here"):
        built(other.initial_weights("source"))


def test_another_algorithm_with_the_same_networks_takes_the_weights(trained, built):
    source = trained(ppo())
    other = IMPALAConfig().environment("CartPole-v1").model(hidden=[8]).initial_weights("source")
    np.testing.assert_array_equal(built(other).learner.get_weights(), source.learner.get_weights())


def test_statistics_that_runners_keep_to_themselves_are_refused(trained, built):
    trained(ppo(**FILTER))
    own = ppo(**FILTER, update_worker_filter_stats=False)
    with pytest.raises(ConfigError, match="initial_weights has filter statistics"):
        built(own.initial_weights("source"))


def test_a_policy_that_the_run_lacks_is_named():
    with pytest.raises(ConfigError, match=r"initial_weights.mian: .* did you mean main\?"):
        agents({"main": {}}).initial_weights({"mian": "source"}).build()


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "named", "said"),
    [
        (lambda: None, "sourec", "there is no sourec - did you mean source?"),
        (
            lambda: Path("empty").mkdir(),
            "empty",
            "empty: neither a checkpoint nor a run folder with one",
        ),
        (lambda: cut(Path("source/weights.safetensors")), "source", "the checkpoint is damaged"),
        (lambda: cut(Path("source/manifest.json")), "source", "is damaged or foreign"),
        (lambda: Path("source/state.json").unlink(), "source", "incomplete: no state.json"),
    ],
)
def test_a_checkpoint_that_is_none_is_told_before_anything_is_built(
    trained, monkeypatch, damage, named, said
):
    trained(ppo())
    damage()
    monkeypatch.setattr("rlrun.algorithms.algorithm.start_env_runners", None)
    with pytest.raises(ConfigError, match=re.escape(said)):
        ppo().initial_weights(named).build()
