"""Arguments of several commands: a file with overrides, a Ray address, an output style.

Owns their help and their parsing. It must not know what a command does with them.
"""

import math
import os
from collections.abc import Callable
from functools import partial
from glob import escape, glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rlrun.experiment.report.console import ConsoleStyle

RUNS = Path("runs")
"""Default folder of runs; a run may be named relative to it."""


def run_path(text: str) -> Path:
    """The path itself, or the one below RUNS if only that exists."""
    below = RUNS / text
    return below if not _leads_to_any(Path(text)) and _leads_to_any(below) else Path(text)


def _leads_to_any(path: Path) -> bool:
    return os.path.exists(path) or bool(glob(str(path)))


def complete_runs(incomplete: str) -> list[str]:
    """Runs, groups and sweeps below RUNS that begin with a text, and experiment files."""
    files = [path for name in ("config", "sweep") for path in sorted(RUNS.glob(f"*/*/{name}.yaml"))]
    names = [path.parent.relative_to(RUNS) for path in files]
    words = dict.fromkeys([name.parts[0] for name in names] + list(map(str, names)))
    return [word for word in words if word.startswith(incomplete)] + complete_paths(incomplete)


def complete_files(incomplete: str) -> list[str]:
    """Experiment files, and names of shipped ones, that begin with a text."""
    from rlrun.config.registry import shipped_configs

    shipped = [name for name in shipped_configs() if name.startswith(incomplete)]
    return shipped + complete_paths(incomplete)


def complete_paths(incomplete: str) -> list[str]:
    """Paths of experiment files and folders that begin with a text."""
    found = sorted(glob(f"{escape(incomplete)}*"))
    folders = [f"{path}/" for path in found if os.path.isdir(path)]
    return [path for path in found if path.endswith((".yaml", ".yml"))] + folders


def run_argument(metavar: str, text: str, complete: Callable[[str], list[str]]) -> Any:
    """An argument for runs, whose folders may be named relative to RUNS."""
    return typer.Argument(metavar=metavar, help=text, parser=run_path, autocompletion=complete)


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE.yaml] [KEY=VALUE ...]", show_default=False, autocompletion=complete_files
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE ...]", show_default=False)
]
_FORMS = "A run, group or sweep: its folder, its name below runs/, or runs/NAME."
Run = Annotated[Path, run_argument("RUN", _FORMS, complete_runs)]
_BEST = "A checkpoint, or a run, whose best checkpoint is used."
RunOrCheckpoint = Annotated[Path, run_argument("RUN_OR_CHECKPOINT", _BEST, complete_runs)]
_SEVERAL = "Runs, groups or sweeps: folders, names below runs/, or patterns."
Runs = Annotated[list[Path], run_argument("RUN...", _SEVERAL, complete_runs)]


AUTO = Path("auto")
"""The value of ``--resume auto``."""


def resume_option(text: str) -> Any:
    """The option ``--resume RUN``; the word `auto` is not the name of a run."""
    return typer.Option(
        help=text,
        parser=lambda word: AUTO if word == "auto" else run_path(word),
        autocompletion=complete_runs,
    )


def output_option(metavar: str, text: str) -> Any:
    """An option for the FILE or DIR that a command writes."""
    return typer.Option(metavar=metavar, help=text, parser=partial(_output_path, metavar))


def _output_path(metavar: str, text: str) -> Path:
    """The path; raises BadParameter before any work is done if it cannot be written."""
    path = Path(text)
    there = next(each for each in (path, *path.absolute().parents) if os.path.lexists(each))
    is_folder = os.path.isdir(there)
    if there == path and is_folder != (metavar == "DIR"):
        raise typer.BadParameter(f"{path} is {'a folder' if is_folder else 'not a folder'}")
    if not (is_folder or there == path) or not os.access(there, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be written")
    return path


Address = Annotated[str | None, typer.Option(help="Ray cluster to use instead of a local Ray.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import the code that another user's run folder names.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show only the outcome.")]
Plain = Annotated[
    bool, typer.Option("--plain", help="Print a line per iteration or trial instead of the panel.")
]


def split_words(words: list[str] | None) -> tuple[Path | None, list[str]]:
    """Split words into the file, which is the only one that is not an override, and overrides."""
    files = [word for word in words or [] if not is_override(word)]
    if len(files) > 1:
        message = f"expected one FILE.yaml, got {' and '.join(files)}"
        values = [word for word in files if not word.endswith((".yaml", ".yml"))]
        if values:
            word = values[-1]
            example = f"{word}=VALUE" if "." in word else f"name={word}"
            message += f"; write settings as KEY=VALUE, such as {example}"
        raise typer.BadParameter(message)
    overrides = [word for word in words or [] if is_override(word)]
    return (Path(files[0]) if files else None), overrides


def is_override(word: str) -> bool:
    """Whether a word is KEY=VALUE and not a path, which may contain an equals sign, too."""
    return "=" in word and not os.path.exists(word)


def seeds_of(text: str) -> int | tuple[int, ...]:
    """A number of seeds, ``3``, or the seeds of a range, ``11-13`` for 11, 12, 13.

    Raises:
        typer.BadParameter: for anything else.
    """
    first, dash, last = text.partition("-")
    ends = (first, last) if dash else ("1", first)
    if not all(end.isdecimal() for end in ends) or not 1 <= int(ends[0]) <= int(ends[1]):
        message = f"{text!r} is neither a number of seeds, such as 3, nor a range, such as 11-13"
        raise typer.BadParameter(message, param_hint="--seeds")
    return tuple(range(int(ends[0]), int(ends[1]) + 1)) if dash else int(first)


def numbers_of(
    option: str, text: str | None, kind: type[int] | type[float], *, least: float = -math.inf
) -> list[float] | None:
    """The numbers of an option, ``20_000,40_000``; None if it is not given.

    Raises:
        typer.BadParameter: something is not a number, or below the least.
    """
    if text is None:
        return None
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least:
        what = "a number" if kind is float else "a whole number"
        bound = "" if least == -math.inf else f" of at least {least:g}"
        message = f"expected {what}{bound}, or several with commas between them, got {text!r}"
        raise typer.BadParameter(message, param_hint=option)
    return numbers


def refuse_with_resume(what: str, **options: object) -> None:
    """Raise if ``--resume`` is combined with options that only apply to a new folder."""
    given = [
        name if name.isupper() else f"--{name.replace('_', '-')}"
        for name, value in options.items()
        if value is not None
    ]
    if given:
        raise typer.BadParameter(
            f"--resume uses the settings in the folder of the {what}; remove {', '.join(given)}"
        )


def with_folder(path: Path) -> Path:
    """The path of a file to write, whose folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def console_style(*, quiet: bool, plain: bool) -> "ConsoleStyle | None":
    """The requested style; None leaves the choice to the experiment."""
    return "quiet" if quiet else "lines" if plain else None
