"""docs/quickstart.md: its commands work, in their order, in an empty folder."""

import os
import subprocess
import sys

import pytest
from pages import blocks, page

LINES = "".join(blocks(page("quickstart.md"), "sh")).splitlines()


@pytest.mark.learning
def test_its_commands_work_one_after_the_other(tmp_path):
    (tmp_path / "rlrun").write_text(f'#!/bin/sh\nexec {sys.executable} -m rlrun "$@"\n')
    (tmp_path / "rlrun").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for line in LINES:
        ran = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == (2 if "exit code 2" in line else 0), f"{line}\n{ran.stderr}"
