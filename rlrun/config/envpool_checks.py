"""Whether EnvPool has the environment that a config names, and takes its arguments.

Owns: the names and arguments of `env_runners.gym_env_vectorize_mode: envpool`. EnvPool itself is an
extra, imported here only where it is asked for. Must not know: pools; nothing is stepped.
"""

from collections.abc import Iterator
from typing import Any

from rlrun.config import registry
from rlrun.config.registry import suggestion
from rlrun.config.schema import EnvSpec
from rlrun.config.validate import Finding

_RENDERING = ("from_pixels", "render_width", "render_height", "render_camera_id")
_SET_ELSEWHERE = {
    "num_envs": "set env_runners.num_envs_per_env_runner instead",
    "batch_size": "all environments of an env runner step together; leave it out",
    "seed": "its seeds come from the experiment's `seed`; leave it out",
    "env_seed": "its seeds come from the experiment's `seed`; leave it out",
    "gym_reset_return_info": "infos are always there; leave it out",
    "episodic_life": "a life's return is not the game's, and would be reported as such; "
    "games are played to their end, leave it out",
    "reward_clip": "the reported returns would be clipped too; set connectors.clip_rewards instead",
}
"""Arguments of EnvPool that would contradict what the experiment says in another place."""


def check_envpool(env: EnvSpec) -> Iterator[Finding]:
    """What is wrong with an environment that EnvPool is to make."""
    if not registry.is_installed("envpool"):
        message = 'envpool is not installed: pip install "rlrun[envpool]"'
        yield Finding(("env_runners", "gym_env_vectorize_mode"), message)
        return
    import envpool

    known = envpool.list_all_envs()
    if env.use not in known:
        message = f"EnvPool has no environment {env.use!r}{suggestion(env.use, known)}"
        yield Finding(("env", "use"), message)
        return
    wrong = list(_check_arguments(env, envpool.make_spec(env.use).config._asdict()))
    yield from wrong
    if wrong:
        return
    try:
        players = envpool.make_spec(env.use, **env.kwargs).config.max_num_players
    except Exception as error:
        reason = str(error).partition("\n")[0]
        yield Finding(("env",), f"EnvPool cannot make {env.use} with these arguments: {reason}")
        return
    if players > 1:
        yield Finding(("env", "use"), f"{env.use} has {players} players; rlrun's pools have one")


def _check_arguments(env: EnvSpec, defaults: dict[str, Any]) -> Iterator[Finding]:
    names = [name for name in (*defaults, *_RENDERING) if name not in _SET_ELSEWHERE]
    for key, value in env.kwargs.items():
        path = ("env", "kwargs", key)
        if key in _SET_ELSEWHERE:
            yield Finding(path, _SET_ELSEWHERE[key])
        elif key not in names:
            message = f"{env.use} takes no such argument, it takes {', '.join(names)}"
            yield Finding(path, message + suggestion(key, names))
        elif key in defaults and not _is_like(value, defaults[key]):
            expected = f"a value of the kind of {defaults[key]!r}, which is the default"
            yield Finding(path, f"expected {expected}, got {value!r}")


def _is_like(value: Any, default: Any) -> bool:
    """Whether C++ takes ``value`` where ``default`` stands; of tuples it says so itself."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, int):
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, str) if isinstance(default, str) else True
