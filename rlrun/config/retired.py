"""Names of RLlib, Stable-Baselines3, CleanRL and Sample Factory, and what to use instead.

Owns: the advice for a key of another library. RLlib's names also translate its flat config dicts in
the builder. The others only appear in messages, since most of them count something else. Must not
know: the schema; a test holds that every new name exists in it.
"""

from collections.abc import Mapping
from typing import Any

SUCCESSORS: dict[str, str] = {
    "num_workers": "env_runners.num_env_runners",
    "num_rollout_workers": "env_runners.num_env_runners",
    "num_envs_per_worker": "env_runners.num_envs_per_env_runner",
    "num_cpus_per_worker": "env_runners.num_cpus_per_env_runner",
    "num_gpus_per_worker": "env_runners.num_gpus_per_env_runner",
    "custom_resources_per_worker": "env_runners.custom_resources_per_env_runner",
    "validate_workers_after_construction": "env_runners.validate_env_runners_after_construction",
    "create_env_on_driver": "env_runners.create_env_on_local_worker",
    "sample_batch_size": "env_runners.rollout_fragment_length",
    "synchronize_filter": "env_runners.update_worker_filter_stats",
    "synchronize_filters": "env_runners.update_worker_filter_stats",
    "max_requests_in_flight_per_sampler_worker": (
        "env_runners.max_requests_in_flight_per_env_runner"
    ),
    "max_requests_in_flight_per_rollout_worker": (
        "env_runners.max_requests_in_flight_per_env_runner"
    ),
    "ignore_worker_failures": "fault_tolerance.ignore_env_runner_failures",
    "recreate_failed_workers": "fault_tolerance.restart_failed_env_runners",
    "recreate_failed_env_runners": "fault_tolerance.restart_failed_env_runners",
    "max_num_worker_restarts": "fault_tolerance.max_num_env_runner_restarts",
    "delay_between_worker_restarts_s": "fault_tolerance.delay_between_env_runner_restarts_s",
    "num_consecutive_worker_failures_tolerance": (
        "fault_tolerance.num_consecutive_env_runner_failures_tolerance"
    ),
    "worker_restore_timeout_s": "fault_tolerance.env_runner_restore_timeout_s",
    "fcnet_hiddens": "model.hidden",
    "fcnet_activation": "model.activation",
    "vf_share_layers": "model.share_layers",
    "conv_filters": "model.conv",
    "custom_model": "model.use",
    "attention_memory_inference": "model.attention_memory",
    "attention_memory_training": "model.attention_memory",
    "evaluation_interval": "evaluation.interval",
    "evaluation_duration": "evaluation.episodes",
    "evaluation_num_workers": "evaluation.num_env_runners",
    "evaluation_num_env_runners": "evaluation.num_env_runners",
    "evaluation_parallel_to_training": "evaluation.parallel_to_training",
    "evaluation_num_episodes": "evaluation.episodes",
    "metrics_num_episodes_for_smoothing": "report.smoothing_episodes",
    "metrics_smoothing_episodes": "report.smoothing_episodes",
    "min_time_s_per_reporting": "report.min_time_s_per_iteration",
    "min_iter_time_s": "report.min_time_s_per_iteration",
    "timesteps_per_iteration": "report.min_sample_timesteps_per_iteration",
    "merge_env_runner_states": "env_runners.use_worker_filter_stats",
    "broadcast_env_runner_states": "env_runners.update_worker_filter_stats",
    "num_learner_workers": "learners.num_learners",
    "num_cpus_per_learner_worker": "learners.num_cpus_per_learner",
    "num_gpus_per_learner_worker": "learners.num_gpus_per_learner",
    "replay_mode": "replay.mode",
    "store_buffer_in_checkpoints": "replay.store_in_checkpoints",
    "burn_in_len": "replay.burn_in",
    "actor_lr": "training.lr",
    "opt_type": "training.optimizer",
    "simple_queue_size": "training.learner_queue_size",
    "target_update_frequency": "training.target_network_update_freq",
    "checkpoint_freq": "checkpoint.every",
    "checkpoint_frequency": "checkpoint.every",
    "checkpoint_at_end": "checkpoint.at_end",
    "keep_checkpoints_num": "checkpoint.keep",
    "num_to_keep": "checkpoint.keep",
    "checkpoint_score_order": "checkpoint.mode",
    "run": "algorithm",
    "lr_schedule": "training.lr",
    "lambda": "training.lambda_",
    "sgd_minibatch_size": "training.minibatch_size",
    "mini_batch_size_per_learner": "training.minibatch_size",
    "num_sgd_iter": "training.num_epochs",
    "train_batch_size_per_learner": "training.train_batch_size",
}
"""Retired name -> the address that takes the same value."""

_TORCH_ONLY = "rlrun trains with PyTorch only"
_ONE_PROCESS = "the learner has no loader threads, aggregators or replay actors"
_INTERNAL = "it is internal to RLlib"

NO_EFFECT: dict[str, str] = {
    "env_runner_health_probe_timeout_s": (
        "env runners without an answer after env_runners.sample_timeout_s are replaced"
    ),
    "worker_health_probe_timeout_s": (
        "env runners without an answer after env_runners.sample_timeout_s are replaced"
    ),
    "enable_connectors": "connectors are always in use",
    **dict.fromkeys(
        (
            *("framework", "use_pytorch", "eager", "eager_tracing", "enable_tf1_exec_eagerly"),
            *("eager_max_retraces", "tf_session_args", "local_tf_session_args"),
        ),
        _TORCH_ONLY,
    ),
    **dict.fromkeys(
        (
            *("learner_queue_timeout", "num_multi_gpu_tower_stacks", "num_multi_acc_tower_stacks"),
            *("num_aggregation_workers", "num_data_loader_buffers", "num_data_load_threads"),
            *(
                "max_sample_requests_in_flight_per_worker",
                "max_requests_in_flight_per_replay_worker",
            ),
            *("max_requests_in_flight_per_aggregator_worker", "timeout_s_sampler_manager"),
            *(
                "timeout_s_replay_manager",
                "timeout_s_aggregator_manager",
                "replay_buffer_num_slots",
            ),
            *("no_local_replay_buffer", "replay_buffer_shards_colocated_with_driver"),
            *("worker_side_prioritization", "num_replay_buffer_shards"),
        ),
        _ONE_PROCESS,
    ),
    **dict.fromkeys(
        (
            *("simple_optimizer", "fake_sampler", "api_stack", "placement_strategy"),
            *("logger_config", "logger_creator", "log_sys_usage", "num_accs", "gpu"),
            *("collect_metrics_timeout", "metrics_episode_collection_timeout_s"),
            *("custom_resources_for_main_process", "local_gpu_idx", "torch_ddp_kwargs"),
            *("use_env_runner_state_server", "episodes_to_numpy", "is_atari"),
            *("max_requests_in_flight_per_learner", "num_gpu_loader_threads"),
            *("checkpoint_trainable_policies_only", "export_native_model_files"),
            *("enable_rl_module_and_learner", "enable_env_runner_and_connector_v2"),
            *("evaluation_force_reset_envs_before_iteration", "use_trajectory_view_api"),
            *("num_cpus_for_driver", "num_cpus_for_local_worker", "num_cpus_for_main_process"),
            *(
                "enable_async_evaluation",
                "always_attach_evaluation_results",
                "in_evaluation",
                "extra_python_environs_for_driver",
            ),
            *("extra_python_environs_for_worker", "keep_per_episode_custom_metrics"),
            *("replay_sequence_length", "storage_unit", "always_check_shapes"),
        ),
        _INTERNAL,
    ),
    **dict.fromkeys(
        ("policy_map_capacity", "policy_states_are_swappable", "policy_map_cache"),
        "all policies stay in memory",
    ),
    "_fake_gpus": "several learners (learners.num_learners) share minibatches on CPUs, too",
    "log_level": "log.txt in the run folder is always complete",
    "log_gradients": "grad_norm is always in the result",
    "create_local_env_runner": "there is a local env runner if there are no remote ones",
    "monitor": "`rlrun rollout RUN --video DIR` records videos",
    "shuffle_sequences": "minibatches are always drawn at random",
    "shuffle_batch_per_epoch": "minibatches are always drawn at random",
    "vtrace_drop_last_ts": "the true last observation of a fragment bootstraps it",
    "zero_init_states": "a replayed sequence starts with the state that was used for acting",
    **dict.fromkeys(
        ("dim", "grayscale", "zero_mean", "framestack"),
        "env_runners.preprocessor_pref: deepmind stacks four grey frames of 84 x 84",
    ),
}
"""Retired name -> why it is not needed; removing it changes nothing."""

_INTERNAL_PREFIXES = ("_enable_", "_disable_", "_fake_", "_tf_", "_use_")

RULES: dict[str, str] = {
    "evaluation_config": "set evaluation.env, evaluation.env_runners and evaluation.explore",
    "evaluation_duration_unit": "set evaluation.episodes or evaluation.env_steps",
    "rollouts": "use the section `env_runners`",
    "resources": "use the sections `env_runners` and `learners`",
    "reporting": "use the section `report`",
    "checkpointing": "use the section `checkpoint`",
    "debugging": "use `seed` at the top of the file",
    **dict.fromkeys(("timesteps_total", "episode_reward_mean"), "use a key of results in `stop`"),
    "render_env": "`rlrun rollout RUN --video DIR` records videos",
    **dict.fromkeys(
        ("observation_space", "action_space"), "spaces come from the environment; remove this key"
    ),
    "action_mask_key": "name the mask action_mask, in a Dict observation",
    "observation_fn": "write it as an env_runners.env_to_module_connector",
    "custom_preprocessor": "write it as an env_runners.env_to_module_connector",
    **dict.fromkeys(("model_config", "model_config_dict"), "use the section `model`"),
    "rl_module_spec": "name the class in model.use, and write its arguments beside it",
    "load_state_path": "initial_weights takes a run of rlrun; RLlib's checkpoints cannot be read",
    "custom_model_config": "write arguments of the class beside model.use",
    "custom_action_dist": "name the distribution in model.distribution",
    **dict.fromkeys(
        ("post_fcnet_hiddens", "post_fcnet_activation"), "append these layers to model.hidden"
    ),
    "no_final_linear": "networks end in a linear layer; remove this key",
    "conv_activation": "convolutions have relu; for another network set model.use",
    "learner_class": "wrap the loss with training.loss, or write a subclass of the algorithm",
    **dict.fromkeys(
        ("learner_connector", "before_learn_on_batch"),
        "use training.learner_connectors to change train batches",
    ),
    "torch_compile_learner": "use learners.compile",
    "td_error_loss_fn": "the loss of temporal-difference errors is Huber's; remove this key",
    "twin_q": "there are always two critics; remove this key",
    "decay": "use training.rmsprop_decay",
    "momentum": "rlrun's RMSProp has no momentum; remove this key",
    "evaluation_sample_timeout_s": "set evaluation.env_runners.sample_timeout_s",
    "custom_evaluation_function": "write it as a callback's on_evaluate_end",
    "env_config": "write arguments beside the id: `env: {use: ID, key: value}`",
    "num_gpus": "use learners.device",
    "max_episode_steps": "write `env: {use: ID, max_episode_steps: N}`",
    "lstm_use_prev_action_reward": "use lstm_use_prev_action and lstm_use_prev_reward",
    "use_gae": "advantages are always estimated by GAE; lambda_: 1 gives plain returns",
    "use_critic": "the value function is always trained; remove this key",
    "use_kl_loss": "set training.kl_coeff to 0 for no KL term",
    "entropy_coeff_schedule": "write entropy_coeff: [[env_steps, value], ...]",
    "config": "write its keys at the top of the file, in their sections",
    "vtrace": "IMPALA and APPO always correct with V-trace; remove this key",
    "optimization": "set training.lr, training.critic_lr and training.alpha_lr",
    "q_model_config": "use the section `model`, for policy and critics",
    "policy_model_config": "use the section `model`, for policy and critics",
    "replay_buffer_config": "set replay.capacity, replay.prioritized, replay.alpha and replay.beta",
    "exploration_config": (
        "use the section `exploration` with DQN and SAC; others explore by their policy's "
        "distribution"
    ),
    "multiagent": "use the section `multi_agent`",
    "policy_mapping_fn": "use multi_agent.agents",
    "minibatch_buffer_size": "use training.circular_buffer_num_batches with APPO",
    "replay_ratio": "batches are not replayed; APPO's circular_buffer_* reuses them",
    "replay_proportion": "batches are not replayed; APPO's circular_buffer_* reuses them",
    "num_samples": "use sweep.trials; sweep.seeds repeats each point",
    "grid_search": "use sweep.space: {training.lr: {grid: [...]}}",
    **dict.fromkeys(
        ("input", "input_config", "input_evaluation", "off_policy_estimation_methods"),
        "rlrun learns from environments, not from recorded data; wrap an external environment as "
        "a gymnasium one",
    ),
    **dict.fromkeys(
        ("output", "output_config", "output_max_file_size", "output_compress_columns"),
        "`rlrun rollout --save FILE` records transitions",
    ),
}
"""Retired name without a single successor -> what to do instead."""

_A_SCHEDULE = "a schedule is [[env_steps, value], ...], not a function of the progress"
_EPSILON = (
    "write exploration.epsilon: [[0, start], [N, end]]; N is exploration_fraction * total_timesteps"
)
_INTENSITY = (
    "write training.training_intensity: batch_size * gradient_steps / (train_freq * n_envs), the "
    "transitions replayed for each env step"
)
_NUM_ENVS = (
    "write env_runners.num_envs_per_env_runner, the number of each env runner; "
    'env_runners.gym_env_vectorize_mode: "async" steps each in its own process'
)
_TARGET = "write training.target_network_update_freq; it counts env steps, in SAC too"

OTHER_LIBRARIES: dict[str, str] = {
    "n_steps": (
        "write training.train_batch_size: n_steps * n_envs; for n-step returns write "
        "training.n_step"
    ),
    "num_steps": "write training.train_batch_size: num_steps * num_envs",
    **dict.fromkeys(("n_envs", "num_envs"), _NUM_ENVS),
    **dict.fromkeys(
        ("total_timesteps", "n_timesteps"),
        "write stop.env_steps; a run stops after the iteration that reaches it",
    ),
    "learning_rate": f"write training.lr; {_A_SCHEDULE}",
    "anneal_lr": "write training.lr: [[0, learning_rate], [total_timesteps, 0]]",
    "policy_lr": "write training.lr",
    "q_lr": "write training.critic_lr",
    "net_arch": (
        "write model.hidden, and model.value_hidden for other widths of the value function's or "
        "the critics' own layers"
    ),
    "policy_kwargs": "write the section model; net_arch becomes model.hidden",
    "features_extractor_class": "write model.use, the import path of an encoder",
    "features_extractor_kwargs": "write keys of the section model, beside model.use",
    "batch_size": (
        "write training.minibatch_size; A2C and PG make one step on the whole "
        "training.train_batch_size"
    ),
    "num_minibatches": "write training.minibatch_size: num_steps * num_envs / num_minibatches",
    **dict.fromkeys(("n_epochs", "update_epochs"), "write training.num_epochs"),
    "gae_lambda": "write training.lambda_",
    "ent_coef": (
        "write training.entropy_coeff; in SAC training.initial_alpha, and training.alpha_lr: 0 to "
        "keep it constant"
    ),
    "vf_coef": (
        "write training.vf_loss_coeff; the value loss is halved as in CleanRL, so write twice the "
        "vf_coef of Stable-Baselines3"
    ),
    "max_grad_norm": "write training.grad_clip",
    **dict.fromkeys(("clip_range", "clip_coef"), f"write training.clip_param; {_A_SCHEDULE}"),
    "clip_range_vf": "write training.vf_clip_param",
    "clip_vloss": "write training.vf_clip_param: clip_coef, or null for false",
    **dict.fromkeys(
        ("normalize_advantage", "norm_adv"),
        'write training.normalize_advantages: "minibatch", or null for false',
    ),
    "target_kl": (
        "write training.target_kl, for PPO; an update ends at 1.5 times its value, as in "
        "Stable-Baselines3, while CleanRL compares with target_kl after each pass"
    ),
    "buffer_size": "write replay.capacity",
    "learning_starts": (
        "write training.num_steps_sampled_before_learning_starts; set exploration.random_steps to "
        "the same number for uniformly random actions until then"
    ),
    **dict.fromkeys(("train_freq", "train_frequency", "gradient_steps"), _INTENSITY),
    **dict.fromkeys(("target_update_interval", "target_network_frequency"), _TARGET),
    "tau": "write training.tau, for DQN and SAC",
    **dict.fromkeys(
        (
            *("exploration_fraction", "exploration_initial_eps", "exploration_final_eps"),
            *("start_e", "end_e"),
        ),
        _EPSILON,
    ),
    "exploration_loss_coeff": "write training.entropy_coeff",
    "value_loss_coeff": "write training.vf_loss_coeff; rlrun halves the value loss",
    "kl_loss_coeff": "write training.kl_coeff, which PPO adapts to meet kl_target",
    "ppo_clip_ratio": (
        "write training.clip_param; the ratio is clipped to 1 - clip_param and 1 + clip_param"
    ),
    "ppo_clip_value": "write training.vf_clip_param",
    "adam_eps": "write training.adam_epsilon",
    "rollout": "write env_runners.rollout_fragment_length",
    "num_batches_per_epoch": "write training.minibatch_size: train_batch_size / the number",
    "recurrence": "write model.max_seq_len",
    "use_rnn": "write model.use_lstm or model.use_gru",
    "rnn_type": "write model.use_lstm or model.use_gru",
    "rnn_size": "write model.lstm_cell_size, for a GRU, too",
    "encoder_mlp_layers": "write model.hidden",
    "nonlinearity": "write model.activation",
    "actor_critic_share_weights": "write model.share_layers",
    "adaptive_stddev": "write model.free_log_std: false for true",
    "initial_stddev": "write model.log_std_init, its logarithm",
    "normalize": (
        "write env_runners.observation_filter: MeanStdFilter and connectors.normalize_rewards: true"
    ),
    "frame_stack": (
        "write env_runners.env_wrappers: [{use: FrameStackObservation, stack_size: 4}]; Atari's "
        "frames are stacked by default"
    ),
    "env_wrapper": "write env_runners.env_wrappers",
    "normalize_input": "write env_runners.observation_filter: MeanStdFilter",
    "normalize_returns": (
        "write connectors.normalize_rewards, which divides rewards by the deviation of returns"
    ),
    "reward_clip": "write connectors.clip_rewards",
    "async_rl": "write env_runners.sample_async",
    "with_vtrace": "write training.lambda_; IMPALA and APPO correct with V-trace",
    "train_for_env_steps": "write stop.env_steps",
    "train_for_seconds": "write stop.time_s",
    "keep_checkpoints": "write checkpoint.keep",
}
"""Name of Stable-Baselines3, CleanRL or Sample Factory -> what to write, and how it differs."""

STOP_KEYS: dict[str, str] = {
    "timesteps_total": "env_steps",
    "num_env_steps_sampled": "env_steps",
    "num_env_steps_sampled_lifetime": "env_steps",
    "episodes_total": "episodes",
    "time_total_s": "time_s",
    "agent_timesteps_total": "agent_steps",
    "num_agent_steps_sampled": "agent_steps",
    "num_env_steps_trained": "agent_steps_trained",
    "num_agent_steps_trained": "agent_steps_trained",
    "num_env_steps_trained_this_iter": "agent_steps_trained_this_iter",
    "num_env_steps_trained_throughput_per_sec": "agent_steps_trained_per_s",
    "num_env_steps_sampled_throughput_per_sec": "env_steps_per_s",
    **{
        f"{group}{sampled}episode_{old}": f"{group}episode_{new}"
        for group in ("", "evaluation/")
        for sampled in ("", "sampler_results/", "env_runners/")
        for old, new in (
            *((f"reward_{kind}", f"return_{kind}") for kind in ("mean", "min", "max")),
            *((f"return_{kind}", f"return_{kind}") for kind in ("mean", "min", "max")),
            ("len_mean", "len_mean"),
        )
        if f"{sampled}episode_{old}" != f"episode_{new}"
    },
    "rollout/ep_rew_mean": "episode_return_mean",
    "rollout/ep_len_mean": "episode_len_mean",
    "rollout/success_rate": "env_runners/success_rate",
    "eval/mean_reward": "evaluation/episode_return_mean",
    "eval/mean_ep_length": "evaluation/episode_len_mean",
    "eval/success_rate": "evaluation/success_rate",
    "time/total_timesteps": "env_steps",
}
"""Result keys of RLlib and Stable-Baselines3 -> rlrun's."""


CALLBACKS: dict[str, str] = {
    "on_trainer_init": "use on_algorithm_init",
    "on_workers_recreated": "use on_env_runners_recreated",
}
"""Method of RLlib's callbacks that is never called -> what to do instead."""

VALUES: dict[tuple[str, str], str] = {
    ("target_entropy", "auto"): "use null for RLlib's auto",
    ("activation", "swish"): "use silu, which is the same",
}
"""(key, value) of RLlib -> what to write for the value."""


def advice(name: str) -> str | None:
    """The message about a name of another library, or None for other names."""
    if name in SUCCESSORS:
        return f"retired; use {SUCCESSORS[name]}"
    if name in RULES:
        return f"retired; {RULES[name]}"
    if (reason := without_effect(name)) is not None:
        return f"retired; {reason}; remove this key"
    return OTHER_LIBRARIES.get(name)


def without_effect(name: str) -> str | None:
    """Why a retired name is not needed, or None for other names."""
    return NO_EFFECT.get(name, _INTERNAL if name.startswith(_INTERNAL_PREFIXES) else None)


def address_of(key: str, known: Mapping[str, Any]) -> str | None:
    """The address of a flat key of RLlib: its new name, or the only field of this name.

    Args:
        known: section -> its schema.
    """
    if key in SUCCESSORS:
        section, _, field = SUCCESSORS[key].rpartition(".")
        return SUCCESSORS[key] if field in known[section].model_fields else None
    owners = [name for name in known if name and key in known[name].model_fields]
    # `explore` alone is about sampling, as in RLlib.
    owners = [name for name in owners if name != "evaluation"] or owners
    return f"{owners[0]}.{key}" if len(owners) == 1 else None
