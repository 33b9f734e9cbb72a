"""Names that RLlib used or uses, and what takes their place here.

Owns: the answer to a key that used to exist. The same table translates RLlib's flat config dicts in
the builder. Must not know: the schema; a test holds that every successor exists in it.
"""

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
    "min_iter_time_s": "report.min_time_s_per_iteration",
    "timesteps_per_iteration": "report.min_sample_timesteps_per_iteration",
    "checkpoint_freq": "checkpoint.every",
    "checkpoint_frequency": "checkpoint.every",
    "checkpoint_at_end": "checkpoint.at_end",
    "keep_checkpoints_num": "checkpoint.keep",
    "num_to_keep": "checkpoint.keep",
    "run": "algorithm",
    "lr_schedule": "training.lr",
    "batch_size": "training.train_batch_size",
    "lambda": "training.lambda_",
    "sgd_minibatch_size": "training.minibatch_size",
    "mini_batch_size_per_learner": "training.minibatch_size",
    "num_sgd_iter": "training.num_epochs",
    "train_batch_size_per_learner": "training.train_batch_size",
}
"""Retired name -> the address that takes the same value."""

_NO_PROBES = (
    "an env runner that has not answered after env_runners.sample_timeout_s is replaced; "
    "leave the key out"
)
RULES: dict[str, str] = {
    "env_runner_health_probe_timeout_s": _NO_PROBES,
    "worker_health_probe_timeout_s": _NO_PROBES,
    "evaluation_config": "set evaluation.env, evaluation.env_runners and evaluation.explore",
    "evaluation_duration_unit": "evaluation.episodes counts episodes, evaluation.env_steps steps",
    "sample_async": "IMPALA, APPO and A3C sample while they learn; leave the key out",
    "enable_connectors": "connectors are always in use; leave the key out",
    "framework": "rlrun trains with PyTorch only; leave the key out",
    "enable_tf1_exec_eagerly": "rlrun trains with PyTorch only; leave the key out",
    "env_config": "arguments stand beside the id - write `env: {use: ID, key: value}`",
    "num_gpus": "name the learner's device instead: learners.device",
    "max_episode_steps": "it is an argument of gymnasium - `env: {use: ID, max_episode_steps: N}`",
    "lstm_use_prev_action_reward": (
        "its successors are lstm_use_prev_action and lstm_use_prev_reward"
    ),
    "use_gae": "advantages are always estimated by GAE; lambda_: 1 is plain returns",
    "use_critic": "the value function is always trained; leave the key out",
    "entropy_coeff_schedule": "entropy_coeff itself takes a schedule: [[env_steps, value], ...]",
    "config": "its keys stand at the top of the file, in their sections",
}
"""Retired name -> what to do instead, where no single key takes its place."""

STOP_KEYS: dict[str, str] = {
    "timesteps_total": "env_steps",
    "num_env_steps_sampled": "env_steps",
    "num_env_steps_sampled_lifetime": "env_steps",
    "episode_reward_mean": "episode_return_mean",
    "episode_reward_min": "episode_return_min",
    "episode_reward_max": "episode_return_max",
    "episodes_total": "episodes",
    "time_total_s": "time_s",
    "env_runners/episode_return_mean": "episode_return_mean",
    "env_runners/episode_reward_mean": "episode_return_mean",
}
"""Result keys of RLlib -> rlrun's."""


_IN_RUNNERS = "env runners call no callbacks but on_postprocess_trajectory; leave it out"

CALLBACKS: dict[str, str] = {
    "on_trainer_init": "its successor is on_algorithm_init",
    "on_workers_recreated": "its successor is on_env_runners_recreated",
    "on_episode_created": _IN_RUNNERS,
    "on_episode_start": _IN_RUNNERS,
    "on_episode_step": _IN_RUNNERS,
    "on_environment_created": _IN_RUNNERS,
    "on_sub_environment_created": _IN_RUNNERS,
}
"""Methods of RLlib's callbacks that are not called here, and what to do instead."""


def advice(name: str) -> str | None:
    """What to say about a retired name, or None for one that never was."""
    if name in SUCCESSORS:
        return f"retired; its successor is {SUCCESSORS[name]}"
    if name in RULES:
        return f"retired; {RULES[name]}"
    return None
