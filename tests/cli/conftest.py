"""The command line called in this process, in an empty folder."""

import sys

import pytest

from rlrun.cli.main import main


@pytest.fixture
def rlrun(capsys, monkeypatch, tmp_path):
    """Call ``rlrun WORDS``; returns the exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["rlrun", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    return call


@pytest.fixture
def refused(rlrun):
    """Call ``rlrun WORDS``; exit code 2 and one message that contains ``says``."""

    def call(words, says):
        code, _, err = rlrun(*words)
        assert code == 2
        assert says in err.replace("\n", " ")
        assert "Traceback" not in err

    return call
