"""Resources are compared before anything starts; a local Ray is quiet, private and ends with us."""

from __future__ import annotations

import ipaddress
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from rlrun.actors import ray_runtime
from rlrun.actors.ray_runtime import RayStartError, ResourceError, Resources, preflight
from rlrun.config.schema import EnvRunnersConfig, LearnersConfig


def settings(**values: Any) -> EnvRunnersConfig:
    return EnvRunnersConfig(**values)


def test_what_fits_passes() -> None:
    preflight(settings(num_env_runners=2), Resources(cpus=2))
    preflight(settings(num_env_runners=0, num_gpus_per_env_runner=1), Resources(cpus=1))
    preflight(settings(num_env_runners=8, num_cpus_per_env_runner=0.25), Resources(cpus=2))


def test_what_does_not_fit_is_refused_with_both_numbers_and_a_setting_that_fits() -> None:
    with pytest.raises(ResourceError) as caught:
        preflight(
            settings(
                num_env_runners=8,
                num_cpus_per_env_runner=1,
                num_gpus_per_env_runner=0.5,
                custom_resources_per_env_runner={"licence": 1},
            ),
            Resources(cpus=3),
        )
    cpus, gpus, licence = str(caught.value).splitlines()
    assert "need 8 CPUs, but this machine has 3" in cpus
    assert "env_runners.num_env_runners=3" in cpus
    assert "env_runners.num_cpus_per_env_runner=0.37" in cpus
    assert "need 4 GPUs, but this machine has 0" in gpus
    assert "'licence'" in licence
    # The settings it names do fit.
    preflight(settings(num_env_runners=3), Resources(cpus=3))
    preflight(settings(num_env_runners=8, num_cpus_per_env_runner=0.37), Resources(cpus=3))


def test_custom_resources_of_evaluation_are_counted_besides() -> None:
    licensed = settings(num_env_runners=2, custom_resources_per_env_runner={"licence": 1})
    there = Resources(cpus=9, custom={"licence": 3.0})
    preflight(licensed, there, evaluation=settings(num_env_runners=2))
    with pytest.raises(ResourceError) as caught:
        preflight(licensed, there, evaluation=licensed)
    assert str(caught.value) == (
        "2 evaluation env runners need 2 of the custom resource 'licence', but this machine has 3, "
        "of which the other env runners take 2: set "
        "evaluation.env_runners.custom_resources_per_env_runner to what the cluster offers"
    )


@pytest.mark.parametrize(
    ("cpus", "evaluates", "learners", "share"),
    [(8, 0, 0, 1.0), (3, 0, 0, 0.37), (3, 2, 0, 0.3), (3, 0, 2, 0.12), (0.05, 0, 0, None)],
)
def test_env_runners_share_the_cpus_that_there_are(
    cpus: float, evaluates: int, learners: int, share: float | None
) -> None:
    both = settings(num_env_runners=8), settings(num_env_runners=evaluates)
    there, learns = Resources(cpus=cpus), LearnersConfig(num_learners=learners)
    if share is not None:
        assert preflight(both[0], there, learners=learns, evaluation=both[1]) == share
    else:  # less than Ray could reserve for each
        with pytest.raises(ResourceError, match="8 env runners with 1 CPUs each need 8 CPUs"):
            preflight(both[0], there)


def test_each_policy_needs_learners_of_its_own() -> None:
    learners = LearnersConfig(num_learners=3)
    preflight(settings(), Resources(cpus=5), learners=learners)
    with pytest.raises(ResourceError, match=r"6 learners of 2 policies .* need 6 CPUs") as caught:
        preflight(settings(), Resources(cpus=5), learners=learners, num_networks=2)
    assert "learners.num_learners=2 or" in str(caught.value)


def test_cpus_that_are_named_are_reserved_or_refused() -> None:
    with pytest.raises(ResourceError, match="8 env runners with 1 CPUs each need 8 CPUs"):
        preflight(settings(num_env_runners=8, num_cpus_per_env_runner=1), Resources(cpus=2))


def test_too_much_is_refused_without_starting_ray() -> None:
    code = (
        "import sys\n"
        "from rlrun.config.schema import EnvRunnersConfig\n"
        "from rlrun.actors.ray_runtime import ResourceError, start_ray\n"
        "try:\n    start_ray(EnvRunnersConfig(num_env_runners=10_000))\n"
        "except ResourceError as error:\n    assert '10000 CPUs' in str(error)\n"
        "assert 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_container_s_quota_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("pathlib.Path.read_text", lambda _: "150000 100000\n")
    assert ray_runtime.local_resources().cpus == 1.5
    monkeypatch.setattr("pathlib.Path.read_text", lambda _: "max 100000\n")
    assert ray_runtime.local_resources().cpus == 64


def test_workers_find_the_working_directory_and_one_thread(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    @ray.remote(num_cpus=0.1)
    def look() -> tuple[str, str]:
        return os.environ["OMP_NUM_THREADS"], os.environ["PYTHONPATH"]

    threads, path = ray.get(look.remote())
    assert threads == "1"
    started_in, *further = path.split(os.pathsep)  # Ray, perhaps by another test
    for directory in (started_in, str(tmp_path)):
        monkeypatch.chdir(directory)
        paths = ray_runtime._worker_variables()["PYTHONPATH"].split(os.pathsep)
        assert paths[0] == directory
        assert {*further} <= {*paths}


def test_a_running_ray_is_used_as_it_is_and_asked_what_it_has(local_ray: None) -> None:
    ray_runtime.start_ray(settings(num_env_runners=1, num_cpus_per_env_runner=0.5))
    with pytest.raises(ResourceError, match="the running Ray"):
        ray_runtime.start_ray(settings(num_env_runners=10_000))


def test_ray_listens_on_the_loopback_interface_only(local_ray: None) -> None:
    import ray

    assert ray.util.get_node_ip_address() == "127.0.0.1"
    listening = _listening_addresses(_children_of(os.getpid()))
    assert listening
    assert all(address.is_loopback for address in listening)


def test_an_error_of_a_call_that_was_given_up_is_not_printed(local_ray: None) -> None:
    import ray

    @ray.remote(num_cpus=0.1)
    class Actor:
        def fail(self) -> None:
            raise ValueError("of a round that was given up")

        def answer(self) -> None:
            pass

    printed: list[Exception] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray._private.worker._unhandled_error_handler", printed.append)
        actor = Actor.remote()
        given_up = actor.fail.remote()
        ray.get(actor.answer.remote())
        del given_up
        time.sleep(0.5)
    assert not printed


def test_a_ray_that_does_not_start_is_one_message_with_what_the_machine_has_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import ray

    def fail(**settings: Any) -> None:
        assert os.environ["RAY_worker_register_timeout_seconds"] == "90"  # noqa: SIM112
        raise RuntimeError("The current node timed out.\nSee the logs.")

    for name, function in (("is_initialized", bool), ("shutdown", lambda: None), ("init", fail)):
        monkeypatch.setattr(ray, name, function)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (1024, 1024))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "random.py").touch()
    with pytest.raises(RayStartError) as caught:
        ray_runtime.start_ray(settings(), start_timeout_s=90)
    assert caught.value.exit_code == 1
    first, hiding, second = str(caught.value).splitlines()
    assert hiding.endswith("rename them: random.py")
    assert first.endswith("env_runner_start_timeout_s=90: The current node timed out.")
    assert re.search(r"wait for \d+ CPUs, .* MiB of disk .*, a limit of .* open files", second)
    assert f"MiB of disk in {tmp_path}, which cannot be written" in second


@pytest.mark.parametrize("longest", [40, 20])
def test_ray_s_folder_is_for_temporary_files_unless_its_path_is_too_long_for_sockets(
    monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    import ray

    def fail(**settings: Any) -> None:
        folder = os.environ["RAY_TMPDIR"]
        assert folder == ("/tmp" if longest == 40 else tempfile.gettempdir())
        raise RuntimeError("as asked for")

    for name, function in (("is_initialized", bool), ("shutdown", lambda: None), ("init", fail)):
        monkeypatch.setattr(ray, name, function)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", f"/{longest * 't'}")
    with pytest.raises(RayStartError, match="as asked for"):
        ray_runtime.start_ray(settings())


def test_a_signal_while_ray_starts_is_handled_by_the_program_once_it_has_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    happened = []

    def init(**settings: Any) -> None:
        ray._private.utils.set_sigterm_handler(lambda *_: sys.exit(15))
        signal.raise_signal(signal.SIGTERM)
        happened.append("started")

    for name, function in (("is_initialized", bool), ("init", init)):
        monkeypatch.setattr(ray, name, function)
    monkeypatch.setattr(ray_runtime, "_wait_for_cluster", lambda address: None)
    monkeypatch.setattr(ray_runtime, "cluster_resources", Resources)
    before = signal.signal(signal.SIGTERM, lambda *_: happened.append("handled"))
    try:
        ray_runtime.start_ray(settings(), "auto")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert happened == ["started", "handled"]


@pytest.mark.faults
def test_ray_starts_where_the_home_directory_cannot_be_written() -> None:
    run = """
import ray
from rlrun.actors.ray_runtime import start_ray
from rlrun.config.schema import EnvRunnersConfig
start_ray(EnvRunnersConfig(num_env_runners=1))
print(ray.get(ray.remote(lambda: "answered").remote()))
"""
    environment = {**os.environ, "HOME": "/proc/none"}
    command = [sys.executable, "-c", run]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"answered\n", b"")


@pytest.mark.parametrize("there", ["nothing", "a file", "a variable"])
def test_ray_gets_a_token_only_where_there_is_none(monkeypatch, tmp_path, there):
    """Or a cluster of the user, with the user's token, would not answer this process any more."""
    monkeypatch.setenv("HOME", str(tmp_path))
    if there == "a file":
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("mine")
    if there == "a variable":
        monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    else:
        monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    token = ray_runtime._token.__wrapped__
    assert len(token()) == (there == "nothing")


@pytest.mark.parametrize("mode", [None, "token"])
def test_a_cluster_that_does_not_answer_may_ask_for_a_token(
    monkeypatch: pytest.MonkeyPatch, mode: str | None
) -> None:
    import ray

    def init(**_: Any) -> None:
        raise ConnectionError("Failed to connect\nto it")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with socket.create_server(("", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with pytest.raises(RayStartError, match="no Ray cluster at") as caught:
            ray_runtime.start_ray(settings(num_env_runners=1), address)
    assert ("set RAY_AUTH_MODE=token" in str(caught.value)) == (mode is None)


def test_a_cluster_where_nothing_listens_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray would try for minutes"))
    monkeypatch.setattr(ray_runtime, "_CONNECT_S", 0.1)
    monkeypatch.setattr(ray_runtime, "_RETRY_S", 0.05)
    with socket.create_server(("", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(RayStartError, match=f"no Ray cluster at {address}: nothing answers within"):
        ray_runtime.start_ray(settings(num_env_runners=1), address)
    for address in ("nonsense", "head:port", "head:"):
        with pytest.raises(RayStartError, match=f"no Ray cluster at {address}: "):
            ray_runtime.start_ray(settings(num_env_runners=1), address)


@pytest.mark.faults
def test_nothing_is_printed_and_nothing_is_left_when_the_driver_is_killed() -> None:
    code = (
        "import os, warnings\n"
        "warnings.simplefilter('error')\n"
        "from rlrun.config.schema import EnvRunnersConfig\n"
        "from rlrun.actors.ray_runtime import start_ray\n"
        "start_ray(EnvRunnersConfig(num_env_runners=1, num_cpus_per_env_runner=0.1))\n"
        "import ray\n"
        "ray.get(ray.remote(lambda: 1).remote())\n"
        "print('ready', flush=True)\n"
        "import time; time.sleep(600)"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "ready\n"
    # Ray's two agents look for their raylet every few seconds and end by themselves, later.
    children = {pid for pid in _children_of(driver.pid) if "Agent" not in _name(pid)}
    assert len(children) >= 3
    driver.kill()
    _, errors = driver.communicate()
    assert errors == ""
    deadline = time.monotonic() + 30
    while any(map(_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [pid for pid in children if _alive(pid)]


def _children_of(root: int) -> set[int]:
    """All descendants of a process."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, new = set(), {root}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _listening_addresses(pids: set[int]) -> set[Any]:
    """Addresses of the TCP sockets that these processes listen on."""
    inodes = set()
    for pid in pids:
        try:
            for link in os.listdir(f"/proc/{pid}/fd"):
                target = os.readlink(f"/proc/{pid}/fd/{link}")
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        except OSError:
            continue
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:  # 0A: listening
                    words = bytes.fromhex(fields[1].split(":")[0])
                    swapped = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                    address: Any = ipaddress.ip_address(swapped)
                    found.add(getattr(address, "ipv4_mapped", None) or address)
    return found
