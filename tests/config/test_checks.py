# ruff: noqa: E501 - one line for each case
"""Relations between fields: what is refused, what is warned about."""

import pytest
from loading import errors, warnings

from rlrun.config.checks import RESULT_KEYS
from rlrun.config.loader import load
from rlrun.config.registry import ALGORITHMS
from rlrun.config.retired import STOP_KEYS

MODULE = "rlrun.policies.rl_module:ActorCritic"
POLICY = "rlrun.envs.multi_agent_examples:AlwaysSame"


@pytest.fixture
def known(write, monkeypatch):
    """Write a file whose algorithm has a registered name; its text begins in line 3."""
    monkeypatch.setitem(ALGORITHMS, "Known", "fake_algorithm:Fake")
    return lambda text: write(f"algorithm: Known\nenv: CartPole-v1\n{text}", minimal=False)


@pytest.mark.parametrize(
    "text",
    [
        *(f"stop: {{{key}: 1e9}}" for key in RESULT_KEYS),
        "stop: {timers/sample_s: 1, learners/default_policy/x: 1}",
        "stop: {my_key: 3}\ncallbacks: ['fake_algorithm:Callback']",
        "stop: {evaluation/x: 3}\nevaluation: {interval: 1}\ncheckpoint: {metric: evaluation/x}",
    ],
)
def test_result_keys_that_there_are_or_may_be(known, text):
    load(known(text))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("stop: {episode_return: 3}", "3:8: stop.episode_return: no result has the key episode_return - did you mean episode_return_m"),
        ("rollouts: {num_rollout_workers: 2}", "3:1: rollouts: retired; use the section `env_runners`"),
        ("model: {custom_model_config: {a: 1}}", "3:9: model.custom_model_config: retired; write arguments of the class beside model.use"),
        ("stop: {zzz: 3}", "3:8: stop.zzz: no result has the key zzz; choose from training_iteration, env_steps"),
        ("env_runners: {horizon_terminates: true}", "3:15: env_runners.horizon_terminates: there is no horizon; set env_runners.horizon, or remove this key"),
        ("env_runners: {horizon: 9, horizon_terminates: true, no_done_at_end: true}", "3:27: env_runners.horizon_terminates: it contradicts env_runners.no_done_at_end; remove one of them"),
        ("model: {activation: swish}", '3:9: model.activation: expected "tanh", "relu", "elu", "silu", "gelu" or "linear", got the text \'swish\'; use silu, which is the same'),
        ("stop: {timesteps_total: 3}", "3:8: stop.timesteps_total: no result has the key timesteps_total; use env_steps"),
        ("stop: {eval/mean_reward: 3}", "3:8: stop.eval/mean_reward: no result has the key eval/mean_reward; use evaluation/episode_return_mean"),
        ("stop: {success_rate: 1}", "3:8: stop.success_rate: no result has the key success_rate - did you mean env_runners/success_rate?"),
        ("stop: {evaluation/x: 3}", "3:8: stop.evaluation/x: evaluation/x never appears: evaluation.interval is null; evaluation.interval: 10 works"),
        ("checkpoint: {metric: evaluation/x}", "3:14: checkpoint.metric: evaluation/x never appears: evaluation.interval is null"),
        ("training: {train_batch_size: 2047}", "3:12: training.train_batch_size: not a multiple of 8"),
        ("model: {use_lstm: true, use_gru: true}", "3:25: model.use_gru: there can be only one memory after the encoder; set use_lstm to false"),
        ("model: {use_gru: true, share_layers: false}", "3:24: model.share_layers: policy and value function share their encoder"),
        (f"model: {{use: '{MODULE}', use_lstm: true}}", f"3:54: model.use_lstm: {MODULE} is an RLModule, to which no memory can be added; remove this key"),
        ("fault_tolerance: {restart_failed_sub_environments: true}\nenv_runners: {gym_env_vectorize_mode: vector_entry_point}", "3:19: fault_tolerance.restart_failed_sub_environments: with env_runners.gym_env_vectorize_mode: vector_entry_point sub-environments are one object"),
        ("evaluation: {parallel_to_training: true}", "3:14: evaluation.parallel_to_training: one process cannot train and evaluate at once; set evaluation.num_env_runners to 1"),
        ("evaluation: {env_runners: {num_env_runners: 2}}", "3:28: evaluation.env_runners.num_env_runners: set evaluation.num_env_runners instead"),
        ("evaluation: {env_runners: {observation_filter: NoFilter}}", "3:28: evaluation.env_runners.observation_filter: evaluation always uses the setting of training"),
        ("evaluation: {env_runners: {horizn: 2}}", "3:28: evaluation.env_runners.horizn: unknown key"),
        ("evaluation: {env_runners: {horizon: 0}}", "3:28: evaluation.env_runners.horizon: expected"),
        ("evaluation: {env: {lenth: 2}}", "3:20: evaluation.env.lenth: "),
        ("evaluation: {env: {use: CartPole-v7}}", "3:20: evaluation.env.use: "),
        ("env_runners: {remote_env_batch_wait_ms: 0}", "3:15: env_runners.remote_env_batch_wait_ms: it applies to Ray actors only; set env_runners.remote_worker_envs to true"),
        ("env_runners: {remote_worker_envs: true, gym_env_vectorize_mode: envpool}", "3:41: env_runners.gym_env_vectorize_mode: env_runners.remote_worker_envs makes environments Ray actors"),
        ("env_runners: {num_gpus_per_env_runner: 0.5}", "3:15: env_runners.num_gpus_per_env_runner: there is no remote env runner; set num_env_runners"),
        ("evaluation: {env_runners: {num_gpus_per_env_runner: 1}}", "3:28: evaluation.env_runners.num_gpus_per_env_runner: no remote env runner evaluates; set evaluation.num_env_runners"),
        ("evaluation: {env_runners: {batch_mode: complete_episodes}}", "3:28: evaluation.env_runners.batch_mode: evaluation runs whole episodes and collects no batches; remove this key"),
        ("evaluation: {env_runners: {sample_async: true}}", "3:28: evaluation.env_runners.sample_async: set evaluation.parallel_to_training instead"),
        ("evaluation: {env_runners: {soft_horizon: true}}", "3:28: evaluation.env_runners.soft_horizon: in evaluation a horizon always ends the episode; remove this key"),
        ("evaluation: {env_runners: {observation_check_interval: 1}}", "3:28: evaluation.env_runners.observation_check_interval: evaluation does not compare observations with their bounds; remove this key"),
        ("evaluation: {env_runners: {max_requests_in_flight_per_env_runner: 2}}", "3:28: evaluation.env_runners.max_requests_in_flight_per_env_runner: in evaluation it is always 1; remove this key"),
        ("evaluation: {env_runners: {remote_env_batch_wait_ms: 0}}", "3:28: evaluation.env_runners.remote_env_batch_wait_ms: evaluation waits for all"),
        ("env_runners: {soft_horizon: true}", "3:15: env_runners.soft_horizon: there is no horizon; set env_runners.horizon"),
        ("env_runners: {observation_filter: MeanStdFilter, add_default_connectors_to_env_to_module_pipeline: false}", "3:15: env_runners.observation_filter: the filter is a default connector, and these are switched off; env_runners.add_default_connectors_to_env_to_module_pipeline: true"),
        ("connectors: {clip_actions: true}\nenv_runners: {add_default_connectors_to_module_to_env_pipeline: false}", "3:14: connectors.clip_actions: clipping is a default connector, and these are switched off; env_runners.add_default_connectors_to_module_to_env_pipeline: true"),
        ("learners: {num_learners: 2}", "3:12: learners.num_learners: Known learns in one process; set it to 0"),
        ("learners: {cuda_graphs: true, device: cpu}", "3:12: learners.cuda_graphs: learners.device is a CPU, which has no graphs; remove this key"),
        ("learners: {cuda_graphs: true, compile: true}", "3:12: learners.cuda_graphs: learners.compile makes updates that cannot be recorded; remove this key"),
        ("learners: {cuda_graphs: true}\nmodel: {use_gru: true}", "3:12: learners.cuda_graphs: model.use_gru makes updates that cannot be recorded; remove this key"),
        ("learners: {num_gpus_per_learner: 1}", "3:12: learners.num_gpus_per_learner: there is no remote learner"),
        ("replay: {capacity: 9}", "3:1: replay: Known does not use this section; remove it"),
        (f"policy: {POLICY}", "3:1: policy: Known takes no custom policy; PG, for example, does"),
        ("multi_agent: {agents: {a: b}}", "3:1: multi_agent.policies: no policies; `policies: [a, b]` would name two"),
    ],
)  # fmt: skip
def test_settings_that_contradict_something(known, text, line):
    (found,) = errors(known(text))
    assert found.startswith(f"exp.yaml:{line}")


@pytest.mark.parametrize(
    ("learners", "key", "message"),
    [
        ("device: cuda", "device", "a remote learner uses a GPU that Ray reserves for it"),
        ("device: 'cuda:1', num_gpus_per_learner: 1", "device", "a remote learner uses a GPU"),
        ("cuda_graphs: true", "cuda_graphs", "no learner has a GPU; set num_gpus_per_learner"),
    ],
)
def test_remote_learners_have_the_gpus_that_are_reserved_for_them(write, learners, key, message):
    text = f"algorithm: PPO\nenv: CartPole-v1\nlearners: {{num_learners: 2, {learners}}}\n"
    (found,) = errors(write(text, minimal=False))
    assert f" learners.{key}: {message}" in found


def test_what_only_networks_obey_is_refused_beside_a_policy_from_scratch(write):
    wrong = "model: {hidden: [8]}\ntraining: {lr: 0.1, train_batch_size: 64}"
    text = f"algorithm: PPO\nenv: CartPole-v1\npolicy: {POLICY}\n{wrong}"
    assert errors(write(text, minimal=False)) == [  # and nothing of minibatches, which it has not
        f"exp.yaml:4:1: model: {POLICY} is not a network of rlrun; write its arguments beside `use`",
        f"exp.yaml:5:12: training.lr: {POLICY} learns by its own learn_on_batch(); remove this key",
    ]


def test_of_several_policies_that_are_all_from_scratch_too(write):
    policies = f"{{a: {{use: {POLICY!r}}}, b: {{use: {POLICY!r}}}}}"
    env = "{use: MultiAgentCartPole, num_agents: 2}"
    text = f"algorithm: PPO\nenv: {env}\nmulti_agent: {{policies: {policies}}}\n"
    assert errors(write(text + "training: {gamma: 0.9, lr: 0.1}", minimal=False)) == [
        f"exp.yaml:4:24: training.lr: {POLICY} learns by its own learn_on_batch(); remove this key",
    ]


def test_several_policies_need_an_algorithm_and_an_environment_for_them(known):
    algorithm, env = errors(known("multi_agent: {policies: [a]}"))
    assert algorithm.startswith("exp.yaml:3:1: multi_agent: Known learns one policy")
    assert "multi_agent.policies: CartPole-v1 has one agent" in env


def test_successors_of_retired_result_keys_exist():
    own = {successor.removeprefix("evaluation/") for successor in STOP_KEYS.values()}
    assert own <= {*RESULT_KEYS, "env_runners/success_rate", "success_rate"}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("stop: {env_steps: 100_000}", []),
        ("seed: 1", ["exp.yaml:1:1: stop: no criterion: the run continues until it is interrupted; add {env_steps: 1e6}"]),
        ("stop: {env_steps: 100}", ["exp.yaml:3:8: stop.env_steps: 100 env steps are less than one iteration, training.train_batch_size = 2,048: the run ends after one iteration"]),
        ("stop: {env_steps: 10_000}\ncheckpoint: {every: 6}\nevaluation: {interval: 5}", ["exp.yaml:4:14: checkpoint.every: every 6 iterations is never: the run ends after 5; every: 5 works"]),
        ("stop: {env_steps: 1e6}\nmodel: {lstm_cell_size: 64}", ["exp.yaml:4:9: model.lstm_cell_size: has no effect: model.use_lstm is false and model.use_gru is false"]),
        ("stop: {env_steps: 1e6}\nmodel: {lstm_cell_size: 64, use_gru: true, max_seq_len: 9}", []),
        ("stop: {env_steps: 1e6}\nmodel: {attention_dim: 8, use: 'fake_algorithm:Maze'}", []),
        ("stop: {env_steps: 1e6}\ntraining: {rmsprop_decay: 0.9}", ['exp.yaml:4:12: training.rmsprop_decay: has no effect: training.optimizer is "adam"']),
        ("stop: {env_steps: 1e6}\nevaluation: {num_env_runners: 2}", ["exp.yaml:4:14: evaluation.num_env_runners: has no effect: evaluation.interval is null"]),
        ("stop: {env_steps: 1e6}\nenv_runners: {update_worker_filter_stats: false}", ['exp.yaml:4:15: env_runners.update_worker_filter_stats: has no effect: env_runners.observation_filter is "NoFilter" and connectors.normalize_rewards is false']),
        ("stop: {env_steps: 1e6}\nenv_runners: {use_worker_filter_stats: false, observation_filter: MeanStdFilter}", []),
        ("stop: {env_steps: 1e6}\nconnectors: {normalize_rewards: true}\nenv_runners: {use_worker_filter_stats: false}", []),
        ("stop: {env_steps: 1e6}\nenv_runners: {use_worker_filter_stats: false, episode_lookback_horizon: 4, env_to_module_connector: [{use: 'fake_algorithm:Maze', size: 8}]}", []),
        ("stop: {env_steps: 1e6}\nenv_runners: {episode_lookback_horizon: 4}", ["exp.yaml:4:15: env_runners.episode_lookback_horizon: has no effect: there are no connectors of your own"]),
        ("stop: {env_steps: 1e6}\nenv_runners: {observations_out_of_bounds: error, disable_env_checking: true}", ["exp.yaml:4:15: env_runners.observations_out_of_bounds: has no effect: env_runners.disable_env_checking is true"]),
        ("stop: {env_steps: 1e6}\nenv_runners: {observations_out_of_bounds: error, observation_check_interval: null}", ["exp.yaml:4:15: env_runners.observations_out_of_bounds: has no effect: env_runners.observation_check_interval is null"]),
        ("stop: {env_steps: 1e6}\nlearners: {num_cpus_per_learner: 0.5}", ["exp.yaml:4:12: learners.num_cpus_per_learner: has no effect: learners.num_learners is 0"]),
        ("stop: {env_steps: 1e6}\nenv_runners: {compress_observations: true}", ["exp.yaml:4:15: env_runners.compress_observations: has no effect: env_runners.num_env_runners is 0"]),
        ("stop: {env_steps: 1e6}\nenv_runners: {max_requests_in_flight_per_env_runner: 2}", ["exp.yaml:4:15: env_runners.max_requests_in_flight_per_env_runner: has no effect: env_runners.num_env_runners is 0"]),
        ("stop: {env_steps: 1e6}\nenv_runners: {num_cpus_per_env_runner: 2}", ["exp.yaml:4:15: env_runners.num_cpus_per_env_runner: has no effect: env_runners.num_env_runners is 0 and evaluation.num_env_runners is 0"]),
        ("stop: {env_steps: 1e6}\nfault_tolerance: {max_num_env_runner_restarts: 2}", ["exp.yaml:4:19: fault_tolerance.max_num_env_runner_restarts: has no effect: env_runners.num_env_runners is 0 and evaluation.num_env_runners is 0"]),
        ("stop: {env_steps: 1e6}\nfault_tolerance: {max_num_env_runner_restarts: 2}\nevaluation: {num_env_runners: 1, interval: 2}", []),
        ("stop: {env_steps: 1e6}\nevaluation: {interval: 2, env_steps: 100, episodes: 5}", ["exp.yaml:4:43: evaluation.episodes: has no effect: evaluation.env_steps is set"]),
        ("stop: {env_steps: 1e6}\nevaluation: {interval: 2, env_runners: {num_cpus_per_env_runner: 2, horizon: 9}}", ["exp.yaml:4:41: evaluation.env_runners.num_cpus_per_env_runner: has no effect: evaluation.num_env_runners is 0"]),
        ("stop: {env_steps: 1e6}\nevaluation: {interval: 2, num_env_runners: 1, env_runners: {num_cpus_per_env_runner: 2}}", []),
        ("stop: {env_steps: 1e6}\nenv_runners: {num_cpus_per_env_runner: 2, custom_resources_per_env_runner: {a: 1}}\nevaluation: {num_env_runners: 1, interval: 2}", []),
    ],
)  # fmt: skip
def test_warnings(known, text, lines):
    assert warnings(known(text)) == lines


def test_a_setting_has_an_effect_if_the_switch_of_any_policy_is_on(write):
    text = "algorithm: PPO\nenv: MultiAgentCartPole\nstop: {env_steps: 1e6}\nmodel: {lstm_cell_size: 64}\nmulti_agent: {policies: {agent_0: {model: {use_lstm: %s}}, agent_1: {}}}\n"
    assert warnings(write(text % "true", minimal=False)) == []
    assert len(warnings(write(text % "false", minimal=False))) == 1


@pytest.mark.parametrize(
    ("own", "keys"),
    [
        ("{model: {lstm_cell_size: 64}, training: {kl_target: 0.1}}", ["training.kl_target", "model.lstm_cell_size"]),
        ("{model: {use_gru: true, lstm_cell_size: 64}, training: {kl_coeff: 0.2, kl_target: 0.1}}", []),
        ("{model: {use: 'torch.nn:Linear', out_features: 3, conv_head: 8}}", ["model.conv_head"]),
    ],
)  # fmt: skip
def test_what_a_policy_has_for_itself_without_effect_is_warned_of(write, own, keys):
    text = f"algorithm: PPO\nenv: MultiAgentCartPole\nstop: {{env_steps: 1e6}}\nmulti_agent: {{policies: {{agent_0: {own}, agent_1: }}}}\n"
    found = warnings(write(text, minimal=False))
    prefix = "multi_agent.policies.agent_0."
    assert {line.split(": ")[1] for line in found} == {prefix + key for key in keys}


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("algorithm: PPO\nenv: CartPole-v1\nmodel: {use: 'torch.nn:Linear', out_features: 3, hidden: [8]}", ["model.hidden"]),
        ("algorithm: PPO\nenv: CartPole-v1\nmodel: {use: 'torch.nn:Linear', out_features: 3, activation: relu}", ["model.activation"]),
        ("algorithm: DQN\nenv: CartPole-v1\nmodel: {use: 'torch.nn:Linear', out_features: 3, activation: relu}", []),
        ("algorithm: DQN\nenv: CartPole-v1\ntraining: {dueling: false}\nmodel: {use: 'torch.nn:Linear', out_features: 3, activation: relu}", ["model.activation"]),
        ("algorithm: DQN\nenv: CartPole-v1\nmodel: {use: 'torch.nn:Linear', out_features: 3, activation: relu, use_lstm: true}", ["model.activation"]),
        ("algorithm: PPO\nenv: CartPole-v1\nmodel: {use: 'torch.nn:Linear', out_features: 3, hidden: [8], activation: relu, use_gru: true}", ["model.hidden", "model.activation"]),
        ("algorithm: PPO\nenv: CartPole-v1\nmodel: {use: 'torch.nn:Linear', out_features: 3, hidden: [8], activation: relu, use_gru: true, privileged: [x]}", []),
        ("algorithm: SAC\nenv: Pendulum-v1\nmodel: {use: 'torch.nn:Linear', out_features: 3, hidden: [8], conv_head: 8}", ["model.conv_head"]),
        ("algorithm: SAC\nenv: Pendulum-v1\nmodel: {share_layers: true, log_std_init: -1}", ["model.share_layers"]),
        ("algorithm: SAC\nenv: Pendulum-v1\nmodel: {share_layers: true, sde_sample_freq: 4}", ["model.sde_sample_freq", "model.share_layers"]),
        ("algorithm: SAC\nenv: Pendulum-v1\nmodel: {use_sde: true, sde_sample_freq: 4}", []),
        ("algorithm: A2C\nenv: Pendulum-v1\ntraining: {rmsprop_start: 0}", ["training.rmsprop_start"]),
        ("algorithm: DQN\nenv: CartPole-v1\nreplay: {alpha: 0.5}\ntraining: {v_min: 20}", ["training.v_min", "replay.alpha"]),
        ("algorithm: DQN\nenv: CartPole-v1\nexploration: {runner_exponent: 7}", ["exploration.runner_exponent"]),
        ("algorithm: DQN\nenv: CartPole-v1\nenv_runners: {num_env_runners: 1}\nexploration: {runner_exponent: 7}", ["exploration.runner_exponent"]),
        ("algorithm: DQN\nenv: CartPole-v1\nenv_runners: {num_env_runners: 2}\nexploration: {runner_exponent: 7}", []),
        ("algorithm: DQN\nenv: CartPole-v1\nenv_runners: {explore: false}\nexploration: {epsilon: 0.5, random_steps: 9}", ["exploration.random_steps", "exploration.epsilon"]),
        ("algorithm: DQN\nenv: CartPole-v1\nenv_runners: {explore: false}\nevaluation: {explore: true, interval: 1}\nexploration: {epsilon: 0.5}", []),
        ("algorithm: SAC\nenv: Pendulum-v1\ntraining: {alpha_lr: 0, target_entropy: -3}", ["training.target_entropy"]),
        ("algorithm: IMPALA\nenv: CartPole-v1\ntraining: {learner_queue_size: 8}", ["training.learner_queue_size"]),
    ],
)  # fmt: skip
def test_what_an_algorithm_does_not_use_is_warned_of(write, text, keys):
    found = warnings(write(f"stop: {{env_steps: 1e6}}\n{text}", minimal=False))
    assert [line.split(": ")[1] for line in found] == keys
