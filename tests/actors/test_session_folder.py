"""The session folder of a Ray whose process was killed is removed, and no other one."""

from pathlib import Path

from rlrun.actors.session_folder import SessionFolder


def session(home: Path, name: str) -> Path:
    folder = home / f"session_{name}"
    (folder / "logs").mkdir(parents=True)
    return folder


def test_only_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    living = SessionFolder(session(tmp_path, "living"))
    foreign = session(tmp_path, "foreign")
    killed = session(tmp_path, "killed")
    (killed / "rlrun.lock").touch()
    (tmp_path / "session_latest").symlink_to(killed)
    own = SessionFolder(session(tmp_path, "own"))
    own.remove_abandoned()
    there = {living.path, foreign, own.path}
    assert {path for path in tmp_path.iterdir() if not path.is_symlink()} == there
    living.remove()
    own.remove()
    assert [path for path in tmp_path.iterdir() if not path.is_symlink()] == [foreign]


def test_a_removed_folder_takes_the_link_to_it_along(tmp_path: Path) -> None:
    own = SessionFolder(session(tmp_path, "own"))
    (tmp_path / "session_latest").symlink_to(own.path)
    own.remove()
    assert list(tmp_path.iterdir()) == []
