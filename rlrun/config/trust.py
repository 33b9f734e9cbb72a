"""Trust in the code that a run folder names: it must be signed by the user, unless `trust` is set.

Owns: which values of a config name code, the user's key, the signature at the end of the config
files of run folders and checkpoints, and the refusal. Must not know: what the code is for. Nothing
here imports the code.

The signature covers the addresses, names and arguments of the code. Other settings may be edited,
and the folder may be moved, even to another machine on which the user has the same key.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Any

from rlrun.config.dump import dump_yaml, to_plain
from rlrun.config.problems import DEFAULT, InputError, Path, join
from rlrun.config.schema import ExperimentConfig
from rlrun.config.yaml_tree import from_plain, with_keys

CODE_OPTION = "--trust"
_RUN_FILES = ("config.yaml", "sweep.yaml")
# A run that is being resumed is locked, so its folder has at least the lock.
_MARKS = ("meta.json", "manifest.json", ".lock")
_NAMES_CODE = re.compile(r"^[^\W\d][\w.]*:\w")  # "module:attribute", "module:Name-v0"
_DEVICE = re.compile(r"^cuda:[0-9]+$")
_SIGNATURE = re.compile(r"^# code signed by rlrun: ([0-9a-f]{64})$", re.MULTILINE)
_KEY_BYTES = 32


class TrustError(InputError):
    """A run folder names code that this user has not signed; the message lists it."""


def signed_yaml(experiment: ExperimentConfig) -> str:
    """`dump_yaml`, with a signature if the experiment names code and a key can be created."""
    text, code = dump_yaml(experiment), code_of(to_plain(experiment))
    key = _key(create=True) if code else None
    return text if key is None else f"{text}# code signed by rlrun: {_digest(key, code)}\n"


def require_trust(file: FilePath, data: Any, imported: Any = None) -> None:
    """Raise TrustError if a run folder's file names code that is not signed with the user's key.

    Args:
        file: the config of a run folder, sweep or checkpoint.
        data: content of the file and of its `base`.
        imported: the part of it whose code will be imported; None: all.
    """
    signed, key = code_of(data), _key(create=False)
    left = signed if imported is None else code_of(imported)
    code = [each for each in signed if each in left]
    found = _SIGNATURE.findall(file.read_text(encoding="utf-8-sig"))
    if not code or (key and found and hmac.compare_digest(found[-1], _digest(key, signed))):
        return
    raise TrustError(untrusted(str(file), code))


def untrusted(where: str, code: list[tuple[str, Any]]) -> str:
    """The message about code that this user has not signed."""
    names = [f"  {address}: {value}" for address, value in code if isinstance(value, str)]
    return "\n".join(
        [
            f"{where} names code that is not signed with your key:",
            *dict.fromkeys(names),
            f"Signatures are made with the key {_key_file()}. If you trust this code, "
            "use `rlrun train`, `rlrun sweep`, `rlrun rerun`, `rlrun rollout` or `rlrun export` "
            f"with {CODE_OPTION} (in Python trust=True)",
        ]
    )


def is_run_file(file: FilePath) -> bool:
    """Whether a file is the config of a run folder, sweep or checkpoint."""
    return file.name in _RUN_FILES and any(
        os.path.exists(os.path.join(file.parent, mark)) for mark in _MARKS
    )


def code_of(data: Any) -> list[tuple[str, Any]]:
    """Address and value of each text, or section with arguments, that names code."""
    written = from_plain(with_keys(data), DEFAULT).plain()  # as text, keys of arguments too
    return list(_walk(written, ()))


def _walk(value: Any, path: Path) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("use"), str) and _NAMES_CODE.match(value["use"]):
            yield join(path), value
        for key, item in value.items():
            yield from _walk(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _walk(item, (*path, i))
    elif isinstance(value, str) and _NAMES_CODE.match(value) and not _is_device(path, value):
        yield join(path), value


def _is_device(path: Path, value: str) -> bool:
    return path[-1:] == ("device",) and _DEVICE.match(value) is not None


def _digest(key: bytes, code: list[tuple[str, Any]]) -> str:
    text = json.dumps(code, sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _key_file() -> FilePath:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return FilePath(home) / "rlrun" / "key"


def _key(*, create: bool) -> bytes | None:
    """The user's key; None if there is none, for example without a home directory."""
    file = _key_file()
    with suppress(OSError):
        if create and not file.exists():
            _create(file)
        key = file.read_bytes()
        return key if len(key) == _KEY_BYTES else None
    return None


def _create(file: FilePath) -> None:
    """Write a new key atomically, unless another process is faster; only the user can read it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".key-{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(secrets.token_bytes(_KEY_BYTES))
    try:
        os.link(temporary, file)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
