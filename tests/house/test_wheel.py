"""An installed rlrun has the configurations that `rlrun verify` trains, too."""

import subprocess
import sys
import zipfile

from source_tree import ROOT

from rlrun.config import shipped


def test_the_wheel_holds_the_configs(tmp_path, monkeypatch):
    command = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "site" / "rlrun")
    installed = {path.name: path.read_text() for path in shipped.configs_folder().iterdir()}
    assert shipped.configs_folder() == tmp_path / "site" / "rlrun" / "configs"
    assert installed == {path.name: path.read_text() for path in (ROOT / "configs").iterdir()}


def test_a_checkout_has_them_beside_the_package():
    assert shipped.configs_folder() == ROOT / "configs"
