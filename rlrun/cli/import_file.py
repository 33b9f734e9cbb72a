"""``rlrun import``: write another library's file in rlrun's form.

See config/rllib_file.py and config/zoo_file.py.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.cli.arguments import Words, split_words

if TYPE_CHECKING:
    from rlrun.config.loader import Loaded


def import_file(
    words: Words = None,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PATH", help="File, or folder for several; default: stdout."
        ),
    ] = None,
) -> None:
    """Translate a file of RLlib or rl-baselines3-zoo, and list settings without effect.

    rlrun import cartpole-ppo.yaml -o ppo.yaml

    rlrun import regression-tests.yaml -o experiments

    rlrun import regression-tests.yaml name=apex

    rlrun import hyperparams/ppo.yml name=CartPole-v1
    """
    file, overrides = split_words(words)
    if file is None:
        raise typer.BadParameter("name a file of RLlib or rl-baselines3-zoo")
    from rlrun.config.loader import load_translations
    from rlrun.config.problems import InputError

    experiments = load_translations(file, overrides)
    if output is None and len(experiments) > 1:
        names = ", ".join(loaded.experiment.name for loaded in experiments)
        raise InputError(f"{file} has {names}; write all with -o DIR, or one with name=NAME")
    texts = {loaded.experiment.name: _text(file, loaded) for loaded in experiments}
    if output is None:
        typer.echo("".join(texts.values()), nl=False)
    else:
        _write(output, texts)
    for loaded in experiments:
        _report(loaded)


def _text(file: Path, loaded: "Loaded") -> str:
    """The experiment as a file, with the old key of each value in a comment."""
    from rlrun.config.dump import written_yaml

    translation = loaded.translation
    assert translation is not None
    origin = f"{translation.name} of {file.name}, a file of {translation.library}"
    lines = [f"# {origin}, translated by `rlrun import`."]
    lines += [f"# No effect: {found.key}: {found.message}" for found in translation.without_effect]
    body = written_yaml(loaded.tree.plain(), translation.sources)
    return "\n".join(lines) + "\n" + body


def _write(output: Path, texts: dict[str, str]) -> None:
    """Write one file, or several to a folder; raise InputError if a file exists already."""
    from rlrun.config.problems import InputError

    is_folder = len(texts) > 1 or output.is_dir()
    files = {output / f"{name}.yaml" if is_folder else output: text for name, text in texts.items()}
    for path in files:
        if path.exists():
            raise InputError(f"{path} exists already; remove it, or name another file")
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            typer.echo(f"{path}")
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror}") from None


def _report(loaded: "Loaded") -> None:
    """Print keys without effect, with reasons, and the numbers of settings and defaults."""
    from rlrun.cli import errors

    translation = loaded.translation
    assert translation is not None
    errors.report_problems(translation.without_effect, style="yellow", prefix="no effect: ")
    errors.report_problems(loaded.warnings[1:], style="yellow", prefix="warning: ")
    num_defaults = sum(source.startswith("default of ") for source in translation.sources.values())
    counts = (
        f"{len(translation.sources) - num_defaults} settings translated",
        f"{num_defaults} defaults of {translation.library} filled in",
        f"{len(translation.without_effect)} without effect",
    )
    typer.echo(f"{translation.name}: {', '.join(counts)}", err=True)
