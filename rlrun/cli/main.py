"""The command line: the table of commands.

A command is a function with typer annotations in a module of its own. COMMANDS has its import path
and the line that `rlrun --help` shows. The module is imported only when its command is called:
`rlrun --help` imports neither torch, Ray, gymnasium, numpy nor pydantic. Within a module, heavy
imports are inside the function, so that `rlrun train --help` is fast too.

A command ends by returning (exit code 0), by raising `typer.Exit`, or by raising an error, which
is printed here and determines the exit code (`cli.errors.report`).
"""

import faulthandler
import gc
import os
import signal
import sys
import threading
import traceback
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from rlrun.cli import errors

COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("rlrun.cli.train:train", "Train an experiment file."),
    "sweep": ("rlrun.cli.sweep:sweep", "Search settings with Ray Tune."),
    "rollout": ("rlrun.cli.rollout:rollout", "Roll out a trained policy."),
    "export": ("rlrun.cli.export:export", "Export a trained policy as ONNX or TorchScript."),
    "ls": ("rlrun.cli.runs:ls", "List runs: state, progress, best value, size, age."),
    "show": ("rlrun.cli.runs:show", "Show one run, group or sweep."),
    "tail": ("rlrun.cli.runs:tail", "Follow the results of a run."),
    "diff": ("rlrun.cli.runs:diff", "Show how two runs differ."),
    "rerun": ("rlrun.cli.runs:rerun", "Train a run again, in a new folder."),
    "rm": ("rlrun.cli.runs:rm", "Remove runs, after asking."),
    "du": ("rlrun.cli.runs:du", "Show the disk use of runs."),
    "report": ("rlrun.cli.report:report", "Write a report on a run or a sweep as one page."),
    "compare": ("rlrun.cli.compare:compare", "Compare runs, groups and sweeps."),
    "check": ("rlrun.cli.check:check", "Check experiment files without starting anything."),
    "import": ("rlrun.cli.import_file:import_file", "Translate a file of RLlib or the SB3 Zoo."),
    "list": ("rlrun.cli.list:list_names", "List algorithms, envs, models or configs."),
    "verify": ("rlrun.cli.verify:verify", "Train the reference cases; compare published numbers."),
    "init": ("rlrun.cli.init:init", "Write a commented starter file to stdout."),
}
"""Command -> import path of its function, and its line in the help."""

RLLIB_OPTIONS: dict[str, str] = {
    "--run": "--algorithm NAME",
    "--config": "each setting as KEY=VALUE, such as training.lr=1e-3",
    "--config-file": "the file as the first word",
    "-f": "the file as the first word",
    "--stop": "stop.KEY=VALUE, such as stop.env_steps=1e6",
    "--checkpoint-freq": "checkpoint.every=N",
    "--checkpoint-at-end": "checkpoint.at_end=true",
    "--keep-checkpoints-num": "checkpoint.keep=N",
    "--num-samples": "--seeds N",
    "--experiment-name": "name=NAME",
    "--local-dir": "--run-dir FOLDER",
    "--ray-address": "--address",
    "--local-mode": "env_runners.num_env_runners=0",
    "--framework": "nothing: rlrun trains with PyTorch only",
    "--out": "--save FILE",
}
"""Options of RLlib's commands -> what to write instead."""

_THREADS_END_S = 5.0

# Rich's help panels would double the time of `rlrun --help`: 0.3 s of imports.
_PLAIN: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}


class LazyGroup(TyperGroup):
    """A group of commands that imports only the command that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A placeholder with name and help; `resolve_command` loads the command itself."""
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that is called. Raises UsageError for an unknown name or option."""
        if ctx.resilient_parsing and (not args or args[0] not in COMMANDS):  # to complete a word
            return None, None, args
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from rlrun.config.registry import suggestion

            hint = suggestion(args[0], COMMANDS)
            ctx.fail(f"there is no command {args[0]!r}{hint}")
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or command is None:
            return name, None, rest
        loaded = load_command(name)
        options = {option for parameter in loaded.params for option in parameter.opts}
        for word in rest:
            option = word.partition("=")[0]
            if option in RLLIB_OPTIONS and option not in options:
                ctx.fail(f"there is no option {option}; write {RLLIB_OPTIONS[option]}")
        return name, loaded, rest


def load_command(name: str) -> Any:
    """Import a command's module and make the command."""
    module, _, function = COMMANDS[name][0].partition(":")
    single = typer.Typer(**_PLAIN, add_completion=False)
    single.command(name)(getattr(import_module(module), function))
    return typer.main.get_command(single)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    **_PLAIN,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from rlrun import __version__

        typer.echo(f"rlrun {__version__}")
        raise typer.Exit


@app.callback()
def _rlrun(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Reinforcement-learning experiments from one YAML file."""
    try:
        os.getcwd()
    except FileNotFoundError:  # of a shell whose folder another one has removed
        from rlrun.config.problems import InputError

        raise InputError("the working directory was removed; change to another") from None


def main() -> None:
    """Run the command that sys.argv names, and exit with its code."""
    _open_closed_streams()
    faulthandler.enable(2)  # shows where an environment's C code crashes
    if hasattr(signal, "SIGQUIT"):  # Ctrl-\ shows the place of a call that ignores Ctrl-C
        faulthandler.register(signal.SIGQUIT, file=2, chain=True)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        if signal.getsignal(number) is signal.SIG_DFL:  # as Ctrl-C, before a run defers them
            signal.signal(number, signal.default_int_handler)
    _show_exits()
    code: Any
    try:
        code = app(prog_name="rlrun")
    except KeyboardInterrupt:
        code = errors.INTERRUPTED
    except SystemExit as end:
        code = end.code if _is_own(end) else errors.report(end)
    except BaseException as error:
        code = errors.report(error)
    _end_in_spite_of_threads(code)
    gc.disable()  # else Python looks for garbage twice as it ends, among all objects of torch
    raise SystemExit(code)


def _open_closed_streams() -> None:
    """Open the null device for streams that the caller closed; a file would get their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def _is_own(end: SystemExit) -> bool:
    """Whether the command line raised this SystemExit, rather than an experiment's code."""
    frames = [frame for frame, _ in traceback.walk_tb(end.__traceback__)]
    module = str(frames[-1].f_globals.get("__name__"))
    return module.partition(".")[0] in ("rlrun", "typer", "click")


def _show_exits() -> None:
    """Let `os._exit`, if an environment calls it, print where it was called, and fail."""
    leave, process_id = os._exit, os.getpid()

    def leave_with_traceback(status: int) -> NoReturn:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if os.getpid() == process_id and not caller.startswith("rlrun."):
            sys.stderr.write(f"os._exit({status}) ended the command here:\n")
            faulthandler.dump_traceback(sys.stderr, all_threads=False)
            status = status or errors.RUN_FAILED
        leave(status)

    os._exit = leave_with_traceback


def _end_in_spite_of_threads(code: Any) -> None:
    """Wait no longer than `_THREADS_END_S` for threads that an environment has left running."""
    main_thread = threading.main_thread()
    threads = [
        each for each in threading.enumerate() if each is not main_thread and not each.daemon
    ]

    def end() -> None:
        if left := [each.name for each in threads if each.is_alive()]:
            sys.stdout.flush()
            sys.stderr.write(f"these threads have not ended, and were killed: {', '.join(left)}\n")
            os._exit(code if isinstance(code, int) else int(code is not None))

    if threads:
        timer = threading.Timer(_THREADS_END_S, end)
        timer.daemon = True
        timer.start()
