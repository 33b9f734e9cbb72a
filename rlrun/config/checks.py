"""Relations between the fields of an experiment, looked at before anything starts.

Owns: the checks that hold for every algorithm; each shows its arithmetic and names a setting that
works. What only one algorithm asks for comes from its class's `validate`. Must not know: the
machine (CPUs and GPUs are counted when a run starts).
"""

from collections.abc import Iterator

from rlrun.config import retired
from rlrun.config.problems import Path
from rlrun.config.registry import ALGORITHMS, algorithm_class, suggestion
from rlrun.config.schema import (
    MEMORY_SWITCHES,
    ExperimentConfig,
    ExplorationConfig,
    ReplayConfig,
)
from rlrun.config.validate import Finding

RESULT_KEYS = (
    "training_iteration",
    "env_steps",
    "agent_steps",
    "env_steps_this_iter",
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
OPTIONAL_SECTIONS = {"exploration": ExplorationConfig(), "replay": ReplayConfig()}
"""Sections that only some algorithms use, and what they are where nobody mentions them."""

RESULT_GROUPS = ("env_runners", "learners", "evaluation", "timers")


def check_result_keys(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Result keys that no result of this experiment has."""
    for key in experiment.stop:
        yield from check_result_key(experiment, ("stop", key), key)
    metric = experiment.checkpoint.metric
    yield from check_result_key(experiment, ("checkpoint", "metric"), metric)


def check_result_key(experiment: ExperimentConfig, path: Path, key: str) -> Iterator[Finding]:
    """What is wrong with one result key, named at `path`."""
    successor = retired.STOP_KEYS.get(key)
    group, slash, _ = key.partition("/")
    known = key in RESULT_KEYS or (slash and group in RESULT_GROUPS)
    if successor is not None:
        yield Finding(path, f"retired result key {key}; its successor is {successor}")
    elif not known and not _adds_result_keys(experiment):
        names = [*RESULT_KEYS, *(f"{name}/..." for name in RESULT_GROUPS)]
        hint = suggestion(key, names) or f"; there is {', '.join(names)}"
        yield Finding(path, f"no result has the key {key}{hint}")
    elif group == "evaluation" and experiment.evaluation.interval is None:
        message = f"{key} never appears: evaluation.interval is null; evaluation.interval: 10 works"
        yield Finding(path, message)


def _adds_result_keys(experiment: ExperimentConfig) -> bool:
    """Callbacks and algorithms of the user's own may put further keys into the result."""
    return bool(experiment.callbacks) or experiment.algorithm not in ALGORITHMS


def check_model(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Settings of the networks that contradict each other."""
    model = experiment.model
    memories = [name for name in MEMORY_SWITCHES if getattr(model, name)]
    if len(memories) > 1:
        message = f"only one memory can stand behind the encoder; set {memories[0]} to false"
        yield Finding(("model", memories[1]), message)
    if memories and model.share_layers is False:
        message = (
            f"policy and value function share their encoder and memory with {memories[0]}; "
            "leave it out, or set it to true"
        )
        yield Finding(("model", "share_layers"), message)


def check_horizon(experiment: ExperimentConfig) -> Iterator[Finding]:
    """A soft horizon must be somewhere."""
    settings = experiment.env_runners
    if settings.soft_horizon and settings.horizon is None:
        message = "there is no horizon to be soft; set env_runners.horizon, or leave this out"
        yield Finding(("env_runners", "soft_horizon"), message)


def check_connectors(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Settings of default connectors that are switched off."""
    settings = experiment.env_runners
    if settings.observation_filter != "NoFilter" and (
        not settings.add_default_connectors_to_env_to_module_pipeline
    ):
        message = (
            "the filter is a default connector, and those are switched off: "
            "add_default_connectors_to_env_to_module_pipeline: true switches them on"
        )
        yield Finding(("env_runners", "observation_filter"), message)
    if experiment.connectors.clip_actions and (
        not settings.add_default_connectors_to_module_to_env_pipeline
    ):
        message = (
            "clipping is a default connector, and those are switched off: "
            "env_runners.add_default_connectors_to_module_to_env_pipeline: true switches them on"
        )
        yield Finding(("connectors", "clip_actions"), message)


def check_learners(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Whether the algorithm can learn with several learners, and where these are to run."""
    learners = experiment.learners
    if not learners.num_learners:
        for name in ("num_cpus_per_learner", "num_gpus_per_learner"):
            if getattr(learners, name) != type(learners).model_fields[name].default:
                message = "there is no learner to give it to; set num_learners, or leave it out"
                yield Finding(("learners", name), message)
        return
    if not getattr(algorithm_class(experiment.algorithm), "several_learners", False):
        message = f"{experiment.algorithm} learns in one process; set it to 0"
        yield Finding(("learners", "num_learners"), message)
    gpus = learners.num_gpus_per_learner
    if gpus > 1:
        message = f"a learner uses one GPU at most, not {gpus:g}; set it to 1 and num_learners to"
        yield Finding(("learners", "num_gpus_per_learner"), f"{message} more")


def check_algorithm(experiment: ExperimentConfig) -> Iterator[Finding]:
    """What the algorithm itself says about its settings."""
    algorithm = algorithm_class(experiment.algorithm)
    for name, default in OPTIONAL_SECTIONS.items():
        given = getattr(experiment, name)
        if given != default and name not in getattr(algorithm, "optional_sections", ()):
            message = f"{experiment.algorithm} does not use this section; leave it out"
            yield Finding((name,), message)
    validate = getattr(algorithm, "validate", None)
    if validate is None:
        return
    for key, message in validate(experiment):
        yield Finding(tuple(key.split(".")), message)


def warnings(experiment: ExperimentConfig) -> Iterator[Finding]:
    """What is allowed and probably not meant."""
    if not experiment.stop:
        message = "no criterion: the run goes on until it is interrupted; stop: {env_steps: 1e6}"
        yield Finding(("stop",), message)
    batch = experiment.training.train_batch_size
    env_steps = experiment.stop.get("env_steps")
    if env_steps is not None and env_steps < batch:
        message = (
            f"{env_steps:,.0f} env steps are less than one iteration, training.train_batch_size = "
            f"{batch:,}: the run ends after that one"
        )
        yield Finding(("stop", "env_steps"), message)
    iterations = most_iterations(experiment)
    for section, name, every in (
        ("checkpoint", "every", experiment.checkpoint.every),
        ("evaluation", "interval", experiment.evaluation.interval),
    ):
        if iterations is not None and every is not None and every > iterations:
            message = f"every {every} iterations is never: the run ends after {iterations}"
            yield Finding((section, name), f"{message}; {name}: {iterations} works")


def most_iterations(experiment: ExperimentConfig) -> int | None:
    """Iterations after which the run ends at the latest, where its settings say so."""
    limits = []
    if "training_iteration" in experiment.stop:
        limits.append(experiment.stop["training_iteration"])
    if "env_steps" in experiment.stop and not experiment.report.min_sample_timesteps_per_iteration:
        limits.append(-(-experiment.stop["env_steps"] // experiment.training.train_batch_size))
    return max(1, int(min(limits))) if limits else None
