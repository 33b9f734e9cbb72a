"""Warnings of settings that are allowed but probably not intended.

Owns: which settings have no effect beside which others, for all algorithms, and the words for it.
Warnings that depend on the environment's spaces come later, from algorithms/unused_settings.py.
Must not know: which settings are errors.
"""

import json
from collections.abc import Iterator
from typing import Any

from rlrun.config.checks import most_iterations
from rlrun.config.policies import addressed_settings, with_one_policy
from rlrun.config.problems import Finding
from rlrun.config.registry import ALGORITHMS, algorithm_class, import_object
from rlrun.config.schema import (
    MEMORY_SWITCHES,
    EvaluationConfig,
    ExperimentConfig,
    ExplorationConfig,
    ModelConfig,
)
from rlrun.config.section import changed_settings


def find_warnings(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Settings that are allowed but probably not intended."""
    if not experiment.stop:
        message = "no criterion: the run continues until it is interrupted; add {env_steps: 1e6}"
        yield Finding(("stop",), message)
    batch = experiment.training.train_batch_size
    env_steps = experiment.stop.get("env_steps")
    if env_steps is not None and env_steps < batch:
        message = (
            f"{env_steps:,.0f} env steps are less than one iteration, training.train_batch_size = "
            f"{batch:,}: the run ends after one iteration"
        )
        yield Finding(("stop", "env_steps"), message)
    iterations = most_iterations(experiment)
    for section, name, every in (
        ("checkpoint", "every", experiment.checkpoint.every),
        ("evaluation", "interval", experiment.evaluation.interval),
    ):
        if iterations is not None and isinstance(every, int) and every > iterations:
            message = f"every {every} iterations is never: the run ends after {iterations}"
            yield Finding((section, name), f"{message}; {name}: {iterations} works")
    yield from _without_effect(experiment)
    yield from _without_effect_in_evaluation(experiment.evaluation)
    yield from _beside_an_encoder(experiment)
    for policy_id, own in experiment.multi_agent.policies.items():
        of_policy = with_one_policy(experiment, own)
        for found in (*_without_effect(of_policy), *_beside_an_encoder(of_policy)):
            if found.path[-1] in getattr(own, str(found.path[0]), ()):  # not if common to all
                yield Finding(("multi_agent", "policies", policy_id, *found.path), found.message)


_OF_A_MEMORY = ("lstm_cell_size", "lstm_use_prev_action", "lstm_use_prev_reward")
_OF_ATTENTION = tuple(name for name in ModelConfig.model_fields if name.startswith("attention_"))
_OF_ACTORS = (
    "num_cpus_per_env_runner",
    "custom_resources_per_env_runner",
    "validate_env_runners_after_construction",
)
_NO_CONNECTORS = dict.fromkeys(("env_to_module_connector", "module_to_env_connector"), ())
_NO_STATISTICS = {"observation_filter": "NoFilter", "connectors.normalize_rewards": False}
_SWITCHES: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("model", {"use_lstm": False, "use_gru": False, "use": None}, _OF_A_MEMORY),
    ("model", {"use_attention": False, "use": None}, _OF_ATTENTION),
    ("model", {**dict.fromkeys(MEMORY_SWITCHES, False), "use": None}, ("max_seq_len",)),
    ("model", {"use_sde": False, "use": None}, ("sde_sample_freq",)),
    ("training", {"optimizer": "adam"}, ("rmsprop_decay", "rmsprop_epsilon", "rmsprop_start")),
    ("training", {"optimizer": "rmsprop"}, ("adam_epsilon",)),
    ("training", {"grad_clip": None}, ("grad_clip_by",)),
    ("training", {"kl_coeff": 0}, ("kl_target",)),
    ("training", {"circular_buffer_iterations_per_batch": 1}, ("circular_buffer_num_batches",)),
    ("training", {"env_runners.num_env_runners": 0}, ("learner_queue_size",)),
    ("training", {"num_atoms": 1}, ("v_min", "v_max")),
    ("training", {"noisy": False}, ("sigma0",)),
    ("training", {"alpha_lr": 0}, ("target_entropy",)),
    ("exploration", {"env_runners.num_env_runners": 0}, ("runner_exponent",)),
    ("exploration", {"env_runners.num_env_runners": 1}, ("runner_exponent",)),
    (
        "exploration",
        {"env_runners.explore": False, "evaluation.explore": False},
        tuple(ExplorationConfig.model_fields),
    ),
    ("replay", {"prioritized": False}, ("alpha", "beta", "epsilon")),
    ("evaluation", {"interval": None}, ("env_steps", "num_env_runners", "parallel_to_training")),
    (
        "env_runners",
        {**_NO_STATISTICS, **_NO_CONNECTORS},
        ("use_worker_filter_stats", "update_worker_filter_stats"),
    ),
    ("env_runners", _NO_CONNECTORS, ("episode_lookback_horizon",)),
    (
        "env_runners",
        {"disable_env_checking": True},
        ("observation_check_interval", "observations_out_of_bounds"),
    ),
    ("env_runners", {"observation_check_interval": None}, ("observations_out_of_bounds",)),
    (
        "env_runners",
        {"num_env_runners": 0},
        ("compress_observations", "sample_timeout_s", "max_requests_in_flight_per_env_runner"),
    ),
    (
        "fault_tolerance",
        {"env_runners.num_env_runners": 0, "evaluation.num_env_runners": 0},
        (
            "restart_failed_env_runners",
            "ignore_env_runner_failures",
            "max_num_env_runner_restarts",
            "delay_between_env_runner_restarts_s",
            "num_consecutive_env_runner_failures_tolerance",
            "env_runner_restore_timeout_s",
        ),
    ),
    (
        "env_runners",
        {"num_env_runners": 0, "evaluation.num_env_runners": 0},
        _OF_ACTORS,
    ),
    ("learners", {"num_learners": 0}, ("num_cpus_per_learner", "max_num_learner_restarts")),
)
"""Section, its switches with the values for off, and the settings without effect if all are off.
Switches of another section have its name before a dot."""


def _without_effect(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Settings that differ from their defaults but have no effect."""
    for name, switches, dependents in _SWITCHES:
        addresses = {key if "." in key else f"{name}.{key}": off for key, off in switches.items()}
        if all(_is_off(experiment, address, off) for address, off in addresses.items()):
            off = [
                f"{address} is {json.dumps(off)}"
                for address, off in addresses.items()
                if address != "model.use" and off != ()
            ]
            reason = " and ".join(off) or "there are no connectors of your own"
            for key in changed_settings(getattr(experiment, name), dependents):
                yield Finding((name, key), f"has no effect: {reason}")
    algorithm = algorithm_class(experiment.algorithm)
    if experiment.env_runners.num_env_runners and not getattr(algorithm, "asynchronous", False):
        for key in changed_settings(
            experiment.env_runners, ("max_requests_in_flight_per_env_runner",)
        ):
            message = (
                f"has no effect: an env runner has one request at a time in {algorithm.__name__}"
            )
            yield Finding(("env_runners", key), message)
    if not getattr(algorithm, "samples_distribution", True):
        for key in changed_settings(experiment.model, ("share_layers", "free_log_std")):
            message = f"has no effect on the networks of {experiment.algorithm}"
            yield Finding(("model", key), message)


def _without_effect_in_evaluation(evaluation: EvaluationConfig) -> Iterator[Finding]:
    for key in changed_settings(evaluation, ("episodes",)) if evaluation.env_steps else ():
        yield Finding(("evaluation", key), "has no effect: evaluation.env_steps is set")
    for key in () if evaluation.num_env_runners else (*_OF_ACTORS, "sample_timeout_s"):
        if key in evaluation.env_runners:
            message = "has no effect: evaluation.num_env_runners is 0"
            yield Finding(("evaluation", "env_runners", key), message)


def _is_off(experiment: ExperimentConfig, address: str, off: Any) -> bool:
    """Whether the switch ``section.key`` has this value, for all policies."""
    name, _, key = address.partition(".")
    section = getattr(experiment, name)
    networks = [settings for _, settings in addressed_settings(experiment)]
    everywhere = [section, *(getattr(each, name, section) for each in networks)]
    return all(getattr(each, key, ...) == off for each in everywhere)


def _beside_an_encoder(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Settings of layers that networks with an encoder of the user's own, `model.use`, lack."""
    model, algorithm = experiment.model, experiment.algorithm
    if model.use is None or algorithm not in ALGORITHMS:
        return
    named, whole = import_object(model.use), import_object("rlrun.policies.rl_module:RLModule")
    if not isinstance(named, type) or issubclass(named, whole):
        return
    for key in changed_settings(model, ("conv_head", "conv_dtype")):
        yield Finding(("model", key), f"has no effect: {model.use} takes the place of convolutions")
    has_memory = any(getattr(model, name) for name in MEMORY_SWITCHES)
    if algorithm == "SAC" or (has_memory and model.privileged):  # their heads have hidden layers
        return
    # Without a memory each stream of a dueling network has one, as wide as the encoder's output.
    streams = getattr(experiment.training, "dueling", False) and not has_memory
    for key in changed_settings(model, ("hidden",) if streams else ("hidden", "activation")):
        yield Finding(("model", key), f"has no effect: no hidden layers follow {model.use}")
