# ruff: noqa: E501 - error lines in full
"""Experiment files of RLlib: each key is translated, refused, or listed as without effect."""

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loading import errors

from rlrun.config import retired
from rlrun.config.dump import to_plain
from rlrun.config.loader import load
from rlrun.config.problems import ConfigError, Origin
from rlrun.config.registry import algorithm_class
from rlrun.config.rllib_file import translate
from rlrun.config.rllib_rules import tables
from rlrun.config.schema import sections
from rlrun.config.yaml_tree import from_plain

FILE = Path(__file__).with_name("rllib_examples.yaml")
EXAMPLES: dict[str, Any] = yaml.safe_load(FILE.read_text())

# Example -> what its keys mean here, by address.
MEANINGS: dict[str, dict[str, Any]] = {
    "pg-cartpole": {"training.train_batch_size": 200, "training.lr": 4e-4, "seed": 42},
    "a2c-cartpole": {"training.grad_clip": 1.0, "training.adam_epsilon": 2.5e-10},
    "a2c-cartpole-microbatch": {"training.train_batch_size": 120, "training.microbatch_size": 40},
    "a2c-atari": {
        "training.train_batch_size": 500,
        "training.lr": ((0, 7e-4), (20_000_000, 1e-12)),
    },
    "a3c-cartpole": {"training.grad_clip": 4.0, "env_runners.rollout_fragment_length": 10},
    "ppo-cartpole-grid": {
        "training.num_epochs": 1,
        "training.vf_loss_coeff": 2.0,
        "training.normalize_advantages": "batch",
        "training.grad_clip": None,
        "sweep.space": {
            "training.num_epochs": {"grid": [1, 4]},
            "training.minibatch_size": {"grid": [128, 256, 512]},
        },
    },
    "ppo-repeat-after-me-lstm": {
        "env": "RepeatAfterMe",
        "env.delay": 2,
        "model.use_lstm": True,
        "training.train_batch_size": 4000,
    },
    "ppo-cartpole": {
        "model.activation": "linear",
        "training.vf_loss_coeff": 0.02,
        "training.vf_error_clip": 10.0,
        "training.vf_clip_param": None,
    },
    "ppo-pendulum": {"training.train_batch_size": 520, "env": "Pendulum-v1"},
    "appo-frozenlake": {
        "env_runners.horizon": 20,
        "env_runners.horizon_terminates": True,
        "env.is_slippery": False,
    },
    "appo-pendulum": {
        "training.circular_buffer_num_batches": 16,
        "training.circular_buffer_iterations_per_batch": 10,
        "training.target_network_update_freq": 20,
        "training.num_epochs": 1,
        "training.kl_coeff": 0.0,
        "training.vf_loss_coeff": 0.5,
    },
    "impala-cartpole": {
        "training.grad_clip": 0.08,
        "learners.device": "cpu",
        "seed": 512,
        "sweep.seeds": (512, 42, 144),
        "sweep.space": {},
    },
    "impala-multi-agent-cartpole": {
        "env.num_agents": 4,
        "multi_agent.agents": {f"agent_{i}": f"p{i}" for i in range(4)},
    },
    "impala-pong": {"env": "ALE/Pong-v5", "env.frameskip": 1, "env_runners.num_env_runners": 128},
    "dqn-cartpole": {
        "env_runners.rollout_fragment_length": 3,
        "training.train_batch_size": 1002,
        "training.minibatch_size": 32,
        "training.training_intensity": 32 / 3,
        "exploration.epsilon": ((0, 1.0), (10_000, 0.02)),
        "replay.prioritized": True,
    },
    "dqn-atari": {"training.training_intensity": 8.0, "replay.prioritized": False},
    "dqn-cartpole-softq": {
        "exploration.type": "SoftQ",
        "exploration.temperature": 0.5,
        "model.activation": "linear",
        "training.hiddens": (256,),
    },
    "simpleq-cartpole": {
        "training.hiddens": (),
        "training.double_q": False,
        "training.dueling": False,
    },
    "r2d2-stateless-cartpole": {
        "training.value_rescaling": True,
        "training.training_intensity": 150.0,
        "replay.burn_in": 20,
        "replay.capacity": 4_000_000,
        "training.hiddens": None,
    },
    "apex-cartpole": {
        "exploration.epsilon": 0.4,
        "exploration.runner_exponent": 7.0,
        "training.training_intensity": 4.0,
        "training.train_batch_size": 1050,
        "replay.capacity": 20_000,
    },
    "apex-atari": {"training.train_batch_size": 25_600, "training.minibatch_size": 512},
    "sac-cartpole": {"training.target_network_update_freq": 32, "training.tau": 1.0},
    "pg-cartpole-crashing": {
        "env.crash_probability": 0.0025,
        "evaluation.env": {"crash_probability": 0.0},
        "evaluation.parallel_to_training": True,
    },
    "sac-pendulum": {
        "training.minibatch_size": 256,
        "training.train_batch_size": 1000,
        "training.training_intensity": 256.0,
        "training.target_entropy": None,
        "env_runners.no_done_at_end": True,
        "report.smoothing_episodes": 5,
    },
    "sac-halfcheetah": {"env": "HalfCheetah-v5", "evaluation.explore": True},
}


@cache
def loaded(name):
    return load(FILE, [f"name={name}"])


def value_at(experiment, address):
    if address == "env":
        return experiment.env.use
    found = experiment
    for part in address.replace("env.", "env.kwargs.", 1).split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    return found


@pytest.mark.parametrize("name", MEANINGS)
def test_an_example_means_what_it_meant(name):
    experiment = loaded(name).experiment
    found = {address: value_at(experiment, address) for address in MEANINGS[name]}
    assert found == MEANINGS[name]
    assert experiment.name == name


def test_settings_without_effect_are_listed_with_the_reason():
    listed = [problem.render() for problem in loaded("apex-cartpole").translation.without_effect]
    line = (
        next(
            i for i, text in enumerate(FILE.read_text().splitlines(), 1) if text == "apex-cartpole:"
        )
        + 5
    )
    assert listed == [
        f"{FILE}:{line}:6: apex-cartpole.config.framework: rlrun trains with PyTorch only",
        f"{FILE}:{line}:37: apex-cartpole.config.optimizer: rlrun has no replay actors",
    ]
    (warning,) = loaded("apex-cartpole").warnings
    assert warning.message.endswith("without effect: framework, optimizer")


def test_an_experiment_of_several_is_chosen_by_its_name(write):
    file = write(
        "one: {run: PG, env: CartPole-v1}\ntwo: {run: A2C, env: CartPole-v1}", minimal=False
    )
    assert errors(file) == [
        "exp.yaml:1:1: the file has 2 experiments, one, two; choose one, as in name=one"
    ]
    assert load(file, ["name=two"]).experiment.algorithm == "A2C"
    assert errors(file, ["name=tow"]) == [
        "<command line>: name: there is no experiment 'tow'; choose from one, two - did you mean two?"
    ]


def test_settings_of_the_command_line_lie_over_the_translation(write):
    file = write("old: {run: PPO, env: CartPole-v1, config: {lr: 1e-3}}", minimal=False)
    found = load(file, ["training.lr=2e-3", "name=new"]).experiment
    assert (found.training.lr, found.name) == (2e-3, "new")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("input: /tmp/data", "config.input: only 'sampler' is translated: rlrun learns from environments, not from recorded data"),
        ("vf_clip: 3", "config.vf_clip: unknown key - did you mean vf_error_clip?"),
        ("_model_config: {fcnet_use_layernorm: true}", "config._model_config.fcnet_use_layernorm: only False is translated: layers are not normalised"),
        ("model: {head_fcnet_hiddens: [8]}", "config.model.head_fcnet_activation: only 'tanh' is translated: all hidden layers have one; RLlib's default is 'relu'"),
        ("model: {head_fcnet_hiddens: [8], head_fcnet_activation: elu}", "config.model.head_fcnet_activation: only 'tanh' is translated: all hidden layers have one"),
        ("use_gae: false", "config.use_gae: only True is translated: advantages are always estimated by GAE; lambda: 1 gives plain returns"),
        ("minibatch_buffer_size: 3", "config.minibatch_buffer_size: PPO has no such key"),
        ("model: 3", "config.model: expected keys and values"),
        ("model: {custom_model: mine}", "config.model.custom_model: only None is translated: write the network as an RLModule, and name it in model.use"),
        ("exploration_config: {type: Curiosity}", "config.exploration_config.type: PPO explores by its policy's distribution"),
        ("env: {a: 1}", "env: expected the name of an environment; wrap an external one as a gymnasium environment"),
        ("env: ray.rllib.examples.env.parametric_actions_cartpole.ParametricActionsCartPole", "env: ParametricActionsCartPole does not come with rlrun; name a class of your own: \"package.module:ParametricActionsCartPole\""),
        ("multiagent: {policies: {a: [null, null, null, {lr: 1}]}}", "config.multiagent.policies.a: a policy with its own class, spaces or settings is not translated; write it in multi_agent.policies"),
        ("train_batch_size: {grid_search: 3}", "config.train_batch_size: expected a list of at least one value"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_at_its_line(write, config, message):
    file = write(f"old:\n  run: PPO\n  env: CartPole-v1\n  config:\n    {config}", minimal=False)
    (found,) = errors(file)
    assert found.startswith("exp.yaml:5:")
    assert found.partition(": old.")[2] == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("old: {env: CartPole-v1}", "exp.yaml:1:1: old.run: missing; name it, as in run: PPO"),
        ("old: {run: PPO}", "exp.yaml:1:1: old.env: missing; name it, as in env: CartPole-v1"),
        ("old: {run: POP, env: CartPole-v1}", "exp.yaml:1:7: old.run: there is no algorithm 'POP'; choose from PG, A2C, A3C, PPO, APPO, IMPALA, DQN, SimpleQ, APEX, APEX_DQN, R2D2, SAC - did you mean PPO?"),
        ("old: {run: [PPO], env: CartPole-v1}", "exp.yaml:1:7: old.run: there is no algorithm \"['PPO']\"; choose from PG, A2C, A3C, PPO, APPO, IMPALA, DQN, SimpleQ, APEX, APEX_DQN, R2D2, SAC - did you mean PPO?"),
        ("old: {run: SAC, env: Pendulum-v1, config: {Q_model: {fcnet_activation: tanh}}}", "exp.yaml:1:54: old.config.Q_model.fcnet_activation: policy and critics must have the same activation; set both, as RLlib's default is 'relu'"),
        ("old: {run: SAC, env: Pendulum-v1, config: {policy_model: {fcnet_hiddens: [8], hidden_layer_sizes: [9]}}}", "exp.yaml:1:79: old.config.policy_model.hidden_layer_sizes: policy_model.fcnet_hiddens has another value"),
        ("old: {run: DQN, env: CartPole-v1, config: {model: {head_fcnet_activation: tanh}}}", "exp.yaml:1:52: old.config.model.head_fcnet_activation: only 'relu' is translated: layers of training.hiddens have relu"),
        ("old: {run: TD3, env: CartPole-v1}", "exp.yaml:1:7: old.run: rlrun has no TD3; use SAC for continuous actions"),
        ("old: {run: PG, env: CartPole-v1, stop: 3}", "exp.yaml:1:34: old.stop: expected keys and values"),
        ("old: {run: PG, env: CartPole-v1, confg: {}}", "exp.yaml:1:34: old.confg: there is no key beside config 'confg'; choose from run, config, env, stop, num_samples, checkpoint_freq, checkpoint_at_end - did you mean config?"),
        ("old: {run: PG, env: CartPole-v1, config: {lr: x}}", "exp.yaml:1:43: training.lr: expected a number or schedule from 0 to 10, got the text 'x'"),
        ("old: {run: PG, env: CartPole-v1, num_samples: []}", "exp.yaml:1:34: sweep.seeds: expected at least one seed"),
        ("- {run: PG}", "exp.yaml:1:1: expected keys and values, such as `algorithm: PPO`"),
    ],
)  # fmt: skip
def test_a_file_of_another_shape_is_refused(write, text, message):
    assert errors(write(text, minimal=False)) == [message]


@pytest.mark.parametrize(
    ("spellings", "address", "value"),
    [
        (["num_workers: 3", "num_rollout_workers: 3", "num_env_runners: 3"], "env_runners.num_env_runners", 3),
        (["num_envs_per_worker: 5", "num_envs_per_env_runner: 5"], "env_runners.num_envs_per_env_runner", 5),
        (["lambda: 0.9", "lambda_: 0.9"], "training.lambda_", 0.9),
        (["num_sgd_iter: 7", "num_epochs: 7"], "training.num_epochs", 7),
        (["sgd_minibatch_size: 64", "minibatch_size: 64"], "training.minibatch_size", 64),
        (["model: {fcnet_hiddens: [8]}", "model: {hidden: [8]}"], "model.hidden", (8,)),
        (["model: {conv_filters: [[8, [4, 4], 2]]}"], "model.conv", ((8, 4, 2),)),
        (["entropy_coeff_schedule: [[0, 1], [9, 0]]", "entropy_coeff: [[0, 1], [9, 0]]"], "training.entropy_coeff", ((0, 1.0), (9, 0.0))),
        (["{use_kl_loss: false, kl_coeff: 0.3}"], "training.kl_coeff", 0.0),
        (["{use_kl_loss: true, kl_coeff: 0.3}"], "training.kl_coeff", 0.3),
        (["vf_share_layers: true", "model: {vf_share_layers: true}"], "model.share_layers", True),
        (["lr_schedule: null", "lr: 5e-5"], "training.lr", 5e-5),
        (["evaluation_num_episodes: 4", "evaluation_duration: 4"], "evaluation.episodes", 4),
        (["evaluation_interval: 2", "{evaluation_interval: 2, evaluation_config: {explore: true}}"], "evaluation.explore", True),
        (["{explore: false, evaluation_interval: 2}"], "evaluation.explore", False),
        (["{evaluation_interval: 2}"], "evaluation.explore", True),
        (["{evaluation_duration: 90, evaluation_duration_unit: timesteps}"], "evaluation.env_steps", 90),
        (["evaluation_config: {horizon: 9, batch_mode: complete_episodes}"], "evaluation.env_runners", {"horizon": 9}),
        (["{horizon: 9, soft_horizon: true}", "{horizon: 9, no_done_at_end: true}"], "env_runners.horizon", 9),
        (["train_batch_size: 4000", "{train_batch_size: 3900, rollout_fragment_length: 500, num_workers: 4}"], "training.train_batch_size", 4000),
    ],
)  # fmt: skip
def test_older_and_newer_names_mean_the_same(write, spellings, address, value):
    for spelling in spellings:
        config = spelling if spelling.startswith("{") else f"{{{spelling}}}"
        file = write(f"old: {{run: PPO, env: CartPole-v1, config: {config}}}", minimal=False)
        assert value_at(load(file).experiment, address) == value


@pytest.mark.parametrize(
    ("run", "config", "values"),
    [
        ("SAC", "exploration_config: {type: GaussianNoise, stddev: 0.2}", {"exploration.type": "GaussianNoise", "exploration.stddev": 0.2, "exploration.scale": ((0, 1.0), (10_000, 0.02)), "exploration.random_steps": 1000}),
        ("SAC", "exploration_config: {type: OrnsteinUhlenbeckNoise, ou_theta: 0.2, ou_sigma: 0.3, random_timesteps: 7}", {"exploration.theta": 0.2, "exploration.sigma": pytest.approx(0.06), "exploration.random_steps": 7}),
        ("SAC", "Q_model: {fcnet_hiddens: [8]}", {"model.hidden": (256, 256), "model.value_hidden": (8,)}),
        ("SAC", "policy_model: {fcnet_hiddens: [8]}", {"model.hidden": (8,), "model.value_hidden": (256, 256)}),
        ("SAC", "policy_model: {fcnet_hiddens: [8]}, Q_model: {fcnet_hiddens: [9]}", {"model.hidden": (8,), "model.value_hidden": (9,)}),
        ("SAC", "Q_model: {hidden_layer_sizes: [8], hidden_activation: swish}, policy_model: {fcnet_hiddens: [8], fcnet_activation: swish}", {"model.hidden": (8,), "model.value_hidden": None, "model.activation": "silu"}),
        ("DQN", "exploration_config: {type: ParameterNoise, initial_stddev: 0.5}", {"exploration.type": "ParameterNoise", "exploration.initial_stddev": 0.5, "exploration.epsilon": 0.01, "exploration.random_steps": 10_000}),
        ("DQN", "exploration_config: {type: ParameterNoise, random_timesteps: 5, sub_exploration: {type: EpsilonGreedy, final_epsilon: 0.1}}", {"exploration.epsilon": ((0, 1.0), (100_000, 0.1)), "exploration.random_steps": 5}),
        ("DQN", "exploration_config: {warmup_timesteps: 5, epsilon_timesteps: 10}", {"exploration.epsilon": ((0, 1.0), (5, 1.0), (15, 0.02))}),
        ("DQN", "tau: 0.3, final_prioritized_replay_beta: 1.0", {"training.tau": 0.3, "replay.beta": ((0, 0.4), (20_000, 1.0))}),
        ("DQN", "epsilon: [[0, 1.0], [500, 0.1]], _model_config: {head_fcnet_hiddens: [16]}", {"exploration.epsilon": ((0, 1.0), (500, 0.1)), "training.hiddens": (16,)}),
        ("PPO", "_model_config: {fcnet_hiddens: [8], fcnet_bias_initializer: null, head_fcnet_hiddens: [], vf_share_layers: true}", {"model.hidden": (8,), "model.share_layers": True}),
        ("PPO", "_model_config: {head_fcnet_hiddens: [16], head_fcnet_activation: tanh}", {"model.head_hidden": (16,), "model.activation": "tanh"}),
        ("APPO", "model: {fcnet_activation: swish, head_fcnet_hiddens: [16], head_fcnet_activation: swish}", {"model.head_hidden": (16,), "model.activation": "silu"}),
        ("PPO", "_model_config: {head_fcnet_activation: swish}", {"model.head_hidden": (), "model.activation": "tanh"}),
        ("PPO", "_train_batch_size_per_learner: 512, minibatch_size: 64, num_learners: 2", {"training.train_batch_size": 1024, "training.minibatch_size": 128}),
        ("PPO", "train_batch_size_per_learner: 512, minibatch_size: 64, num_learners: 1", {"training.train_batch_size": 512, "training.minibatch_size": 64}),
        ("DQN", "prioritized_replay: false, training_intensity: 4", {"replay.prioritized": False, "training.training_intensity": 4.0}),
        ("DQN", "noisy: true, exploration_config: {final_epsilon: 0.0}", {"exploration.epsilon": 0.0}),
        ("IMPALA", "opt_type: rmsprop, epsilon: 0.1, train_batch_size: 100", {"training.optimizer": "rmsprop", "training.rmsprop_epsilon": 1e-5, "training.grad_clip": 0.4}),
    ],
)  # fmt: skip
def test_what_belongs_to_an_algorithm_means_the_same(write, run, config, values):
    env = "Pendulum-v1" if run == "SAC" else "CartPole-v1"
    file = write(f"old: {{run: {run}, env: {env}, config: {{{config}}}}}", minimal=False)
    experiment = load(file).experiment
    assert {address: value_at(experiment, address) for address in values} == values


def test_an_epsilon_under_a_root_is_divided_by_the_square_of_the_rows(write):
    config = "opt_type: rmsprop, epsilon: 0.1, train_batch_size: 100"
    file = write(f"old: {{run: IMPALA, env: CartPole-v1, config: {{{config}}}}}", minimal=False)
    source = load(file).translation.sources["training.rmsprop_epsilon"]
    assert source == "epsilon: / 100 squared, as RLlib sums losses over rows and rlrun averages"


@pytest.mark.parametrize(
    "checkpoints",
    [
        "checkpoint_freq: 5, checkpoint_at_end: false, keep_checkpoints_num: 2, checkpoint_score_attr: min-episode_len_mean",
        "checkpoint_config: {checkpoint_frequency: 5, checkpoint_at_end: false, num_to_keep: 2,\n"
        "  checkpoint_score_order: min, checkpoint_score_attribute: episode_len_mean}",
    ],
)
def test_beside_config_stand_checkpoints_and_samples(write, checkpoints):
    file = write(
        f"old: {{run: PPO, env: CartPole-v1, num_samples: 3, {checkpoints}, local_dir: /x,\n"
        "  config: {lr: {grid_search: [1e-3, 1e-4]}}}",
        minimal=False,
    )
    found = load(file).experiment
    assert to_plain(found.checkpoint) == {
        "every": 5,
        "keep": 2,
        "at_end": False,
        "metric": "episode_len_mean",
        "mode": "min",
    }
    assert found.sweep.seeds == 3
    assert found.sweep.space == {"training.lr": {"grid": [1e-3, 1e-4]}}


def test_seeds_and_samples_exclude_each_other(write):
    file = write(
        "old: {run: PG, env: CartPole-v1, num_samples: 2, config: {seed: {grid_search: [1, 2]}}}",
        minimal=False,
    )
    (found,) = errors(file)
    assert found.endswith("config.seed: it contradicts num_samples; remove one of them")


def test_a_grid_that_changes_two_settings_is_refused(write):
    file = write(
        "old: {run: A2C, env: CartPole-v1, config: {train_batch_size: {grid_search: [40, 80]}}}",
        minimal=False,
    )
    (found,) = errors(file)
    assert "training.grad_clip and training.adam_epsilon together; write a file for each" in found


@pytest.mark.parametrize("run", tables()["algorithms"])
def test_defaults_of_rllib_are_valid_settings(write, run):
    env = "Pendulum-v1" if run == "SAC" else "CartPole-v1"
    found = load(write(f"old: {{run: {run}, env: {env}}}", minimal=False))
    assert found.experiment.algorithm == tables()["algorithms"][run]


def test_addresses_of_keys_exist():
    known = {
        f"{section}.{field}"
        for algorithm in set(tables()["algorithms"].values())
        for section, schema in sections(algorithm_class(algorithm).Training).items()
        for field in schema.model_fields
    }
    assert set(tables()["addresses"].values()) <= known


def test_names_without_effect_are_settings_of_no_section():
    for algorithm in set(tables()["algorithms"].values()):
        for schema in sections(algorithm_class(algorithm).Training).values():
            assert not retired.table("no_effect").keys() & schema.model_fields.keys()


def _places(value, path=()):
    yield path
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, below in inner:
        yield from _places(below, (*path, key))


def _with(value, path, new):
    if not path:
        return new
    changed = value.copy()
    changed[path[0]] = _with(value[path[0]], path[1:], new)
    return changed


_ODD = (
    None,
    True,
    -1,
    0,
    1e300,
    "x",
    [],
    {},
    [[]],
    ["a", 1],
    {"a": {"b": 1}},
    {"grid_search": []},
    {"grid_search": [1, "x"]},
)


@given(st.data())
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_any_value_at_any_place_is_translated_or_refused(data):
    name = data.draw(st.sampled_from(sorted(EXAMPLES)))
    path = data.draw(st.sampled_from(sorted(_places(EXAMPLES[name]), key=str)))
    changed = _with(EXAMPLES[name], path, data.draw(st.sampled_from(_ODD)))
    with suppress(ConfigError):
        found = translate(from_plain({name: changed}, Origin("a test")))
        assert found.tree.plain()["algorithm"]
