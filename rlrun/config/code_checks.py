"""The code that a config names: does it exist, and does it take the arguments it is given?

Owns: environment ids, import paths and constructor arguments, checked by signature: nothing is
constructed. Must not know: what the code does with them.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from rlrun.config import registry
from rlrun.config.envpool_checks import check_envpool
from rlrun.config.problems import Path
from rlrun.config.registry import ImportPathError, import_object, nearest, suggestion
from rlrun.config.schema import (
    MEMORY_SWITCHES,
    EnvSpec,
    ExperimentConfig,
    ModelConfig,
    MultiAgentConfig,
    UseSpec,
)
from rlrun.config.validate import Finding

_MAKE_ARGUMENTS = ("max_episode_steps", "render_mode", "disable_env_checker")
_ATARI_ID = re.compile(r"^ALE/|(NoFrameskip|Deterministic)-v[04]$")
_EXTRAS = (  # prefix of the entry point, module that it needs, extra that brings it
    ("gymnasium.envs.box2d", "Box2D", "box2d"),
    ("gymnasium.envs.mujoco", "mujoco", "mujoco"),
)
_CONTEXT = ("context", "env_context")
_CONFIG = ("config", "env_config")
_GIVEN_TO_ENVS = ("num_envs", "render_mode")  # What the runner adds where a creator asks for it.
_GIVEN_TO_SINKS = ("run_dir",)
_GIVEN_TO_CONNECTORS = {
    "env_to_module_connector": ("env", "seed"),
    "module_to_env_connector": ("env", "seed", "module"),
}


def check_code(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Everything that is wrong with the code that an experiment names."""
    if experiment.env_runners.gym_env_vectorize_mode == "envpool":
        yield from _check_envpool(experiment)
    else:
        yield from check_env(experiment.env)
    yield from _check_policies(experiment.multi_agent, experiment.env)
    if experiment.env_runners.env_runner_cls is not None:
        runner = UseSpec(use=experiment.env_runners.env_runner_cls)
        yield from _check_use(("env_runners", "env_runner_cls"), runner, None)
    collector = experiment.env_runners.sample_collector
    if collector is not None and collector not in registry.COLLECTORS:
        path, names = ("env_runners", "sample_collector"), tuple(registry.COLLECTORS)
        yield from _check_use(path, UseSpec(use=collector), None, names=names)
    if experiment.model.use is not None:
        model = UseSpec(use=experiment.model.use, kwargs=experiment.model.kwargs)
        yield from _check_use(("model",), model, _positional_of_model)
        yield from _check_memory(experiment.model)
    for name, given in _GIVEN_TO_CONNECTORS.items():
        for i, connector in enumerate(getattr(experiment.env_runners, name)):
            yield from _check_use(("env_runners", name, i), connector, lambda _: 0, given=given)
    for i, callback in enumerate(experiment.callbacks):
        yield from _check_use(("callbacks", i), callback, lambda _: 0)
    for i, sink in enumerate(experiment.report.sinks):
        if sink.use not in registry.SINKS:
            yield from _check_use(
                ("report", "sinks", i),
                sink,
                lambda _: 0,
                names=registry.SINKS,
                given=_GIVEN_TO_SINKS,
            )


def _check_envpool(experiment: ExperimentConfig) -> Iterator[Finding]:
    if experiment.multi_agent.policies:
        message = "EnvPool's environments have one agent; leave it out"
        yield Finding(("env_runners", "gym_env_vectorize_mode"), message)
    else:
        yield from check_envpool(experiment.env)


def _check_policies(multi_agent: MultiAgentConfig, env: EnvSpec) -> Iterator[Finding]:
    if env.use.startswith("pettingzoo/") and not multi_agent.policies:
        message = "has several agents: say who plays them, as in {policies: [shared]}"
        yield Finding(("multi_agent",), f"{env.use} {message}")
    for policy_id, policy in multi_agent.policies.items():
        if policy.use is not None:
            path = ("multi_agent", "policies", policy_id)
            yield from _check_use(path, UseSpec(use=policy.use), None)
    agents = multi_agent.agents
    if isinstance(agents, str) or (isinstance(agents, dict) and "use" in agents):
        choose = UseSpec.model_validate(agents)
        yield from _check_use(("multi_agent", "agents"), choose, lambda _: 2)
    if isinstance(multi_agent.policies_to_train, str):
        yield from _check_to_train(multi_agent.policies_to_train, tuple(multi_agent.policies))


def _check_to_train(use: str, policy_ids: tuple[str, ...]) -> Iterator[Finding]:
    """Text in place of the list of ids is code that takes a policy's id and a batch."""
    path = ("multi_agent", "policies_to_train")
    if not registry.is_import_path(use):
        near = nearest(use, policy_ids)
        hint = "" if near is None else f" - did you mean [{near}]?"
        expected = 'expected a list of policy ids or "package.module:function"'
        yield Finding(path, f"{expected}, got {use!r}{hint}")
        return
    findings = list(_check_use(path, UseSpec(use=use), lambda _: 2))
    yield from findings
    if findings:
        return
    signature = inspect.signature(import_object(use))
    try:
        signature.bind("policy_id", None)
    except TypeError:
        yield Finding(path, f"{use} is called with (policy_id, batch), but takes {signature}")


def _check_use(
    path: Path,
    spec: UseSpec,
    positional: Callable[[Any], int] | None,
    names: tuple[str, ...] = (),
    given: tuple[str, ...] = (),
) -> Iterator[Finding]:
    """Whether the code is there and takes its arguments.

    `positional(callable)` counts the arguments that rlrun itself passes, None skips the signature;
    those in `given` are passed by name where the callable has them.
    """
    if names and not registry.is_import_path(spec.use):
        known = ", ".join(names)
        hint = suggestion(spec.use, names)
        message = f'expected {known} or "package.module:attribute", got {spec.use!r}{hint}'
        yield Finding(path, message)
        return
    try:
        found = import_object(spec.use)
    except ImportPathError as error:
        yield Finding(path, str(error))
        return
    if not callable(found):
        yield Finding(path, f"{spec.use} cannot be called, it is of type {type(found).__name__}")
    elif positional is not None:
        count = positional(found)
        yield from check_arguments(
            path, spec.use, found, spec.kwargs, positional=count, given=given
        )


def _positional_of_model(found: Any) -> int:
    """A module gets both spaces and the section; a mere encoder gets the observation space."""
    module = import_object("rlrun.policies.rl_module:RLModule")
    return 3 if isinstance(found, type) and issubclass(found, module) else 1


def _check_memory(model: ModelConfig) -> Iterator[Finding]:
    """A memory goes around an encoder, not around a whole module."""
    memories = [name for name in MEMORY_SWITCHES if getattr(model, name)]
    if not memories or model.use is None:
        return
    try:
        whole = _positional_of_model(import_object(model.use)) > 1
    except ImportPathError:
        return  # reported already
    if whole:
        message = f"{model.use} is a whole RLModule, around which no memory goes; leave this out"
        yield Finding(("model", memories[0]), message)


def check_arguments(
    path: Path,
    name: str,
    function: Any,
    kwargs: dict[str, Any],
    *,
    positional: int = 0,
    given: tuple[str, ...] = (),
) -> Iterator[Finding]:
    """Arguments of `function` that it does not know, or that are missing.

    `positional` arguments come before them, and those in `given` from rlrun.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # Callables of C extensions need not have one.
        return
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    named = named[positional:] if positional else named
    names = [parameter.name for parameter in named]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for key in kwargs:
            if key not in names and key not in given:
                takes = ", ".join(names) or "no arguments"
                message = f"{name} takes no such argument, it takes {takes}"
                yield Finding((*path, "kwargs", key), message + suggestion(key, names))
    for parameter in named:
        if parameter.default is parameter.empty and parameter.name not in (*kwargs, *given):
            yield Finding(path, f"{name} needs the argument {parameter.name!r}")


def check_env(env: EnvSpec) -> Iterator[Finding]:
    """What is wrong with the environment's name or arguments."""
    if env.use in registry.ENVS:
        yield from _check_creator(env, registry.ENVS[env.use], any_name=True)
    elif env.use.startswith("pettingzoo/"):
        yield from _check_pettingzoo_id(env)
    elif env.use in registry.SHIPPED_ENVS or registry.is_import_path(env.use):
        try:
            creator = import_object(registry.SHIPPED_ENVS.get(env.use, env.use))
        except ImportPathError as error:
            yield Finding(("env", "use"), str(error))
            return
        if callable(creator):
            yield from _check_creator(env, creator, any_name=False)
        else:
            kind = type(creator).__name__
            yield Finding(("env", "use"), f"{env.use} cannot be called, it is of type {kind}")
    else:
        yield from _check_gymnasium_id(env)


def _check_pettingzoo_id(env: EnvSpec) -> Iterator[Finding]:
    if not registry.is_installed("pettingzoo"):
        yield Finding(("env", "use"), _missing(env.use, "pettingzoo", "pettingzoo"))
        return
    import pettingzoo

    known = [*pettingzoo.parallel_registry, *pettingzoo.aec_registry]
    name = env.use.removeprefix("pettingzoo/")
    if name not in known:
        message = f"PettingZoo has no environment {name!r}{suggestion(name, known)}"
        yield Finding(("env", "use"), message)


def _check_creator(env: EnvSpec, creator: Any, *, any_name: bool) -> Iterator[Finding]:
    """A creator takes keyword arguments, or the classical single `config` that holds them all."""
    try:
        parameters = inspect.signature(creator).parameters
    except (TypeError, ValueError):
        return
    plain = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    single = [p for p in plain if p.name not in _GIVEN_TO_ENVS]
    if len(single) == 1 and single[0].name not in env.kwargs:
        required = any_name and single[0].default is single[0].empty
        if single[0].name in _CONFIG or required:
            return
    given = tuple(name for name in (*_CONTEXT, *_GIVEN_TO_ENVS) if name in parameters)
    yield from check_arguments(("env",), env.use, creator, env.kwargs, given=given)


def _check_gymnasium_id(env: EnvSpec) -> Iterator[Finding]:
    import gymnasium

    if _ATARI_ID.search(env.use):
        if not registry.is_installed("ale_py"):
            yield Finding(("env", "use"), _missing(env.use, "ale_py", "atari"))
            return
        import ale_py

        gymnasium.register_envs(ale_py)
    try:
        spec = _find_spec(gymnasium, env.use)
    except Exception as error:
        yield Finding(("env", "use"), _unknown_id(gymnasium, env.use, error))
        return
    entry_point = spec.entry_point or spec.vector_entry_point
    for prefix, module, extra in _EXTRAS:
        if str(entry_point).startswith(prefix) and not registry.is_installed(module):
            yield Finding(("env", "use"), _missing(env.use, module, extra))
            return
    try:
        creator = import_object(entry_point) if isinstance(entry_point, str) else entry_point
    except ImportPathError as error:
        yield Finding(("env", "use"), f"{env.use} cannot be made: {error}")
        return
    own = {key: value for key, value in env.kwargs.items() if key not in _MAKE_ARGUMENTS}
    given = (*spec.kwargs, *_GIVEN_TO_ENVS)
    yield from check_arguments(("env",), env.use, creator, own, given=given)


def _find_spec(gymnasium: Any, use: str) -> Any:
    module, colon, name = use.rpartition(":")
    if colon:  # "package:Name-v0": importing the package registers the name.
        registry.import_module(module)
    return gymnasium.spec(name)


def _missing(use: str, module: str, extra: str) -> str:
    return f'{use} needs {module}, which is not installed: pip install "rlrun[{extra}]"'


def _unknown_id(gymnasium: Any, use: str, error: Exception) -> str:
    if isinstance(error, ImportPathError):
        return str(error)
    name = use.rpartition(":")[2]
    known = [*gymnasium.registry, *registry.SHIPPED_ENVS, *registry.ENVS]
    base = name.rpartition("-v")[0] or name
    versions = [known_id for known_id in known if known_id.rpartition("-v")[0] == base]
    near = versions[-1] if versions else nearest(name, known)
    reason = "gymnasium knows no such environment, and no register_env() names it"
    return f"{reason}: {use!r}" + (f" - did you mean {near}?" if near else "")
