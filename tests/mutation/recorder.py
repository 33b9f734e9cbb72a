"""A pytest plugin: which functions of the package each test calls in its own process.

Writes, for each process of pytest, a file of one JSON object a test into the folder that the
environment variable ``RLRUN_CALLS`` names: the test's id, seconds and functions.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType

import pytest

PACKAGE = str(Path(__file__).resolve().parents[2] / "rlrun") + os.sep


class CallRecorder:
    """Appends what each test has called to a file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder.resolve() / f"{os.getpid()}.jsonl"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        """Watch the test with its fixtures."""
        # By identity: the hash of a code object reads all of it.
        called: dict[int, CodeType] = {}

        def watch(frame: FrameType, event: str, argument: object) -> None:
            called[id(frame.f_code)] = frame.f_code

        begin = time.perf_counter()
        threading.settrace(watch)
        sys.settrace(watch)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            own = {
                f"{code.co_filename[len(PACKAGE) :]}:{code.co_qualname}"
                for code in list(called.values())  # threads of the test may still write to it
                if code.co_filename.startswith(PACKAGE)
            }
            seconds = time.perf_counter() - begin
            with self._path.open("a") as file:
                row = {"test": item.nodeid, "seconds": seconds, "functions": sorted(own)}
                file.write(json.dumps(row) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Watch tests wherever they run, in the processes of xdist too."""
    config.pluginmanager.register(CallRecorder(Path(os.environ["RLRUN_CALLS"])))
