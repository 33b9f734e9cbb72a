"""Checks of the code that a config names: whether it exists, and takes its arguments.

Owns: import paths and arguments of policies, networks, connectors, callbacks and sinks, checked by
signature: nothing is constructed. Must not know: environments (env_checks.py), nor what the code
does with its arguments.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

from rlrun.config import registry, retired
from rlrun.config.layers import AGENTS
from rlrun.config.policies import PolicySettings, addressed_settings
from rlrun.config.problems import Finding, Path, join
from rlrun.config.registry import ImportPathError, import_object, nearest, suggestion
from rlrun.config.schema import (
    MEMORY_SWITCHES,
    EnvRunnersConfig,
    ExperimentConfig,
    ExplorationConfig,
    ExplorationType,
    ModelConfig,
    MultiAgentConfig,
    TrainingConfig,
    UseSpec,
)
from rlrun.config.validate import validated

_GIVEN_TO_SINKS = ("run_dir",)
_GIVEN_TO_CONNECTORS = {
    "env_to_module_connector": ("env", "seed"),
    "module_to_env_connector": ("env", "seed", "module"),
}

_NOT_AS_WRAPPERS = {
    **registry.INSTEAD_OF_STATISTICS,
    "Autoreset": "env runners reset environments; remove it",
    "RecordVideo": "`rlrun rollout RUN --video DIR` records videos; remove it",
    "HumanRendering": "`rlrun rollout RUN --render` shows the environment; remove it",
    "vector": "it is a module",
}
"""Names of gymnasium.wrappers that cannot be used here -> what to do instead."""

_BASES = {
    "environment": (
        "gymnasium.core.Env",
        "gymnasium.vector.vector_env.VectorEnv",
        "rlrun.envs.multi_agent_env.MultiAgentEnv",
    ),
    "env runner": ("rlrun.sampling.env_runner.EnvRunner",),
    "collector": ("rlrun.sampling.sample_collector.SampleCollector",),
    "connector": ("rlrun.connectors.connector.Connector",),
    "callback": ("rlrun.algorithms.callbacks.Callbacks",),
    "policy": ("rlrun.policies.policy.Policy",),
    "exploration strategy": ("rlrun.policies.exploration_strategy.ExplorationStrategy",),
    "network": ("torch.nn.modules.module.Module",),
    "sink": (),
    "wrapper": ("gymnasium.core.Wrapper", "rlrun.envs.central_state.CentralState"),
}
"""Kind of code -> base classes; classes of rlrun are of this kind if they derive from one."""

_MADE_FROM_MODEL = ("rlrun.policies.torch_policy", "rlrun.policies.numpy_policy")
"""Modules of policies whose constructors take a `ModelConfig` instead of a dict of settings."""


def check_code(experiment: ExperimentConfig) -> Iterator[Finding]:
    """All problems of the code that an experiment names, except its environment."""
    settings = experiment.env_runners
    if settings.env_runner_cls is not None:
        path: Path = ("env_runners", "env_runner_cls")
        yield from find_callable(path, settings.env_runner_cls, "env runner")[1]
    yield from _check_collector(experiment)
    yield from _check_wrappers(experiment)
    yield from _check_model(experiment.model)
    for prefix, networks in addressed_settings(experiment):
        address: Path = tuple(part for part in prefix.split(".") if part)
        yield from _check_distribution(experiment, networks, address)
        yield from _check_exploration(networks.exploration, (*address, "exploration", "type"))
        yield from _check_training(networks.training, (*address, "training"))
    for name, given in _GIVEN_TO_CONNECTORS.items():
        for i, connector in enumerate(getattr(settings, name)):
            yield from _check_use(("env_runners", name, i), connector, "connector", given=given)
    for i, callback in enumerate(experiment.callbacks):
        yield from _check_callback(("callbacks", i), callback, experiment)
    for i, sink in enumerate(experiment.report.sinks):
        yield from _check_sink(("report", "sinks", i), sink)
    if experiment.policy is not None:
        yield from _check_custom_policy(("policy",), experiment.policy.use)
    yield from _check_policies(experiment.multi_agent)
    for path in AGENTS:
        yield from _check_agents(path, getattr(experiment, path[0]).agents)


def _check_collector(experiment: ExperimentConfig) -> Iterator[Finding]:
    settings = experiment.env_runners
    collector, path = settings.sample_collector, ("env_runners", "sample_collector")
    if collector is None or collector in registry.COLLECTORS:
        return
    yield from _check_name(path, collector, tuple(registry.COLLECTORS), "collector")
    alone = settings.remote_env_batch_wait_ms is not None  # sub-environments do not wait
    own = find_callable(path, collector, "collector")[0]
    columnar = import_object(registry.COLLECTORS[registry.DEFAULT_COLLECTOR])
    is_columnar = isinstance(own, type) and issubclass(own, columnar)
    if is_columnar and (experiment.multi_agent.policies or alone):
        message = f"{collector} needs slots that all act together, which these do not"
        yield Finding(path, f"{message}; derive it from SimpleListCollector or SampleCollector")


def _check_wrappers(experiment: ExperimentConfig) -> Iterator[Finding]:
    """The wrappers of environments, in training and in evaluation."""
    settings, own = experiment.env_runners, experiment.evaluation.env_runners
    yield from _check_wrappers_of(experiment, settings, ("env_runners", "env_wrappers"))
    if {"env_wrappers", "gym_env_vectorize_mode"}.intersection(own):
        merged, findings = validated(EnvRunnersConfig, {**dict(settings), **own}, (), None)
        if not findings and (merged.env_wrappers or "env_wrappers" in own):
            path = ("evaluation", "env_runners", "env_wrappers")
            yield from _check_wrappers_of(experiment, merged, path)


def _check_wrappers_of(
    experiment: ExperimentConfig, settings: EnvRunnersConfig, path: Path
) -> Iterator[Finding]:
    mode = settings.gym_env_vectorize_mode
    if settings.env_wrappers and mode in ("envpool", "vector_entry_point"):
        message = f"env_runners.gym_env_vectorize_mode: {mode} has no single environments"
        yield Finding(path, f"{message} to wrap; remove one of them")
    import gymnasium.wrappers

    names = [name for name in gymnasium.wrappers.__all__ if name not in _NOT_AS_WRAPPERS]
    for i, wrapper in enumerate(settings.env_wrappers):
        name = wrapper.use.removeprefix("gymnasium.wrappers:")
        if name in _NOT_AS_WRAPPERS:
            yield Finding((*path, i), f"{name} cannot be used here: {_NOT_AS_WRAPPERS[name]}")
        elif not registry.is_import_path(wrapper.use) and name not in names:
            expected = 'expected a name of gymnasium.wrappers or "package.module:Wrapper"'
            near = suggestion(name, names)
            yield Finding((*path, i), f"{expected}, got {wrapper.use!r}{near}")
        elif experiment.multi_agent.policies and name in names:
            message = f"gymnasium's {name} wraps environments with one agent, but this has several"
            yield Finding((*path, i), message)
        else:
            spec = UseSpec(use=registry.wrapper_path(wrapper.use), kwargs=wrapper.kwargs)
            yield from _check_use((*path, i), spec, "wrapper", positional=lambda _: 1)


def _check_sink(path: Path, sink: UseSpec) -> Iterator[Finding]:
    """A sink by name, whose package is there, or code."""
    if sink.use in registry.LOGGERS:
        if sink.use != "csv" and not registry.is_installed(sink.use):
            yield Finding(path, f"{sink.use} is not installed: pip install {sink.use}")
        named = UseSpec(use=registry.LOGGERS[sink.use], kwargs=sink.kwargs)
        yield from _check_use(path, named, None, given=_GIVEN_TO_SINKS)
    elif sink.use in registry.BUILT_IN_SINKS:
        yield from (Finding(path, f"{sink.use} takes no argument {key}") for key in sink.kwargs)
    elif registry.is_import_path(sink.use):
        yield from _check_use(path, sink, "sink", given=_GIVEN_TO_SINKS)
    else:
        names = (*registry.BUILT_IN_SINKS, *registry.LOGGERS)
        yield from _check_name(path, sink.use, names, "sink")


def _check_callback(path: Path, spec: UseSpec, experiment: ExperimentConfig) -> Iterator[Finding]:
    """A callback, whose ``on_*`` methods must be ones that are called."""
    findings = list(_check_use(path, spec, "callback"))
    yield from findings
    base = import_object("rlrun.algorithms.callbacks:Callbacks")
    known = vars(base)
    found = None if findings else import_object(spec.use)
    if isinstance(found, type) and not issubclass(found, base):
        yield Finding(path, f"{spec.use} is not a subclass of rlrun.Callbacks")
    for name in dir(found) if isinstance(found, type) else ():
        if name.startswith("on_") and name not in known:
            advice = retired.CALLBACKS.get(name)
            hint = suggestion(name, known) if advice is None else f"; {advice}"
            yield Finding(path, f"{spec.use} has a method {name}, which is never called{hint}")
        elif name.startswith("on_") and not _is_called_like(getattr(found, name), known[name]):
            _, *parameters = inspect.signature(known[name]).parameters.values()
            call = ", ".join(p.name + "=..." * (p.kind is p.KEYWORD_ONLY) for p in parameters)
            yield Finding(path, f"{spec.use}.{name} cannot take its call, {name}({call})")
    name = "on_sub_environment_created"
    if getattr(found, name, known[name]) is not known[name]:
        for key in _no_sub_environments_here(experiment):
            message = f"{spec.use}.{name} is not called with {key}, which keeps sub-environments"
            yield Finding(
                path, f"{message} out of the env runner; let `env` be a function that makes it"
            )


def _is_called_like(own: Any, base: Any) -> bool:
    """Whether a method can be called like the method that it overrides."""
    parameters = inspect.signature(base).parameters.values()
    by_position = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    try:
        inspect.signature(own).bind(*by_position, **dict.fromkeys(by_name))
    except TypeError:
        return False
    return True


def _no_sub_environments_here(experiment: ExperimentConfig) -> Iterator[str]:
    """Settings with which sub-environments are in other processes, or part of a vector."""
    settings, own = experiment.env_runners, experiment.evaluation.env_runners
    sections: dict[str, Mapping[str, Any]] = {
        "env_runners": vars(settings),
        "evaluation.env_runners": own,
    }
    for section, values in sections.items():
        mode = values.get("gym_env_vectorize_mode")
        if mode in ("async", "vector_entry_point", "envpool"):
            yield f"{section}.gym_env_vectorize_mode: {mode}"
        elif values.get("remote_worker_envs"):
            yield f"{section}.remote_worker_envs"


def _check_name(
    path: Path, use: str, names: tuple[str, ...], kind: str | None
) -> Iterator[Finding]:
    """Code that is given by one of these names, or by an import path."""
    if registry.is_import_path(use):
        yield from find_callable(path, use, kind)[1]
    else:
        expected = f'expected {", ".join(names)} or "package.module:attribute"'
        yield Finding(path, f"{expected}, got {use!r}{suggestion(use, names)}")


def _check_policies(multi_agent: MultiAgentConfig) -> Iterator[Finding]:
    for policy_id, policy in multi_agent.policies.items():
        if policy.use is not None:
            yield from _check_custom_policy(("multi_agent", "policies", policy_id), policy.use)
    use, path = multi_agent.policies_to_train, ("multi_agent", "policies_to_train")
    if isinstance(use, str) and registry.is_import_path(use):
        yield from _check_called(path, use, ("policy_id", "batch"))
    elif isinstance(use, str):
        near = nearest(use, multi_agent.policies)
        hint = "" if near is None else f" - did you mean [{near}]?"
        expected = 'expected a list of policy ids or "package.module:function"'
        yield Finding(path, f"{expected}, got {use!r}{hint}")


def _check_agents(path: Path, agents: dict[str, Any] | str | None) -> Iterator[Finding]:
    """Code that chooses the policies of agents."""
    if isinstance(agents, str) or (isinstance(agents, dict) and "use" in agents):
        spec, findings = validated(UseSpec, agents, path, None)
        for finding in findings or _check_use(path, spec, None, positional=lambda _: 2):
            over_code = finding.path[:-1] == (*path, "kwargs")
            hint = f"; set {join(path)}=null first to write a table" if over_code else ""
            yield Finding(finding.path, finding.message + hint)


def _check_custom_policy(path: Path, use: str) -> Iterator[Finding]:
    """A custom policy: a subclass of `Policy` that acts, and takes the arguments of policies."""
    found, findings = find_callable(path, use, "policy")
    yield from findings
    if findings:
        return
    base = import_object("rlrun.policies.policy:Policy")
    acts, made_by = ("compute_actions", "compute_actions_from_input_dict"), found.__init__
    if not (isinstance(found, type) and issubclass(found, base)):
        yield Finding(path, f"{use} is not a subclass of rlrun.Policy")
    elif all(getattr(found, name) is getattr(base, name) for name in acts):
        yield Finding(path, f"{use} defines no compute_actions()")
    elif made_by.__module__ in _MADE_FROM_MODEL:
        message = f"{use} is made from a `model` section; derive it from rlrun.LearningPolicy"
        yield Finding(path, message)
    else:
        yield from _check_called(path, use, ("observation_space", "action_space", "config"))


def _check_model(model: ModelConfig) -> Iterator[Finding]:
    if model.use is None:
        return
    spec = UseSpec(use=model.use, kwargs=model.kwargs)
    yield from _check_use(("model",), spec, "network", positional=_positional_of_model)
    memories = [name for name in MEMORY_SWITCHES if getattr(model, name)]
    found, _ = find_callable(("model",), model.use, "network")
    if memories and found is not None and _positional_of_model(found) > 1:
        message = f"{model.use} is an RLModule, to which no memory can be added; remove this key"
        yield Finding(("model", memories[0]), message)


def _check_training(training: TrainingConfig, path: Path) -> Iterator[Finding]:
    """Code that changes train batches and losses."""
    for i, connector in enumerate(training.learner_connectors):
        place, use = (*path, "learner_connectors", i), connector.use
        for finding in _check_use(place, connector, "connector"):
            made = finding.path == place and inspect.isfunction(find_callable(place, use)[0])
            hint = "; it makes the connector: name a class whose __call__ takes the batch"
            yield replace(finding, message=finding.message + hint) if made else finding
    if training.loss is not None:
        call = ("module", "rows", "loss", "statistics")
        yield from _check_called((*path, "loss"), training.loss, call)


def _check_called(path: Path, use: str, arguments: tuple[str, ...]) -> Iterator[Finding]:
    """Whether a function exists and takes these positional arguments."""
    if not registry.is_import_path(use):
        yield Finding(path, f'expected "package.module:function", got {use!r}')
        return
    function, findings = find_callable(path, use)
    yield from findings
    if findings:
        return
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments)
    except TypeError:
        message = f"{use} is called with ({', '.join(arguments)}), but takes {signature}"
        yield Finding(path, message)


def _check_distribution(
    experiment: ExperimentConfig, settings: PolicySettings, address: Path
) -> Iterator[Finding]:
    """Whether the distribution that a model names exists, and suits the algorithm."""
    path, choice = (*address, "model", "distribution"), settings.model.distribution
    if choice is None:
        return
    names = tuple(registry.DISTRIBUTIONS)
    findings = [] if choice in names else list(_check_name(path, choice, names, None))
    yield from findings or _check_fit(experiment, settings, address)


def _check_fit(
    experiment: ExperimentConfig, settings: PolicySettings, address: Path
) -> Iterator[Finding]:
    """Whether a distribution suits the algorithm and its settings."""
    path, choice = (*address, "model", "distribution"), str(settings.model.distribution)
    kind = import_object(registry.DISTRIBUTIONS.get(choice, choice))
    try:
        algorithm = registry.algorithm_class(experiment.algorithm)
    except ImportPathError:  # which has been found
        return
    if not getattr(algorithm, "samples_distribution", True):
        message = f"{experiment.algorithm} has an action distribution of its own; remove this key"
        yield Finding(path, message)
    elif not hasattr(kind, "has_logp_gradient"):
        yield Finding(path, f"{choice} is not a subclass of rlrun.Distribution")
    elif not kind.has_logp_gradient and algorithm.training_step.__module__.startswith("rlrun."):
        message = f"log-probabilities of {choice} have no gradient"
        yield Finding(path, f"{message}, so {experiment.algorithm} cannot learn")
    elif getattr(settings.training, "kl_coeff", None) and not kind.has_kl:
        message = f"{choice} has no KL divergence; set this to 0"
        yield Finding((*address, "training", "kl_coeff"), message)
    elif kind.bounded and not experiment.connectors.normalize_actions:
        message = f"actions of {choice} are in [-1, 1] and must be stretched; remove this key"
        yield Finding(("connectors", "normalize_actions"), message)


def _check_exploration(exploration: ExplorationConfig, path: Path) -> Iterator[Finding]:
    """A strategy of the user's own: a class that is made with the action space."""
    spec, names = exploration.type, get_args(ExplorationType)
    if not isinstance(spec, UseSpec):
        return
    findings = list(_check_name(path, spec.use, names, "exploration strategy"))
    yield from findings
    if findings:
        return
    base = import_object("rlrun.policies.exploration_strategy:ExplorationStrategy")
    schedules = import_object("rlrun.policies.exploration_strategy:SCHEDULES")
    found = import_object(spec.use)
    is_strategy = isinstance(found, type) and issubclass(found, base)
    if not is_strategy:
        yield Finding(path, f"{spec.use} is not a subclass of rlrun.ExplorationStrategy")
    elif unknown := set(found.schedules).difference(schedules):
        message = f"{spec.use}.schedules names {min(unknown)!r}; choose from {', '.join(schedules)}"
        yield Finding(path, message)
    else:
        yield from check_arguments(path, spec.use, found, spec.kwargs, positional=1)


def _positional_of_model(found: Any) -> int:
    """A module gets both spaces and the section; an encoder gets only the observation space."""
    module = import_object("rlrun.policies.rl_module:RLModule")
    return 3 if isinstance(found, type) and issubclass(found, module) else 1


def _unsuitable(found: Any, kind: str | None) -> str | None:
    """Why code of Python's library or of rlrun cannot be of this kind; it is never called.

    Such a name is a mistake, or an attack: ``env: os:system``. Other code is the user's own.
    """
    while isinstance(found, functools.partial):
        found = found.func
    module = getattr(found, "__module__", None) or type(found).__module__
    home = module.partition(".")[0]
    if home in sys.stdlib_module_names:
        return "it belongs to Python's standard library"
    made = "<locals>" in getattr(found, "__qualname__", "")  # by `rlrun.make_multi_agent`
    if home != "rlrun" or kind is None or made:
        return None
    ancestors = getattr(found, "__mro__", ())
    names = [f"{ancestor.__module__}.{ancestor.__qualname__}" for ancestor in ancestors]
    return None if set(_BASES[kind]).intersection(names) else f"it is part of rlrun, but no {kind}"


def find_callable(path: Path, use: str, kind: str | None = None) -> tuple[Any, list[Finding]]:
    """The class or function at an import path, or None and the reason.

    Args:
        kind: key of `_BASES`; None for functions.
    """
    try:
        found = import_object(use)
    except ImportPathError as error:
        return None, [Finding(path, str(error))]
    if not callable(found):
        message = f"{use} is not callable: it is of type {type(found).__name__}"
        return None, [Finding(path, message)]
    if (reason := _unsuitable(found, kind)) is not None:
        return None, [Finding(path, f"{use} cannot be used here: {reason}")]
    return found, []


def _check_use(
    path: Path,
    spec: UseSpec,
    kind: str | None,
    positional: Callable[[Any], int] = lambda _: 0,
    given: tuple[str, ...] = (),
) -> Iterator[Finding]:
    """Like `check_arguments`, for code that may not exist; `positional` depends on the code."""
    found, findings = find_callable(path, spec.use, kind)
    yield from findings or check_arguments(
        path, spec.use, found, spec.kwargs, positional=positional(found), given=given
    )


def check_arguments(
    path: Path,
    name: str,
    function: Any,
    kwargs: Mapping[str, Any],
    *,
    positional: int = 0,
    given: tuple[str, ...] = (),
    further: tuple[str, ...] = (),
) -> Iterator[Finding]:
    """Arguments in `kwargs` that `function` does not take, and arguments that are missing.

    Args:
        name: name of the function, for messages.
        positional: arguments that rlrun passes before them.
        given: names of arguments that rlrun passes where the function has them.
        further: names of arguments that are removed from `kwargs` before the call.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # Callables of C extensions need not have one.
        return
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    named = named[positional:]
    names = list(dict.fromkeys([*(parameter.name for parameter in named), *further]))
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for key in kwargs:
            if key not in names and key not in given:
                message = registry.no_such_argument(name, key, names)
                yield Finding((*path, "kwargs", key), message)
    for parameter in named:
        if parameter.default is parameter.empty and parameter.name not in (*kwargs, *given):
            yield Finding(path, f"{name} needs the argument {parameter.name!r}")
