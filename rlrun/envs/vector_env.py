"""Makes the vector environment that a config asks for.

The default is in `serial_vector_env`, adapters for gymnasium's own vector environments in
`native_vector_env`. Knows nothing of policies, batches, connectors or Ray.

    B  number of sub-environments (copies of the environment)
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium

from rlrun.config.problems import misfit
from rlrun.data.seeding import OwnGenerators
from rlrun.envs import native_vector_env as native
from rlrun.envs.env import EnvContext, check_env, make_env, random_action
from rlrun.envs.env_process import ParallelSubEnvs, ProcessEnv, ProxyMaker
from rlrun.envs.env_state import offers_state, state_problem
from rlrun.envs.episode_vector_env import EpisodeVectorEnv
from rlrun.envs.errors import EnvError
from rlrun.envs.multi_agent_env import Copies, SubEnvs, check_multi_agent_env, make_multi_agent_env
from rlrun.envs.multi_agent_vector_env import raise_time_limits
from rlrun.envs.rebuilder import Rebuilder
from rlrun.envs.serial_vector_env import ParallelVectorEnv, SerialVectorEnv
from rlrun.envs.watchdog import close_in_time
from rlrun.envs.wrappers import InfoActionMask, find_wrappers

if TYPE_CHECKING:
    from rlrun.config.schema import EnvRunnersConfig, EnvSpec

_log = logging.getLogger(__name__)

_Created = Callable[[int, Any], None]


def make_vector_env(
    spec: EnvSpec,
    num_envs: int,
    settings: EnvRunnersConfig,
    context: EnvContext | None = None,
    *,
    render_mode: str | None = None,
    rebuilder: Rebuilder | None = None,
    created: _Created | None = None,
    env_timeout_s: float | None = None,
) -> EpisodeVectorEnv:
    """Build ``num_envs`` sub-environments of the environment that ``spec`` names.

    Args:
        spec: the environment; its function may also return a gymnasium vector environment.
        num_envs: B.
        settings: read are ``gym_env_vectorize_mode`` ("auto" and "sync" step the sub-environments
            one after the other in this process, "async" in a process each, "vector_entry_point" is
            the environment's own vectorisation, "envpool" is EnvPool's environment of that name),
            ``env_wrappers``, ``preprocessor_pref`` and ``disable_env_checking``. The check also
            finds out whether infos have an ``action_mask``; it is then added to the observations.
        context: the constructors' `EnvContext`, except for the index of the sub-environment.
        render_mode: passed to each sub-environment.
        rebuilder: rebuilds sub-environments that raise or whose process ends; not used for
            environments that are vectors themselves.
        created: called with the index and the environment of each sub-environment, whenever it is
            built; for sub-environments in this process that are not a vector environment.
        env_timeout_s: limit of each call in other processes; see `end_late_calls` for this one.

    Raises:
        EnvError: for every failure, with the environment's name and the user's traceback.
    """
    place = EnvContext(spec.kwargs) if context is None else copy.copy(context)
    mode = settings.gym_env_vectorize_mode
    if mode == "vector_entry_point":
        return native.from_entry_point(spec, num_envs, place, render_mode)
    if mode == "envpool":
        return _from_envpool(spec, num_envs, settings, place, render_mode)
    wrappers, pref = find_wrappers(settings.env_wrappers), settings.preprocessor_pref
    draws_elsewhere = masked = False

    def finished(env: Any) -> Any:
        env = InfoActionMask(env) if masked else env
        return OwnGenerators(env) if draws_elsewhere else env

    def make(env_index: int) -> Any:
        own = place.for_sub_env(env_index)
        env = make_env(
            spec, own, render_mode, num_envs=num_envs, preprocessor_pref=pref, wrappers=wrappers
        )
        raise_time_limits(env, settings)
        return finished(env)

    first = make(0)
    if not isinstance(first, gymnasium.Env):
        _refuse_of_vector(spec.use, rebuilder, created)
        return native.adapt(first, spec.use, num_envs)
    check = not settings.disable_env_checking
    if check:
        draws_elsewhere, masked = check_env(first, spec.use)
        first = finished(first)
    offered = _relies_on_state(first, spec.use, settings, place)
    kind = SerialVectorEnv if _elsewhere(settings) is None else ParallelVectorEnv
    envs, rebuild = _all_of(first, make, num_envs, settings, spec.use, created, env_timeout_s)
    return kind(
        envs, spec.use, make=rebuild, check=check, rebuilder=rebuilder, offers_state=offered
    )


def _all_of(
    first: Any,
    make: Callable[[int], Any],
    num_envs: int,
    settings: EnvRunnersConfig,
    env_id: str,
    created: _Created | None,
    env_timeout_s: float | None,
) -> tuple[list[Any], Callable[[int], Any]]:
    """All sub-environments, given the first, and the function that rebuilds one of them."""

    def shown(env_index: int, env: Any = None) -> Any:
        env = make(env_index) if env is None else env
        if created is not None:
            created(env_index, env)
        return env

    kind = _elsewhere(settings)
    if kind is None:
        return [shown(0, first), *map(shown, range(1, num_envs))], shown
    close_in_time(first.close)
    maker = ProxyMaker(kind, shown, env_id, env_timeout_s)
    return list(maker.all(num_envs)), maker


def _relies_on_state(env: Any, env_id: str, settings: EnvRunnersConfig, place: EnvContext) -> bool:
    """Whether an environment's state reproduces its steps; warns if one is offered but does not.

    Only training is resumed in the middle of episodes.
    """
    offered = offers_state(env)
    if not place.training or not (offered or offers_state(getattr(env, "unwrapped", None))):
        return False
    if offered and settings.disable_env_checking:
        return True
    several = not isinstance(env, gymnasium.Env)

    def choose_action(observation: Any, seed: int) -> Any:
        if not several:
            return random_action(env.action_space, observation, seed=seed)
        places = env.action_spaces.items()
        return {
            agent: random_action(space, observation[agent], seed=seed)
            for agent, space in places
            if agent in observation
        }

    def is_over(stepped: Any) -> bool:
        flags = stepped[2:4]
        return any(any(part.values()) for part in flags) if several else any(flags)

    if isinstance(env, OwnGenerators):
        problem: str | None = (
            "it draws from global generators or its spaces, which are not part of its state"
        )
    else:
        problem = state_problem(env, choose_action, is_over)
    if problem is not None:
        _log.warning(
            "%s has get_state() and set_state(), which are not used: %s. A resumed run repeats the "
            "actions of its running episodes",
            env_id,
            problem,
        )
    return problem is None


def _refuse_of_vector(env_id: str, rebuilder: Rebuilder | None, created: _Created | None) -> None:
    """Raise if the settings need single environments, which a vector environment does not have."""
    if rebuilder is not None and rebuilder.when is True:
        message = "sub-environments of a vector cannot be rebuilt one by one; set it to auto"
        raise misfit("fault_tolerance.restart_failed_sub_environments", message)
    if created is not None:
        reason = "it is a vector environment, without objects for on_sub_environment_created; "
        reason += "on_environment_created receives the vector"
        raise EnvError(env_id, "constructor", reason)


def make_sub_envs(
    spec: EnvSpec,
    num_envs: int,
    settings: EnvRunnersConfig,
    place: EnvContext,
    *,
    several: bool = True,
    render_mode: str | None = None,
    created: _Created | None = None,
    env_timeout_s: float | None = None,
) -> SubEnvs:
    """Build ``num_envs`` sub-environments with agents that join and leave.

    Args:
        spec, settings, place, render_mode, created, env_timeout_s: see `make_vector_env`.
        several: whether the environment has several agents; else its one agent becomes "agent_0".

    Raises:
        EnvError: for every failure, with the environment's name and the user's traceback.
    """
    draws_elsewhere = masked = False
    wrappers, pref = find_wrappers(settings.env_wrappers), settings.preprocessor_pref

    def make_single(own: EnvContext) -> Any:
        env = make_env(spec, own, render_mode, preprocessor_pref=pref, wrappers=wrappers)
        return InfoActionMask(env) if masked else env

    def finished(env: Any) -> Any:
        return OwnGenerators(env) if draws_elsewhere else env

    def make(env_index: int) -> Any:
        own = place.for_sub_env(env_index)
        if several:
            env = make_multi_agent_env(spec, own, render_mode, wrappers)
        else:
            env = Copies(lambda: make_single(own), 1)
        raise_time_limits(env, settings)
        return finished(env)

    first = make(0)
    if not settings.disable_env_checking:
        if not several:
            (env,) = first.copies.values()
            masked = check_env(env, spec.use).has_info_mask
            close_in_time(first.close)
            first = make(0)
        draws_elsewhere = check_multi_agent_env(first, spec.use)
        first = finished(first)
    offered = _relies_on_state(first, spec.use, settings, place)
    envs, rebuild = _all_of(first, make, num_envs, settings, spec.use, created, env_timeout_s)
    kind, wait_ms = _elsewhere(settings), settings.remote_env_batch_wait_ms
    if kind is None:
        return SubEnvs(envs, rebuild, offers_state=offered)
    wait = None if wait_ms is None else partial(kind.ready, wait_s=wait_ms / 1000)
    return ParallelSubEnvs(envs, rebuild, wait, offers_state=offered)


def _elsewhere(settings: EnvRunnersConfig) -> Any:
    """The class of proxies for sub-environments outside this process; None for none."""
    if settings.remote_worker_envs:
        from rlrun.envs.remote_env import RemoteEnv

        return RemoteEnv
    return ProcessEnv if settings.gym_env_vectorize_mode == "async" else None


def _from_envpool(
    spec: EnvSpec,
    num_envs: int,
    settings: EnvRunnersConfig,
    place: EnvContext,
    render_mode: str | None,
) -> EpisodeVectorEnv:
    """One pool for all sub-environments; in evaluation one for each, to seed each episode."""
    from rlrun.envs.envpool_env import PooledVectorEnv, PoolSubEnv, pool_maker

    make, check = pool_maker(spec, settings, place, render_mode), not settings.disable_env_checking
    if place.training:
        return PooledVectorEnv(make, num_envs, check=check)
    sub_envs = [PoolSubEnv(make) for _ in range(num_envs)]
    return SerialVectorEnv(sub_envs, spec.use, check=check)
