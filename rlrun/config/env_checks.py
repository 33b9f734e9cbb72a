"""Checks of the environment that a config names: whether it exists, and takes its arguments.

Owns: ids of gymnasium, PettingZoo and EnvPool, registered names, import paths, missing extras. The
libraries are extras, imported only for their own environments. Must not know: how environments
behave; none is made or stepped.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from rlrun.config import registry
from rlrun.config.code_checks import check_arguments, find_callable
from rlrun.config.policies import evaluation_env
from rlrun.config.problems import Finding
from rlrun.config.registry import ImportPathError, install_hint, nearest, suggestion
from rlrun.config.schema import EnvSpec, ExperimentConfig

_MAKE_ARGUMENTS = ("max_episode_steps", "render_mode", "disable_env_checker")
ATARI_ID = re.compile(r"^ALE/|(NoFrameskip|Deterministic)-v[04]$")
"""Ids of Atari games, whether ale_py is installed or not."""
_EXTRAS = (  # prefix of the entry point, module that it needs, extra that brings it
    ("gymnasium.envs.box2d", "Box2D", "box2d"),
    ("gymnasium.envs.mujoco", "mujoco", "mujoco"),
)
_THIRD_PARTY = {
    "minigrid": ("MiniGrid-", "BabyAI-"),
    "gymnasium-robotics": ("Fetch", "PointMaze_", "AntMaze_", "Adroit", "FrankaKitchen-"),
    "highway-env": ("highway-",),
    "flappy-bird-gymnasium": ("FlappyBird-",),
    "shimmy": ("dm_control/",),
}
"""Some packages whose ids need the form "module:Id" -> what their ids begin with."""
_CONTEXT = ("context", "env_context")
_CONFIG = ("config", "env_config")
_GIVEN = ("num_envs", "render_mode")  # What the runner adds where a creator asks for it.

_MADE_BY_PREPROCESSING = (  # argument of a game, the value that is taken, what the wrappers do
    ("frameskip", 1, "repeats each action for 4 frames itself"),
    ("obs_type", "grayscale", "makes 84 x 84 grey frames itself"),
)
_ENVPOOL_RENDERING = ("from_pixels", "render_width", "render_height", "render_camera_id")
_NOT_FOR_ENVPOOL = {
    "num_envs": "set env_runners.num_envs_per_env_runner instead",
    "batch_size": "all sub-environments of an env runner step together; remove this key",
    "seed": "its seeds come from the experiment's `seed`; remove this key",
    "env_seed": "its seeds come from the experiment's `seed`; remove this key",
    "gym_reset_return_info": "infos are always there; remove this key",
    "episodic_life": "each life would be reported as an episode of its own; remove this key",
    "reward_clip": "the reported returns would be clipped too; set connectors.clip_rewards instead",
}
"""Arguments of EnvPool that contradict other settings of the experiment."""


def check_environment(experiment: ExperimentConfig) -> Iterator[Finding]:
    """All problems of the environment of an experiment."""
    env, several = experiment.env, bool(experiment.multi_agent.policies)
    mode = experiment.env_runners.gym_env_vectorize_mode
    if mode != "envpool":
        findings = list(check_env(env, several=several))
        yield from findings
        if mode == "vector_entry_point" and not (several or findings):
            yield from _check_vector_entry_point(env)
    elif several:
        message = "EnvPool's environments have one agent; remove this key"
        yield Finding(("env_runners", "gym_env_vectorize_mode"), message)
    else:
        yield from check_envpool(env)
    yield from _check_evaluation_env(experiment)
    settings = experiment.env_runners
    if mode != "envpool" and settings.preprocessor_pref == "deepmind" and ATARI_ID.search(env.use):
        yield from _check_preprocessed_game(env)
        if settings.remote_env_batch_wait_ms is not None and not several:
            message = "Atari games step together, since a lost life does not end the episode"
            path = "env_runners", "remote_env_batch_wait_ms"
            yield Finding(path, f"{message}; remove this key")
    if env.use.startswith("pettingzoo/") and not several:
        message = f"{env.use} has several agents: name their policies, as in {{policies: [shared]}}"
        yield Finding(("multi_agent",), message)


def _check_preprocessed_game(env: EnvSpec) -> Iterator[Finding]:
    """Arguments of an Atari game that contradict DeepMind's preprocessing."""
    if not ATARI_ID.search(env.use):
        return
    for name, other, what in _MADE_BY_PREPROCESSING:
        if env.kwargs.get(name, other) != other:
            message = f"the deepmind preprocessing {what}; remove this key, or set "
            message += "env_runners.preprocessor_pref: rllib and env_wrappers of your own"
            yield Finding(("env", "kwargs", name), message)


def _check_evaluation_env(experiment: ExperimentConfig) -> Iterator[Finding]:
    evaluation = experiment.evaluation
    use = evaluation.env.get("use", "")
    if not isinstance(use, str):
        message = f"expected the name of an environment, got {use!r}"
        yield Finding(("evaluation", "env", "use"), message)
    elif evaluation.env:
        common = experiment.env_runners
        mode = evaluation.env_runners.get("gym_env_vectorize_mode", common.gym_env_vectorize_mode)
        env = evaluation_env(experiment)
        several = bool(experiment.multi_agent.policies)
        problems = [*(check_envpool(env) if mode == "envpool" else check_env(env, several=several))]
        if mode != "envpool" and common.preprocessor_pref == "deepmind":
            problems += _check_preprocessed_game(env)
        for finding in problems:
            path = tuple(part for part in finding.path if part != "kwargs")
            yield Finding(("evaluation", *path), finding.message)


def check_env(env: EnvSpec, *, several: bool = False) -> Iterator[Finding]:
    """Problems of the name or arguments of an environment outside of EnvPool."""
    if env.use in registry.ENVS:
        yield from _check_creator(env, registry.ENVS[env.use], any_name=True)
    elif env.use.startswith("pettingzoo/"):
        yield from _check_pettingzoo_id(env)
    elif env.use in registry.SHIPPED_ENVS or registry.is_import_path(env.use):
        path = registry.SHIPPED_ENVS.get(env.use, env.use)
        kind = None if path in registry.SHIPPED_ENVS.values() else "environment"
        creator, findings = find_callable(("env", "use"), path, kind)
        any_name = registry.takes_a_config(env.use, creator)
        yield from findings or _check_creator(env, creator, any_name=any_name)
    else:
        yield from _check_gymnasium_id(env)
        if several:
            message = f"{env.use} has one agent; make_multi_agent() gives it several"
            yield Finding(("multi_agent", "policies"), message)


def _check_creator(env: EnvSpec, creator: Any, *, any_name: bool) -> Iterator[Finding]:
    """A creator takes keyword arguments, or as in RLlib a single `config` that holds them all."""
    try:
        parameters = inspect.signature(creator).parameters
    except (TypeError, ValueError):
        return
    plain = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    single = [p for p in plain if p.name not in _GIVEN]
    if len(single) == 1 and single[0].name not in env.kwargs:
        required = any_name and single[0].default is single[0].empty
        if single[0].name in _CONFIG or required:
            return
    given = tuple(name for name in (*_CONTEXT, *_GIVEN) if name in parameters)
    yield from check_arguments(("env",), env.use, creator, env.kwargs, given=given)


def _missing(env: EnvSpec, module: str, extra: str) -> list[Finding]:
    """The problem of an environment whose library is not installed."""
    message = f"{env.use} needs {module}, which is not installed: {install_hint(extra)}"
    return [] if registry.is_installed(module) else [Finding(("env", "use"), message)]


def _check_pettingzoo_id(env: EnvSpec) -> Iterator[Finding]:
    if missing := _missing(env, "pettingzoo", "pettingzoo"):
        yield from missing
        return
    import pettingzoo

    known = [*pettingzoo.parallel_registry, *pettingzoo.aec_registry]
    name = env.use.removeprefix("pettingzoo/")
    if name not in known:
        message = f"PettingZoo has no environment {name!r}{suggestion(name, known)}"
        if name.startswith("mpe/"):
            module = name.removeprefix("mpe/").replace("-", "_")
            message = f"PettingZoo's MPE is the package mpe2 now: write mpe2.{module}:parallel_env"
        yield Finding(("env", "use"), message)


def _check_gymnasium_id(env: EnvSpec) -> Iterator[Finding]:
    import gymnasium

    module, _, name = env.use.rpartition(":")
    if module and ATARI_ID.search(name):
        yield Finding(("env", "use"), f"rlrun registers Atari's ids itself: write {name}")
        return
    if ATARI_ID.search(env.use):
        if missing := _missing(env, "ale_py", "atari"):
            yield from missing
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
        if str(entry_point).startswith(prefix) and (missing := _missing(env, module, extra)):
            yield from missing
            return
    try:
        is_path = isinstance(entry_point, str)
        creator = registry.import_object(entry_point) if is_path else entry_point
    except ImportPathError as error:
        yield Finding(("env", "use"), f"{env.use} cannot be made: {error}")
        return
    given, further = (*spec.kwargs, *_GIVEN), _MAKE_ARGUMENTS
    yield from check_arguments(("env",), env.use, creator, env.kwargs, given=given, further=further)


def _check_vector_entry_point(env: EnvSpec) -> Iterator[Finding]:
    import gymnasium

    try:
        found = _find_spec(gymnasium, env.use).vector_entry_point
    except Exception:  # a registered name, or an import path
        found = None
    if found is None:
        message = f"{env.use} comes with no vector environment; remove this key, or set it to sync"
        yield Finding(("env_runners", "gym_env_vectorize_mode"), message)


def _find_spec(gymnasium: Any, use: str) -> Any:
    module, colon, name = use.rpartition(":")
    if colon:  # "package:Name-v0": importing the package registers the name.
        registry.import_module(module)
    return gymnasium.spec(name)


def _unknown_id(gymnasium: Any, use: str, error: Exception) -> str:
    module, _, name = use.rpartition(":")
    third_party = next((k for k, v in _THIRD_PARTY.items() if name.startswith(v)), "")
    its_module = third_party.replace("-", "_")
    if use.startswith(":"):
        return f"the name of the module before the colon is missing, got {use!r}"
    if isinstance(error, ImportPathError):
        if registry.is_installed(module.partition(".")[0]):
            return str(error)
        package = third_party if its_module == module else module
        return f"{error}: pip install the package that brings it ({package})"
    if third_party and not module:
        hint = "" if registry.is_installed(its_module) else f" (pip install {third_party})"
        return f"{use} is an environment of {third_party}: write {its_module}:{use}{hint}"
    known = [*gymnasium.registry, *registry.SHIPPED_ENVS, *registry.ENVS]
    base = name.rpartition("-v")[0] or name
    versions = [known_id for known_id in known if known_id.rpartition("-v")[0] == base]
    near = versions[-1] if versions else registry.as_import_path(use) or nearest(name, known)
    message = f"no environment {use!r} is registered with gymnasium or register_env()"
    return message + (f" - did you mean {near}?" if near else "")


def check_envpool(env: EnvSpec) -> Iterator[Finding]:
    """Problems of the name or arguments of an environment of EnvPool."""
    if not registry.is_installed("envpool"):
        message = f"envpool is not installed: {install_hint('envpool')}"
        yield Finding(("env_runners", "gym_env_vectorize_mode"), message)
        return
    import envpool

    known = envpool.list_all_envs()
    if env.use not in known:
        message = f"EnvPool has no environment {env.use!r}{suggestion(env.use, known)}"
        yield Finding(("env", "use"), message)
        return
    wrong = list(_check_envpool_arguments(env, envpool.make_spec(env.use).config._asdict()))
    yield from wrong
    if wrong:
        return
    try:
        num_agents = envpool.make_spec(env.use, **env.kwargs).config.max_num_players
    except Exception as error:
        reason = str(error).partition("\n")[0]
        yield Finding(("env",), f"EnvPool cannot make {env.use} with these arguments: {reason}")
        return
    if num_agents > 1:
        message = f"{env.use} has {num_agents} players; only environments with one are supported"
        yield Finding(("env", "use"), message)


def _check_envpool_arguments(env: EnvSpec, defaults: dict[str, Any]) -> Iterator[Finding]:
    names = [name for name in (*defaults, *_ENVPOOL_RENDERING) if name not in _NOT_FOR_ENVPOOL]
    for key, value in env.kwargs.items():
        path = ("env", "kwargs", key)
        if key in _NOT_FOR_ENVPOOL:
            yield Finding(path, _NOT_FOR_ENVPOOL[key])
        elif key not in names:
            yield Finding(path, registry.no_such_argument(env.use, key, names))
        elif key in defaults and not _is_like(value, defaults[key]):
            expected = f"a value of the same type as the default {defaults[key]!r}"
            yield Finding(path, f"expected {expected}, got {value!r}")


def _is_like(value: Any, default: Any) -> bool:
    """Whether C++ takes ``value`` in place of ``default``; tuples are checked by EnvPool itself."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    kind: Any = {int: int, float: int | float, str: str}.get(type(default))
    return kind is None or (isinstance(value, kind) and not isinstance(value, bool))
