"""Starting and stopping Ray, and whether a machine or cluster can hold what an experiment asks for.

Owns everything that is special about Ray as a process: its start-up settings, what its workers find
in their environment, and the comparison of resources before anything starts. Knows nothing of
runners. With ``num_env_runners: 0`` none of this is imported.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import resource
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.actors.ray_changes import signals_wait, single_machine
from rlrun.actors.session_folder import SessionFolder
from rlrun.config.problems import InputError

if TYPE_CHECKING:
    from rlrun.config.schema import EnvRunnersConfig, LearnersConfig

_OBJECT_STORE_BYTES = 256 * 2**20  # of a local Ray: fragments and weights, a few in flight
STACK_SIGNAL = signal.SIGUSR2
"""Signal that makes a worker write its stack to stderr."""
_STACK_S = 0.3  # that it has for it
_LEAST_FILES = 96
_LONGEST_FOLDER = 35  # bytes; Ray adds 68, and the path of a socket has at most 103 on macOS
_CONNECT_S = 10.0  # that a cluster has to answer: its head may be starting
_RETRY_S = 0.5
_WORKER_VARIABLES = {"OMP_NUM_THREADS": "1"}  # runners share the cores; more threads are slower


class ResourceError(InputError):
    """The machine or cluster cannot hold the experiment; raised before any actor starts."""


class RayStartError(InputError):
    """Ray cannot be started or reached; the message says what the machine has left."""

    exit_code = 1


@dataclass(frozen=True)
class Resources:
    """Needed or available resources: CPUs, GPUs and Ray's custom ones by name."""

    cpus: float = 0.0
    gpus: float = 0.0
    custom: Mapping[str, float] = field(default_factory=dict)


def local_resources() -> Resources:
    """CPUs and GPUs of this machine that this process may use; no driver library is loaded."""
    return Resources(cpus=_local_cpus(), gpus=_local_gpus())


def preflight(
    settings: EnvRunnersConfig,
    available: Resources,
    where: str = "this machine",
    learners: LearnersConfig | None = None,
    evaluation: EnvRunnersConfig | None = None,
    num_networks: int = 1,
) -> float:
    """Compare what remote runners and learners need with what is ``available``.

    The driver, which waits for them, takes nothing.

    Args:
        learners, evaluation: need their resources besides; None needs none.
        num_networks: policies that have learners of their own.

    Returns:
        CPUs that each env runner reserves where `num_cpus_per_env_runner` is "auto".

    Raises:
        ResourceError: with both numbers and a setting that fits, for each resource that is short.
    """
    if learners is not None:
        of_all = {"num_learners": learners.num_learners * num_networks}
        learners = learners.model_copy(update=of_all)
    cpus = _share(available, settings, learners, evaluation)
    settings = reserving(settings, cpus)
    evaluation = None if evaluation is None else reserving(evaluation, cpus)
    problems = list(_shortages("env_runner", settings, available, [], where))
    problems += _custom_shortages(settings, available, None, where)
    before: list[tuple[str, Any]] = [("env_runner", settings)]
    if learners is not None and not problems:
        problems += _shortages("learner", learners, available, before, where, policies=num_networks)
    before.append(("learner", learners))
    if evaluation is not None and not problems:
        problems += _shortages("env_runner", evaluation, available, before, where, "evaluation.")
        problems += _custom_shortages(evaluation, available, settings, where, "evaluation.")
    if problems:
        raise ResourceError("\n".join(problems))
    return cpus


def reserving(settings: EnvRunnersConfig, cpus: float) -> EnvRunnersConfig:
    """The settings with this many CPUs for each env runner, unless they name a number."""
    if settings.num_cpus_per_env_runner != "auto":
        return settings
    return settings.model_copy(update={"num_cpus_per_env_runner": cpus})


def _share(
    available: Resources,
    settings: EnvRunnersConfig,
    learners: LearnersConfig | None,
    evaluation: EnvRunnersConfig | None,
) -> float:
    """CPUs for each env runner: 1, or a fraction (in hundredths) if there are fewer CPUs."""
    kinds = [each for each in (settings, evaluation) if each is not None]
    automatic = [each for each in kinds if each.num_cpus_per_env_runner == "auto"]
    named = [("env_runner", each) for each in kinds if each not in automatic]
    taken = _sum_of([*named, ("learner", learners)], "cpus")
    number = sum(each.num_env_runners for each in automatic)
    share = math.floor((available.cpus - taken) / max(number, 1) * 100) / 100
    return share if 0 < share < 1 else 1.0


def _shortages(
    process: str,
    settings: EnvRunnersConfig | LearnersConfig,
    available: Resources,
    before: Iterable[tuple[str, Any]],
    where: str,
    section: str = "",
    policies: int = 1,
) -> Iterator[str]:
    """Messages about CPUs and GPUs that processes of one kind need and that are not available.

    Args:
        process: name of such a process in the settings: "env_runner" or "learner".
        before: other processes, which get their resources first; see `_sum_of`.
        section: where their settings are, ``evaluation.`` for those that evaluate.
        policies: number of policies, each with an equal share of the processes.
    """
    number: int = getattr(settings, f"num_{process}s")
    for kind in ("CPUs", "GPUs"):
        each: float = getattr(settings, f"num_{kind.lower()}_per_{process}")
        there, used = getattr(available, kind.lower()), _sum_of(before, kind.lower())
        if number * each <= there - used:
            continue
        others = "the other processes" if section else "the env runners"
        beside = f", of which {others} take {used:g}" if used else ""
        free = max(there - used, 0.0)
        choices, fitting = [], math.floor(free / each) // policies
        if fitting or kind == "CPUs":  # GPUs are of remote ones alone
            choices.append(f"{section or f'{process}s.'}num_{process}s={fitting}")
        smaller = math.floor(free / number * 100) / 100
        if smaller > 0 or kind == "GPUs":  # without a GPU they compute on CPUs
            choices.append(f"{section}{process}s.num_{kind.lower()}_per_{process}={smaller:g}")
        named = f"{section.replace('.', ' ')}{process.replace('_', ' ')}s"
        named += f" of {policies} policies" if policies > 1 else ""
        yield (
            f"{number} {named} with {each:g} {kind} each need "
            f"{number * each:g} {kind}, but {where} has {there:g}{beside}: set "
            + " or ".join(choices)
        )


def _custom_shortages(
    settings: EnvRunnersConfig,
    available: Resources,
    before: EnvRunnersConfig | None,
    where: str,
    section: str = "",
) -> Iterator[str]:
    """Messages about custom resources that env runners need and that are not available.

    Args:
        before: other env runners, which get their resources first.
        section: see `_shortages`.
    """
    number = settings.num_env_runners
    for name, each in settings.custom_resources_per_env_runner.items():
        there, used = available.custom.get(name, 0.0), 0.0
        if before is not None:
            used = before.num_env_runners * before.custom_resources_per_env_runner.get(name, 0.0)
        if number * each <= there - used:
            continue
        beside = f", of which the other env runners take {used:g}" if used else ""
        yield (
            f"{number} {section.replace('.', ' ')}env runners need {number * each:g} of the custom "
            f"resource {name!r}, but {where} has {there:g}{beside}: set "
            f"{section}env_runners.custom_resources_per_env_runner to what the cluster offers"
        )


def _sum_of(processes: Iterable[tuple[str, Any]], kind: str) -> float:
    """Total ``cpus`` or ``gpus`` of processes, each given as its name in settings and these."""
    return sum(
        getattr(settings, f"num_{name}s") * getattr(settings, f"num_{kind}_per_{name}")
        for name, settings in processes
        if settings is not None
    )


def start_ray(
    settings: EnvRunnersConfig,
    address: str | None = None,
    learners: LearnersConfig | None = None,
    evaluation: EnvRunnersConfig | None = None,
    start_timeout_s: float = 60.0,
    num_networks: int = 1,
) -> float:
    """Start a local Ray, or connect to the cluster at ``address``, for runners and learners.

    A local Ray listens on the loopback interface only, has no dashboard and reports no usage; its
    processes end with the thread that calls this, so call it from the main thread. A Ray that this
    process is connected to already is used as it is. Modules in the working directory can be
    imported by the runners (on a cluster: if its nodes see that directory).

    Args:
        start_timeout_s: that a local Ray has to start, and each of its workers.
        num_networks: see `preflight`.

    Returns:
        See `preflight`.

    Raises:
        ResourceError: the resources do not suffice; for a local Ray before it starts.
        RayStartError: Ray does not start, or the cluster does not answer.
    """

    def checked(available: Resources, where: str) -> float:
        return preflight(settings, available, where, learners, evaluation, num_networks)

    runs_already = is_running()
    if not runs_already and address is None:
        cpus = checked(local_resources(), "this machine")
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)  # notices about itself, on the terminal
    if runs_already:
        return checked(cluster_resources(), "the running Ray")
    # By default Ray also prints errors of calls whose results nothing waits for.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    if address is None:
        with signals_wait():
            _start_local(start_timeout_s)
        return cpus
    _connect(address)
    try:
        return checked(cluster_resources(), f"the cluster at {address}")
    except ResourceError:
        ray.shutdown()
        raise


def _connect(address: str) -> None:
    import ray

    _wait_for_cluster(address)
    try:
        with signals_wait():
            ray.init(
                address=address,
                runtime_env={"env_vars": _worker_variables()},
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except Exception as error:
        message = f"no Ray cluster at {address}: {_first_line(error)}"
        # `ray start` asks for the token that is there; an address is sent none by itself.
        if "RAY_AUTH_MODE" not in os.environ:
            message += "; if it asks for a token (Ray 2.60 and later), set RAY_AUTH_MODE=token"
        raise RayStartError(message) from error


def _wait_for_cluster(address: str) -> None:
    """Wait until a cluster's address accepts connections, which Ray does for a quarter of an hour.

    Raises:
        RayStartError: it does not within `_CONNECT_S`, or is no address.
    """
    from ray._private.services import canonicalize_bootstrap_address

    try:
        place = None if "://" in address else canonicalize_bootstrap_address(address)
    except Exception as error:
        raise RayStartError(f"no Ray cluster at {address}: {_first_line(error)}") from error
    if place is None:  # the address of a Ray client, or Ray says that it finds no cluster
        return
    host, _, port = place.rpartition(":")
    if not port.isdecimal():
        raise RayStartError(f"no Ray cluster at {address}: expected HOST:PORT")
    end = time.monotonic() + _CONNECT_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
            return
        except (OSError, OverflowError) as error:
            if time.monotonic() >= end:
                message = f"no Ray cluster at {address}: nothing answers within {_CONNECT_S:g} s"
                raise RayStartError(f"{message} ({_first_line(error)})") from error
        time.sleep(_RETRY_S)


def cluster_resources() -> Resources:
    """All resources of the Ray that this process is connected to, used ones included."""
    import ray

    total: dict[str, float] = dict(ray.cluster_resources())  # type: ignore[no-untyped-call]
    return Resources(total.pop("CPU", 0.0), total.pop("GPU", 0.0), total)


def node_resources() -> Iterator[dict[str, float]]:
    """All resources of each machine of the Ray that this process is connected to."""
    import ray

    for node in ray.nodes():  # type: ignore[no-untyped-call]
        if node["Alive"]:
            yield dict(node["Resources"])


def stop_ray() -> None:
    """End a local Ray and its processes, and remove its session folder, or leave the cluster."""
    if is_running():
        sys.modules["ray"].shutdown()
    while _SESSIONS:
        _SESSIONS.pop().remove()


def is_running() -> bool:
    """Whether this process is connected to a Ray already."""
    ray: Any = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _start_local(timeout_s: float) -> None:
    import ray
    from ray._private import worker

    there, (files, _) = local_resources(), resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < _LEAST_FILES:  # Ray's C++ would end this process, without a word of ours
        raise RayStartError(
            f"Ray cannot be started with a limit of {files} open files: raise it, for instance "
            "with `ulimit -n 1024`"
        )
    variables = {**_worker_variables(), **_RAY_VARIABLES, **_time_limits(timeout_s), **_token()}
    variables["RAY_TMPDIR"] = _rays_folder()
    with environment_variables(variables), single_machine(timeout_s):
        try:
            ray.init(
                address="local",
                num_cpus=max(1, math.floor(there.cpus)),
                num_gpus=int(there.gpus),
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:
            ray.shutdown()
            raise RayStartError(
                f"Ray could not be started within fault_tolerance.env_runner_start_timeout_s="
                f"{timeout_s:g}: {_first_line(error)}{_hiding()}\nThis machine has left: "
                + _what_is_left()
            ) from error
    node: Any = worker._global_node
    session = SessionFolder(Path(node.get_session_dir_path()))
    session.remove_abandoned()
    _SESSIONS.append(session)
    atexit.register(stop_ray)  # of a script, or a run that failed


_SESSIONS: list[SessionFolder] = []
"""Session folders of the local Rays that this process has started."""


def _time_limits(timeout_s: float) -> dict[str, str]:
    """Ray's own limits for starting its processes, none below ours."""
    seconds = math.ceil(max(timeout_s, 60.0))
    return {
        "RAY_gcs_server_port_wait_time_s": str(seconds),
        "RAY_raylet_start_wait_time_s": str(seconds),
        "RAY_worker_register_timeout_seconds": str(seconds),
        "RAY_agent_register_timeout_ms": str(1000 * seconds),
    }


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _hiding() -> str:
    """A line about files in the working directory that hide modules of Python's own."""
    names = (f"{name}.py" for name in sys.stdlib_module_names)
    hiding = ", ".join(sorted(name for name in names if Path(name).exists()))
    return hiding and f"\nThese files may hide Python's own modules from it; rename them: {hiding}"


def _what_is_left() -> str:
    """The resources that Ray needs to start, and how much of each this machine has left."""
    left = [f"{os.getloadavg()[0]:.1f} processes wait for {_local_cpus():g} CPUs"]
    for name, path in (("shared memory", "/dev/shm"), ("disk", _rays_folder())):
        with suppress(OSError):
            there = f"{shutil.disk_usage(path).free / 2**20:,.0f} MiB of {name} in {path}"
            left.append(there if os.access(path, os.W_OK) else f"{there}, which cannot be written")
    with suppress(ValueError, OSError):
        memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        left.append(f"{memory / 2**20:,.0f} MiB of memory")
    limits = {"open files": resource.RLIMIT_NOFILE, "processes and threads": resource.RLIMIT_NPROC}
    for name, limit in limits.items():
        number, _ = resource.getrlimit(limit)
        if number != resource.RLIM_INFINITY:
            left.append(f"a limit of {number:,} {name}")
    return ", ".join(left)


_RAY_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback; elsewhere than there it is on
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # else `uv run` would package the working directory
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a FutureWarning in each worker
    "RAY_worker_niceness": "0",  # 15 by default: beside any other work, runners would starve
}


def _worker_variables() -> dict[str, str]:
    """Environment variables of runners' processes."""
    paths = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), **_WORKER_VARIABLES}


@cache  # Ray keeps the first token that a process has
def _token() -> dict[str, str]:
    """A token for Ray if there is none, which Ray would write into the home directory.

    The user's must not be replaced: this process may connect to a cluster with it later.
    """
    named = os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    is_there = bool(named) or os.access(os.path.expanduser("~/.ray/auth_token"), os.R_OK)
    return {} if is_there else {"RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _rays_folder() -> str:
    """The folder for Ray's sessions: for temporary files, unless its path is too long."""
    if named := os.environ.get("RAY_TMPDIR"):
        return named
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= _LONGEST_FOLDER else "/tmp"


@contextmanager
def environment_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within; processes started there keep them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _local_cpus() -> float:
    if hasattr(os, "sched_getaffinity"):
        cpus = float(len(os.sched_getaffinity(0)))
    else:
        cpus = float(os.cpu_count() or 1)
    try:  # a container's quota, in microseconds of CPU time by period
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cpus
    return cpus if quota == "max" else min(cpus, max(1.0, int(quota) / int(period)))


def _local_gpus() -> float:
    try:
        there = len(list(Path("/proc/driver/nvidia/gpus").iterdir()))
    except OSError:
        return 0.0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return float(there)
    return float(min(there, len([name for name in visible.split(",") if name.strip() != ""])))


def last_error_line(process_id: int) -> str | None:
    """The last line that a local worker's process wrote to stderr; None if there is none."""
    for path in _error_logs(process_id):
        lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
        # Ray's own notes to its log monitor begin with a colon.
        said = [line for line in lines if not line.startswith(":")]
        if said:
            return said[-1]
    return None


def python_stacks(process_ids: Iterable[int]) -> dict[int, str]:
    """The Python stacks of local workers that listen to `STACK_SIGNAL`, innermost call first.

    Workers that are gone or do not answer are missing.
    """
    ends = {}
    for process_id in process_ids:
        for path in _error_logs(process_id):
            ends[process_id] = path, path.stat().st_size
            with suppress(ProcessLookupError):
                os.kill(process_id, STACK_SIGNAL)
    if ends:
        time.sleep(_STACK_S)
    stacks = {}
    for process_id, (path, end) in ends.items():
        written = path.read_bytes()[end:].decode(errors="replace").rstrip()
        if written:
            stacks[process_id] = written
    return stacks


def _error_logs(process_id: int) -> Iterator[Path]:
    """The file with a local worker's stderr, if there is one."""
    from ray._private import worker

    node: Any = worker._global_node
    if node is not None:
        logs = Path(node.get_session_dir_path()) / "logs"
        yield from logs.glob(f"worker-*-{process_id}.err")
