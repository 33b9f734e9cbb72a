"""An installed rlrun has the configurations that `rlrun verify` trains, too."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from source_tree import ROOT

from rlrun.config.registry import configs_folder


def test_the_wheel_holds_the_configs_and_the_reference_cases(tmp_path):
    command = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = "from rlrun.config.registry import configs_folder; print(configs_folder())"
    installed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        check=True,
        capture_output=True,
        text=True,
    )
    folder = Path(installed.stdout.strip())
    assert folder == tmp_path / "site" / "rlrun" / "configs"
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert texts == {path.name: path.read_text() for path in (ROOT / "configs").iterdir()}
    for table in (
        "experiment/verify/cases",
        "config/retired",
        "config/rllib_tables",
        "config/zoo_tables",
    ):
        file = f"rlrun/{table}.yaml"
        assert (tmp_path / "site" / file).read_text() == (ROOT / file).read_text()


def test_a_checkout_has_them_beside_the_package():
    assert configs_folder() == ROOT / "configs"
