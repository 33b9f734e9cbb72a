"""Checks of relations between the fields of an experiment, made before anything starts.

Owns: the checks for all algorithms; each message shows its arithmetic and names a setting that
works. The rules of one algorithm are in its class's `validate`. Must not know: the machine (CPUs
and GPUs are counted when a run starts), environments, their agents and spaces.
"""

from collections.abc import Iterator
from typing import Any

from rlrun.config import retired
from rlrun.config.policies import (
    UNREAD_IN_EVALUATION,
    addressed_settings,
    policies_that_learn,
)
from rlrun.config.problems import Finding, Path
from rlrun.config.registry import (
    algorithm_class,
    is_import_path,
    no_such,
    suggestion,
)
from rlrun.config.schema import (
    MEMORY_SWITCHES,
    EnvRunnersConfig,
    ExperimentConfig,
    MultiAgentConfig,
    PolicySource,
    TrainingConfig,
)
from rlrun.config.section import changed_settings
from rlrun.config.validate import validated

RESULT_KEYS = (
    "training_iteration",
    "env_steps",
    "agent_steps",
    "env_steps_this_iter",
    "agent_steps_this_iter",
    "agent_steps_trained",
    "agent_steps_trained_this_iter",
    "agent_steps_trained_per_s",
    "episodes",
    "episodes_this_iter",
    "episode_return_mean",
    "episodes_in_mean",
    "episode_return_mean_this_iter",
    "episode_return_min",
    "episode_return_max",
    "episode_len_mean",
    "env_steps_per_s",
    "time_s",
    "weights_version",
)
RESULT_GROUPS = ("custom_metrics", "env_runners", "learners", "evaluation", "timers")

OPTIONAL_SECTIONS = ("exploration", "replay")
"""Sections that only some algorithms use."""

_COMMON_TO_POLICIES = ("train_batch_size", "broadcast_interval", "learner_queue_size")
"""Settings of `training` that a single policy cannot override."""

_OF_POLICIES = ("model", "training", "exploration")
"""Sections whose settings a single policy may override."""

_OF_CUSTOM_POLICIES = (*_COMMON_TO_POLICIES, "gamma", "learner_connectors")
"""Settings of `training` that also apply to custom policies."""


def check_sections(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Contradictions between settings that do not depend on the algorithm."""
    yield from _check_env_runners(experiment)
    yield from _check_gpus(experiment)
    yield from _check_evaluation(experiment)
    yield from _check_model(experiment)
    if isinstance(experiment.initial_weights, dict):
        for policy_id, source in experiment.initial_weights.items():
            yield from validated(PolicySource, source, ("initial_weights", policy_id), None)[1]


def check_algorithm(experiment: ExperimentConfig) -> Iterator[Finding]:
    """What contradicts the algorithm or its settings."""
    yield from _check_sample_async(experiment)
    yield from _check_multi_agent(experiment)
    yield from _check_custom_policy(experiment)
    yield from _check_rules(experiment)
    yield from _check_learners(experiment)


def check_result_keys(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Result keys that no result of this experiment has."""
    for key in experiment.stop:
        yield from check_result_key(experiment, ("stop", key), key)
    metric = experiment.checkpoint.metric
    yield from check_result_key(experiment, ("checkpoint", "metric"), metric)
    if "is_success" in experiment.report.info_keys:
        message = "is_success is always reported, as env_runners/success_rate; remove it"
        yield Finding(("report", "info_keys"), message)


def check_result_key(experiment: ExperimentConfig, path: Path, key: str) -> Iterator[Finding]:
    """Problems of a result key, which is named at `path`."""
    successor = retired.STOP_KEYS.get(key)
    group, slash, _ = key.partition("/")
    known = key in RESULT_KEYS or (slash and group in RESULT_GROUPS)
    # The user's own callbacks and algorithms may add keys to the result.
    may_add_keys = experiment.callbacks or is_import_path(experiment.algorithm)
    if successor is not None:
        yield Finding(path, f"no result has the key {key}; use {successor}")
    elif not known and not may_add_keys:
        names = [*RESULT_KEYS, *(f"{name}/..." for name in RESULT_GROUPS)]
        hint = (
            suggestion(key, [*names, "env_runners/success_rate"])
            or f"; choose from {', '.join(names)}"
        )
        yield Finding(path, f"no result has the key {key}{hint}")
    elif group == "evaluation" and experiment.evaluation.interval is None:
        message = f"{key} never appears: evaluation.interval is null; evaluation.interval: 10 works"
        yield Finding(path, message)


def _check_model(experiment: ExperimentConfig) -> Iterator[Finding]:
    model = experiment.model
    memories = [name for name in MEMORY_SWITCHES if getattr(model, name)]
    if len(memories) > 1:
        message = f"there can be only one memory after the encoder; set {memories[0]} to false"
        yield Finding(("model", memories[1]), message)
    if memories and model.share_layers is False:
        message = (
            f"policy and value function share their encoder and memory with {memories[0]}; "
            "remove this key, or set it to true"
        )
        yield Finding(("model", "share_layers"), message)


def _check_env_runners(experiment: ExperimentConfig) -> Iterator[Finding]:
    settings = experiment.env_runners
    yield from _check_horizon(settings)
    mode = settings.gym_env_vectorize_mode
    restarts = experiment.fault_tolerance.restart_failed_sub_environments
    if restarts is True and mode in ("vector_entry_point", "envpool"):
        message = (
            f"with env_runners.gym_env_vectorize_mode: {mode} sub-environments are one object and "
            'cannot be rebuilt one by one; remove this key, or set the mode to "sync" or "async"'
        )
        yield Finding(("fault_tolerance", "restart_failed_sub_environments"), message)
    yield from _check_remote_envs(experiment)
    for (section, key), (connector, pipeline) in _DEFAULT_CONNECTORS.items():
        if changed_settings(getattr(experiment, section), (key,)) and not getattr(
            settings, pipeline
        ):
            message = f"{connector} is a default connector, and these are switched off"
            message += f"; env_runners.{pipeline}: true switches them on"
            yield Finding((section, key), message)


_DEFAULT_CONNECTORS = {
    ("env_runners", "observation_filter"): (
        "the filter",
        "add_default_connectors_to_env_to_module_pipeline",
    ),
    ("connectors", "clip_actions"): (
        "clipping",
        "add_default_connectors_to_module_to_env_pipeline",
    ),
}
"""Setting of a default connector -> what it is, and the switch of all default connectors."""


def _check_sample_async(experiment: ExperimentConfig) -> Iterator[Finding]:
    settings, path = experiment.env_runners, ("env_runners", "sample_async")
    if not settings.sample_async:
        return
    if getattr(algorithm_class(experiment.algorithm), "asynchronous", False):
        message = f"{experiment.algorithm} always samples while it learns; remove this key"
        yield Finding(path, message)
    elif not settings.num_env_runners:
        message = "one process cannot do both at once; set env_runners.num_env_runners to 1"
        yield Finding(path, message)


def _check_remote_envs(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Settings of sub-environments that are Ray actors."""
    settings = experiment.env_runners
    wait, mode = settings.remote_env_batch_wait_ms, settings.gym_env_vectorize_mode
    if wait is not None and not settings.remote_worker_envs:
        message = "it applies to Ray actors only; set env_runners.remote_worker_envs to true"
        yield Finding(("env_runners", "remote_env_batch_wait_ms"), message)
    if settings.remote_worker_envs and mode not in ("auto", "sync"):
        message = "env_runners.remote_worker_envs makes environments Ray actors; remove this key"
        yield Finding(("env_runners", "gym_env_vectorize_mode"), message)


def _check_gpus(experiment: ExperimentConfig) -> Iterator[Finding]:
    """GPUs for env runners, which must be Ray actors."""
    name, evaluation = "num_gpus_per_env_runner", experiment.evaluation
    settings = experiment.env_runners
    if settings.num_gpus_per_env_runner and not settings.num_env_runners:
        message = "there is no remote env runner; set num_env_runners, or remove this key"
        yield Finding(("env_runners", name), message)
    if evaluation.env_runners.get(name) and not evaluation.num_env_runners:
        message = "no remote env runner evaluates; set evaluation.num_env_runners, or remove"
        yield Finding(("evaluation", "env_runners", name), f"{message} this key")


def _check_horizon(settings: EnvRunnersConfig) -> Iterator[Finding]:
    for name in ("soft_horizon", "horizon_terminates"):
        if getattr(settings, name) and settings.horizon is None:
            message = "there is no horizon; set env_runners.horizon, or remove this key"
            yield Finding(("env_runners", name), message)
    for name in ("soft_horizon", "no_done_at_end"):
        if settings.horizon_terminates and getattr(settings, name):
            message = f"it contradicts env_runners.{name}; remove one of them"
            yield Finding(("env_runners", "horizon_terminates"), message)


_NOT_IN_EVALUATION = {
    "num_env_runners": "set evaluation.num_env_runners instead",
    "num_envs_per_env_runner": "set evaluation.num_envs instead",
    "sample_async": "set evaluation.parallel_to_training instead",
    "explore": "set evaluation.explore instead",
    "remote_env_batch_wait_ms": "evaluation waits for all sub-environments; remove this key",
    **dict.fromkeys(
        (
            "env_runner_cls",
            "env_to_module_connector",
            "module_to_env_connector",
            "add_default_connectors_to_env_to_module_pipeline",
            "add_default_connectors_to_module_to_env_pipeline",
            "preprocessor_pref",
            "observation_filter",
        ),
        "evaluation always uses the setting of training; remove this key",
    ),
    **{name: f"{reason}; remove this key" for name, reason in UNREAD_IN_EVALUATION.items()},
}
"""Settings of `env_runners` that `evaluation.env_runners` cannot have -> what to do instead."""


def _check_evaluation(experiment: ExperimentConfig) -> Iterator[Finding]:
    evaluation, path = experiment.evaluation, ("evaluation", "env_runners")
    if evaluation.parallel_to_training and not evaluation.num_env_runners:
        message = "one process cannot train and evaluate at once; set evaluation.num_env_runners to"
        yield Finding(("evaluation", "parallel_to_training"), f"{message} 1 or more")
    for name in evaluation.env_runners:
        if name in _NOT_IN_EVALUATION:
            yield Finding((*path, name), _NOT_IN_EVALUATION[name])
    if evaluation.env_runners.get("gym_env_vectorize_mode") == "vector_entry_point":
        message = "the environment's own vectorisation cannot seed single episodes; remove this key"
        yield Finding((*path, "gym_env_vectorize_mode"), message)
    merged = {**dict(experiment.env_runners), **evaluation.env_runners}
    for finding in validated(EnvRunnersConfig, merged, ("env_runners",), None)[1]:
        yield Finding(("evaluation", *finding.path), finding.message)


def _check_learners(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Whether updates can be recorded, the algorithm can use several learners, and resources."""
    learners = experiment.learners
    models = [settings.model for _, settings in addressed_settings(experiment)]
    used = [f"model.{x}" for x in MEMORY_SWITCHES if any(getattr(model, x) for model in models)]
    others = [*used, *(["learners.compile"] if learners.compile else [])]
    if learners.cuda_graphs and (others or learners.device == "cpu"):
        why = "makes updates that cannot be recorded" if others else "is a CPU, which has no graphs"
        message = f"{others[0] if others else 'learners.device'} {why}; remove this key"
        yield Finding(("learners", "cuda_graphs"), message)
    if not learners.num_learners:
        if learners.num_gpus_per_learner:
            message = "there is no remote learner; set num_learners, or remove this key"
            yield Finding(("learners", "num_gpus_per_learner"), message)
        return
    if learners.device.startswith("cuda"):
        message = "a remote learner uses a GPU that Ray reserves for it; set num_gpus_per_learner"
        yield Finding(("learners", "device"), f"{message} instead")
    if learners.cuda_graphs and not learners.num_gpus_per_learner:
        message = "no learner has a GPU; set num_gpus_per_learner, or remove this key"
        yield Finding(("learners", "cuda_graphs"), message)
    if not getattr(algorithm_class(experiment.algorithm), "several_learners", False):
        message = f"{experiment.algorithm} learns in one process; set it to 0"
        yield Finding(("learners", "num_learners"), message)
    gpus = learners.num_gpus_per_learner
    if gpus > 1:
        message = f"a learner uses at most one GPU, not {gpus:g}; set it to 1, and raise"
        yield Finding(("learners", "num_gpus_per_learner"), f"{message} num_learners instead")


def _check_rules(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Sections that the algorithm does not use, and its own rules."""
    algorithm = algorithm_class(experiment.algorithm)
    for name in changed_settings(experiment, OPTIONAL_SECTIONS):
        yield from _check_section_is_used(experiment, (name,))
    validate = getattr(algorithm, "validate", None)
    own = _custom_policies(experiment)
    for key, message in validate(experiment) if validate is not None else ():
        path = tuple(key.split("."))
        if not own or path[0] != "training" or path[1] in _OF_CUSTOM_POLICIES:
            yield Finding(path, message)


def _check_section_is_used(experiment: ExperimentConfig, path: Path) -> Iterator[Finding]:
    used = getattr(algorithm_class(experiment.algorithm), "optional_sections", ())
    if path[-1] in OPTIONAL_SECTIONS and path[-1] not in used:
        yield Finding(path, f"{experiment.algorithm} does not use this section; remove it")


def _check_multi_agent(experiment: ExperimentConfig) -> Iterator[Finding]:
    multi_agent = experiment.multi_agent
    if not multi_agent.policies:
        # With one agent either unit counts the same.
        if multi_agent != MultiAgentConfig(count_steps_by=multi_agent.count_steps_by):
            message = "no policies; `policies: [a, b]` would name two"
            yield Finding(("multi_agent", "policies"), message)
        if experiment.evaluation.agents is not None:
            yield Finding(("evaluation", "agents"), "there is only one agent; remove this key")
        return
    if not getattr(algorithm_class(experiment.algorithm), "trains_several_policies", False):
        message = (
            f"{experiment.algorithm} learns one policy; PPO, for example, learns several, and so "
            "does a class of yours that says trains_several_policies = True"
        )
        yield Finding(("multi_agent",), message)
    if experiment.env_runners.gym_env_vectorize_mode == "vector_entry_point":
        message = 'it needs an environment of one agent; remove this key, or set it to "async"'
        yield Finding(("env_runners", "gym_env_vectorize_mode"), message)
    yield from _check_policy_ids(experiment)
    for policy_id in multi_agent.policies:
        yield from _check_policy(experiment, policy_id)
    yield from check_settings_of_policies(experiment)
    if experiment.report.min_train_timesteps_per_iteration and not policies_that_learn(multi_agent):
        message = "no policy learns, so that no iteration would end; remove this key"
        yield Finding(("report", "min_train_timesteps_per_iteration"), message)


def _check_custom_policy(experiment: ExperimentConfig) -> Iterator[Finding]:
    """The custom policy of a single agent."""
    if experiment.policy is not None:
        if experiment.multi_agent.policies:
            message = "with several policies each has its own; name it in multi_agent.policies.<id>"
            yield Finding(("policy",), f"{message}.use")
            return
        if not getattr(algorithm_class(experiment.algorithm), "trains_several_policies", False):
            message = f"{experiment.algorithm} takes no custom policy; PG, for example, does"
            yield Finding(("policy",), message)
    yield from _check_beside_custom_policies(experiment)


def _custom_policies(experiment: ExperimentConfig) -> list[str]:
    """Import paths of the policies, each once, if all are custom ones; else empty."""
    policies = experiment.multi_agent.policies.values()
    uses = {policy.use: None for policy in policies}
    if experiment.policy is not None:
        uses = {experiment.policy.use: None}
    return [] if None in uses else [use for use in uses if use is not None]


def _check_beside_custom_policies(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Settings without effect if all policies are custom ones."""
    uses = _custom_policies(experiment)
    if not uses:
        return
    named, training = " and ".join(uses), experiment.training
    one = "is not a network of rlrun; write its arguments", "learns by its own"
    several = "are not networks of rlrun; write their arguments", "learn by their own"
    are_none, learn = one if len(uses) == 1 else several
    for name in changed_settings(experiment, ("model", "exploration", "replay", "learners")):
        yield Finding((name,), f"{named} {are_none} beside `use`")
    for name in changed_settings(training, type(training).model_fields):
        if name not in _OF_CUSTOM_POLICIES:
            message = f"{named} {learn} learn_on_batch(); remove this key"
            yield Finding(("training", name), message)


def _check_policy_ids(experiment: ExperimentConfig) -> Iterator[Finding]:
    multi_agent, policies = experiment.multi_agent, experiment.multi_agent.policies
    for policy_id in policies:
        if not policy_id or "/" in policy_id:
            message = f"a policy id must not be empty or contain a slash, got {policy_id!r}"
            yield Finding(("multi_agent", "policies", policy_id), message)
    named: dict[Path, Any] = {}
    if isinstance(multi_agent.policies_to_train, tuple):
        for i, policy_id in enumerate(multi_agent.policies_to_train):
            named["multi_agent", "policies_to_train", i] = policy_id
    for section in ("multi_agent", "evaluation"):
        agents = getattr(experiment, section).agents
        if isinstance(agents, dict) and "use" not in agents:
            named |= {(section, "agents", agent): policy for agent, policy in agents.items()}
    for path, policy_id in named.items():
        if policy_id not in policies:
            yield Finding(path, no_such("policy", str(policy_id), policies))


def check_settings_of_policies(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Unknown keys and wrong values in the settings of single policies."""
    for policy_id, policy in experiment.multi_agent.policies.items():
        path: Path = ("multi_agent", "policies", policy_id)
        for name in () if policy.use else _OF_POLICIES:
            common, own = getattr(experiment, name), getattr(policy, name)
            training = type(common) if isinstance(common, TrainingConfig) else None
            laid_over = {**dict(common), **own} if own else common
            for finding in validated(type(common), laid_over, (name,), training)[1]:
                yield Finding((*path, *finding.path), finding.message)


def _check_policy(experiment: ExperimentConfig, policy_id: str) -> Iterator[Finding]:
    policy = experiment.multi_agent.policies[policy_id]
    path: Path = ("multi_agent", "policies", policy_id)
    for name in _COMMON_TO_POLICIES:
        if name in policy.training:
            message = "the same for all policies; it belongs to training"
            yield Finding((*path, "training", name), message)
    for name in _OF_POLICIES:
        if getattr(policy, name) and policy.use is not None:
            message = f"{policy.use} is not a network of rlrun; write its arguments beside `use`"
            yield Finding((*path, name), message)
        elif getattr(policy, name):
            yield from _check_section_is_used(experiment, (*path, name))


def most_iterations(experiment: ExperimentConfig) -> int | None:
    """Iterations after which the run ends at the latest, if its settings limit them."""
    limits = []
    if "training_iteration" in experiment.stop:
        limits.append(experiment.stop["training_iteration"])
    if "env_steps" in experiment.stop and not experiment.report.min_sample_timesteps_per_iteration:
        limits.append(-(-experiment.stop["env_steps"] // experiment.training.train_batch_size))
    return max(1, int(min(limits))) if limits else None
