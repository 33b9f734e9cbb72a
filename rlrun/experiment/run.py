"""One run of one experiment: build, iterate, report, save, stop; and resuming a run.

Owns the order of these steps. It must not know their details: the algorithm trains, the sinks
report, `RunCheckpoints` saves. The trials of a sweep take the same steps (sweep/trial.py).

    result      dict of one iteration (algorithms/result.py)
    row         the same as plain JSON values (data/results.py)
"""

import logging
import os
import secrets
import shlex
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.checkpoint.checkpoint import Checkpoint, restore_checkpoint
from rlrun.checkpoint.checkpoint_folder import CHECKPOINTS, checkpoint_at, newest_checkpoint
from rlrun.checkpoint.files import replace_text
from rlrun.checkpoint.initial_weights import with_links_followed
from rlrun.config.builder import GivenExperiment, given_experiment
from rlrun.config.loader import Loaded, load
from rlrun.config.problems import ConfigError, InputError
from rlrun.config.registry import algorithm_class
from rlrun.config.schema import ExperimentConfig
from rlrun.config.trust import signed_yaml
from rlrun.data.results import Row, plain_row, with_keys_of
from rlrun.envs.watchdog import end_forked_copy
from rlrun.experiment.outcome import End, RunOutcome, summary_lines
from rlrun.experiment.report.console import (
    ConsoleStyle,
    RunConsole,
    choose_style,
    known_style,
    make_console,
    print_error,
)
from rlrun.experiment.report.console_state import RunHeader
from rlrun.experiment.report.sinks import (
    CONSOLE,
    DiskRefusedError,
    JsonlSink,
    Sink,
    make_sinks,
    read_rows,
    repair,
)
from rlrun.experiment.run_checkpoints import RunCheckpoints
from rlrun.experiment.run_folder import RunFolder, RunFolderError, in_shell, is_checkpoint
from rlrun.experiment.run_log import RunLog
from rlrun.experiment.stopping import Interrupts, StopCriteria
from rlrun.experiment.unfinished_run import require_work, unfinished_run

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm

log = logging.getLogger(__name__)


def run_experiment(
    experiment: GivenExperiment,
    overrides: Sequence[str] = (),
    *,
    run_dir: Path | str | None = None,
    resume: bool = False,
    address: str | None = None,
    console: ConsoleStyle | None = None,
) -> RunOutcome:
    """Train an experiment until it stops, in a new run folder; see also `iterate_experiment`.

    Args:
        experiment: path of an experiment file, a dict of its keys, a builder such as `PPOConfig`,
            or the result of ``load_experiment``.
        overrides: ``KEY=VALUE`` texts laid over the file or the dict.
        run_dir: the exact folder; default ``runs/<name>/<date>-<time>-s<seed>``.
        resume: resume the newest unfinished run of this configuration, or the run in ``run_dir``,
            if there is one; for jobs that a scheduler starts again.
        address: Ray cluster to join; default a local Ray, started only for remote env runners.
        console: "panel", "lines" or "quiet"; default a panel if the terminal can show it.

    Raises:
        ConfigError: the experiment is wrong. RunFolderError: the folder cannot be used.
        EnvError: the environment failed. Checkpoints written before any error stay valid.
    """
    results = iterate_experiment(
        experiment, overrides, run_dir=run_dir, resume=resume, address=address, console=console
    )
    return _outcome_of(results)


def iterate_experiment(
    experiment: GivenExperiment,
    overrides: Sequence[str] = (),
    *,
    run_dir: Path | str | None = None,
    resume: bool = False,
    address: str | None = None,
    console: ConsoleStyle | None = None,
) -> Generator[Row, None, RunOutcome]:
    """Train like `run_experiment`, and yield the result of each iteration once it is reported.

    Arguments, errors and the generator's return value are those of `run_experiment`. The time
    between two results counts towards the second. Leaving the loop early ends the run as Ctrl-C
    does, with a checkpoint to resume from, as soon as the generator is closed or garbage collected.
    """
    console = known_style(console)
    experiment, loaded = given_experiment(experiment, overrides)
    unfinished = unfinished_run(RunFolder, experiment, run_dir) if resume else None
    if unfinished is not None:
        results = _resumed(unfinished, (), address=address, console=console, trust=True)
        return (yield from results)
    experiment = with_links_followed(with_seed(experiment))
    folder = RunFolder.create(experiment.name, seed_of(experiment), at=run_dir)
    with closing(folder), RunLog(folder.log, print_error) as run_log:
        try:
            session = RunSession(experiment, folder, None, address, console)
            session.write_config()
        except (OSError, KeyboardInterrupt):
            folder.discard()
            raise
        return (yield from session.run(run_log, overrides, loaded))


def resume_experiment(
    run: Path | str,
    overrides: Sequence[str] = (),
    *,
    run_dir: Path | str | None = None,
    address: str | None = None,
    console: ConsoleStyle | None = None,
    trust: bool = False,
) -> RunOutcome:
    """Resume a run from its newest checkpoint, in the same folder.

    The settings come from the run's ``config.yaml``, with ``overrides`` laid over them; the file is
    rewritten. A run without a checkpoint starts from the beginning. A finished run continues if
    ``overrides`` move its stop.

    Args:
        run: the run's folder; or one checkpoint, from which a new run continues with its settings.
        run_dir: the exact folder of that new run.
        trust: import the code that the run names, even if this user has not signed it.

    Raises:
        RunFolderError, CheckpointError, ConfigError: it cannot be resumed; the folder is unchanged.
        TrustError: the run names code that this user has not signed.
    """
    console = known_style(console)
    if is_checkpoint(Path(run)):
        folder = RunFolder.branch(checkpoint_at(Path(run), replay=False).path, at=run_dir)
    elif run_dir is not None and Path(run).exists():
        raise RunFolderError(
            f"{run}: a run is resumed in its own folder; only from a checkpoint in another"
        )
    else:
        folder = RunFolder.open(Path(run))
    return _outcome_of(_resumed(folder, overrides, address=address, console=console, trust=trust))


def _resumed(
    folder: RunFolder,
    overrides: Sequence[str],
    *,
    address: str | None,
    console: ConsoleStyle | None,
    trust: bool,
) -> Generator[Row, None, RunOutcome]:
    with closing(folder), RunLog(folder.log, print_error) as run_log:
        try:
            loaded = load(folder.config, overrides, trust=trust)
            session = RunSession(
                loaded.experiment, folder, newest_checkpoint(folder.checkpoints), address, console
            )
            if session.resumed is not None:  # a row of the file has the keys of all rows
                first = next(read_rows(folder.metrics, warn=False), {})
                session.check_keys(with_keys_of(first, session.resumed.row))
            require_work(folder, loaded.experiment, session.resumed, session.stop_reason())
        except (ConfigError, InputError):
            folder.withdraw_session()
            raise
        return (yield from session.run(run_log, overrides, loaded))


def _outcome_of(results: Generator[Row, None, RunOutcome]) -> RunOutcome:
    """Iterate a run to its end; returns its outcome."""
    while True:
        try:
            next(results)
        except StopIteration as end:
            return end.value


def with_seed(experiment: ExperimentConfig) -> ExperimentConfig:
    """The experiment, with a random seed if it names none."""
    seed = secrets.randbelow(2**31) if experiment.seed is None else experiment.seed
    return experiment.model_copy(update={"seed": seed})


def seed_of(experiment: ExperimentConfig) -> int:
    """The seed of a run's experiment, which always has one."""
    assert experiment.seed is not None
    return experiment.seed


class RunSession:
    """One session of a run in its folder, used once: by `run`, or step by step."""

    def __init__(
        self,
        experiment: ExperimentConfig,
        folder: RunFolder,
        checkpoint: Checkpoint | None,
        address: str | None,
        console: ConsoleStyle | None,
    ) -> None:
        self.experiment, self.resumed, self.address = experiment, checkpoint, address
        self._config_yaml = signed_yaml(experiment)
        smoothing = experiment.report.smoothing_episodes
        self.stop = StopCriteria(experiment.stop, smoothing_episodes=smoothing)
        wanted = any(spec.use == CONSOLE for spec in experiment.report.sinks)
        self.style: ConsoleStyle = console or (choose_style() if wanted else "quiet")
        self.checkpoints = RunCheckpoints(experiment, folder, self._config_yaml, self._warn_once)
        # The last result, of an earlier session at first.
        self.last_row: Row | None = checkpoint.row if checkpoint else None
        self.sinks: list[Sink] = []
        self.warned: set[str] = set()
        """Names of failed writes that the console has warned of."""
        self.console: RunConsole
        self._process_id = os.getpid()

    @property
    def folder(self) -> RunFolder:
        """The run folder, or the one in which `rescue` has saved the run."""
        return self.checkpoints.folder

    def run(
        self, run_log: RunLog, overrides: Sequence[str], loaded: Loaded | None
    ) -> Generator[Row, None, RunOutcome]:
        """Train to the end; however the session ends, note the outcome and close everything."""
        with ExitStack() as stack:
            self.begin(stack, run_log, overrides)
            for problem in loaded.warnings if loaded else ():
                log.warning("%s", problem.render())
            interrupts = stack.enter_context(Interrupts(self._on_signal))
            try:
                outcome = yield from self._train_to_end(stack, interrupts)
            except KeyboardInterrupt:
                name = interrupts.cause or "SIGINT"
                self.rescue()
                outcome = self._outcome("interrupted", f"{name}, at once")
            except BaseException as error:
                if not (isinstance(error, GeneratorExit) and (self.done or interrupts.requested)):
                    self._note_error(error)
                    if isinstance(error, ConfigError) and loaded is not None:
                        raise loaded.placed(error) from error
                    raise
                outcome = self._outcome_at_end(interrupts)
            self.note_end(outcome.end, outcome.reason)
            self.console.close()
            lines = summary_lines(outcome, self.stop, without_replay=self._without_replay)
            self.console.summary(lines)
            return outcome

    @property
    def _without_replay(self) -> bool:
        """Whether the algorithm learns from a replay buffer that is not in checkpoints."""
        uses_it = "replay" in algorithm_class(self.experiment.algorithm).optional_sections
        return uses_it and not self.experiment.replay.store_in_checkpoints

    def write_config(self) -> None:
        """Write the folder's `config.yaml`."""
        replace_text(self.folder.config, self._config_yaml)

    def begin(self, stack: ExitStack, run_log: RunLog, overrides: Sequence[str]) -> None:
        """Note the start of a session in the folder, and open the console."""
        iteration = self.resumed.iteration if self.resumed else None
        history = read_rows(self.folder.metrics, warn=False)  # `repair` warns
        self.console = make_console(self.style, self._header(), history)
        stack.callback(self.console.close)
        run_log.notice = self.console.notice
        self.folder.begin_session(resumed_from=iteration, overrides=overrides)
        start = "the beginning" if iteration is None else f"iteration {iteration}"
        if iteration is None and self.folder.metrics.exists():
            self.console.notice(f"{self.folder.path} has no checkpoint: starts from the beginning")
        log.info("a session starts from %s: %s", start, shlex.join(sys.argv))

    def _train_to_end(
        self, stack: ExitStack, interrupts: Interrupts
    ) -> Generator[Row, None, RunOutcome]:
        if self.done:
            return self._outcome("finished", self.stop_reason())
        algorithm = self.build(stack)
        parts = algorithm.progress, algorithm.env_runner_group, algorithm.evaluator
        interrupts.defer(*(part.interrupt for part in parts))
        yield from self._iterate(algorithm, interrupts)
        return self._outcome_at_end(interrupts)

    def build(self, stack: ExitStack) -> "Algorithm":
        """Make the algorithm and the sinks; ``stack`` closes them."""
        algorithm = self._build_algorithm(stack)
        if algorithm.policies.masked:
            self.console.notice("policies take only actions that the action_mask allows")
        self.sinks = make_sinks(self.experiment.report.sinks, self.folder)
        stack.callback(self._close_sinks)
        return algorithm

    def _build_algorithm(self, stack: ExitStack) -> "Algorithm":
        """Make the algorithm, restore the checkpoint, and only then change files of the folder."""
        runners = self.experiment.env_runners.num_env_runners
        self.console.status(f"starting {runners} env runners" if runners else "starting")
        experiment = self.experiment if self.resumed is None else self.experiment.begun
        make = algorithm_class(experiment.algorithm)
        algorithm: Algorithm = make(experiment, address=self.address)
        stack.callback(algorithm.stop)
        if self.resumed is not None:
            restore_checkpoint(algorithm, self.resumed)
            # What has been restored may be a replay buffer: it is not kept a second time.
            self.resumed = replace(self.resumed, state={}, weights={})
        self.write_config()
        if own := self.resumed is not None and self.resumed.path.parent == self.folder.checkpoints:
            self.checkpoints.files.set_aside_after(self.resumed.iteration)
            if self._without_replay:
                log.warning("the replay buffer starts empty (replay.store_in_checkpoints: false)")
        repair(self.folder.metrics, self.resumed.row if self.resumed else None, whole=own)
        return algorithm

    def _iterate(self, algorithm: "Algorithm", interrupts: Interrupts) -> Iterator[Row]:
        result: dict[str, Any] | None = None
        while not interrupts.look():
            result = algorithm.train()
            row = self.end_iteration(algorithm, result)
            try:
                yield row
            except GeneratorExit:  # the session ends as after a signal, with a checkpoint
                if not self.done:
                    interrupts.cause = "the loop over the results was left"
            if self.done:
                break
        wanted = self.experiment.checkpoint.at_end or interrupts.requested
        if result is not None and (wanted or not self.folder.is_there()):
            self.save(algorithm, result)
        for sink in self.sinks:
            if isinstance(sink, JsonlSink):
                sink.finish()

    def end_iteration(self, algorithm: "Algorithm", result: dict[str, Any]) -> Row:
        """Report an iteration's result and save a checkpoint if one is due; returns the row."""
        end_forked_copy(self._process_id)
        with algorithm.timers.phase("report"):
            row = self._report(result)
        with algorithm.timers.phase("checkpoint"):
            self._show_saved(self.checkpoints.end_iteration(algorithm, result))
        return row

    def check_keys(self, result: Row) -> None:
        """Raise InputError if a setting names a key that the results do not have."""
        self.stop.check_keys(result, [("checkpoint.metric", self.experiment.checkpoint.metric)])

    def save(self, algorithm: "Algorithm", result: dict[str, Any]) -> None:
        """Write a checkpoint, unless it exists."""
        self._show_saved(self.checkpoints.save(algorithm, result, must=True))

    def _show_saved(self, path: Path | None) -> None:
        if path is not None:
            best = self.checkpoints.best
            self.console.saved(path.name, None if best is None else best.name)

    def rescue(self) -> None:
        """Save the last state held in memory, as the algorithm's own may be half updated."""
        sinks = [sink for sink in self.sinks if isinstance(sink, JsonlSink)]
        self.checkpoints.rescue(lambda: b"".join(sink.content() for sink in sinks))

    def _report(self, result: dict[str, Any]) -> Row:
        if self.last_row is None:
            self.check_keys(result)
        row = self.last_row = plain_row(result)
        self.console.write(result)
        for sink in [*self.sinks]:
            try:
                sink.write(result)
            except DiskRefusedError:
                raise
            except OSError as error:
                self._warn_once(type(sink).__name__, _in_words(error))
            except Exception as error:
                self._set_aside(sink, error)
        return dict(row)  # a copy, which the caller may change

    def _set_aside(self, sink: Sink, error: Exception) -> None:
        """Close a sink that has raised, and continue without it."""
        self.sinks.remove(sink)
        log.warning("%s: %s; the run continues without it", type(sink).__name__, _in_words(error))
        log.info("its traceback:", exc_info=error)
        self._close_sink(sink)

    def _warn_once(self, of: str, text: str) -> None:
        """Warn of a failed write: the first time on the console, later only in the log."""
        if of in self.warned:
            log.info("again: %s: %s", of, text)
            return
        self.warned.add(of)
        log.warning("%s: %s; the run continues, and tries again", of, text)

    def _close_sinks(self) -> None:
        for sink in self.sinks:
            self._close_sink(sink)

    def _close_sink(self, sink: Sink) -> None:
        try:
            sink.close()
        except Exception as error:
            log.warning("%s: %s", type(sink).__name__, _in_words(error))

    def _header(self) -> RunHeader:
        experiment = self.experiment
        return RunHeader(
            algorithm=experiment.algorithm,
            env=experiment.env.use,
            seed=seed_of(experiment),
            folder=self.folder.path,
            num_env_runners=experiment.env_runners.num_env_runners,
            stop=self.stop,
            resumed_from=self.resumed.iteration if self.resumed else None,
        )

    def _on_signal(self, name: str) -> None:
        again = "; Ctrl-C again stops at once" if name == "SIGINT" else ""
        self.console.notice(f"{name}: finishing this iteration, then saving{again}")

    def _how_to_resume(self) -> str:
        newest = self.checkpoints.newest
        if not self.folder.is_there():
            return "the run failed, and its last state could not be written anywhere"
        see_log = f"see {self.folder.path / self.folder.log.name}"
        if newest is None:
            return f"the run failed before its first checkpoint; {see_log}"
        return (
            f"the run failed, {see_log}; checkpoint {newest.name} is valid: "
            f"{RunFolder.RESUME} {in_shell(self.folder.path)}"
        )

    @property
    def done(self) -> bool:
        """Whether the last result, possibly of an earlier session, meets a stop criterion."""
        return bool(self.stop.reached(self.last_row or {}))

    def stop_reason(self) -> str:
        """The stop criteria that the last result meets, as text; empty if there are none."""
        return ", ".join(self.stop.reached(self.last_row or {}).values())

    def _note_error(self, error: BaseException) -> None:
        before = self.resumed.row if self.resumed else None
        if getattr(error, "exit_code", None) == 2 and self.last_row is before:  # nothing trained
            log.info("refused", exc_info=error)
            self.folder.withdraw_session()
        else:
            self.note_failure(error)
            error.add_note(self._how_to_resume())

    def note_failure(self, error: BaseException) -> None:
        """Write the traceback to the log, the reason to meta.json, and the state held in memory."""
        end_forked_copy(self._process_id)
        log.error("the run failed", exc_info=error)
        text = f"{type(error).__name__}: {error}"
        first, reason = self.folder, getattr(error, "in_one_line", text)
        if first.is_there():
            self._note_outcome("failed", reason)
        self.rescue()
        if self.folder is not first:
            self._note_outcome("failed", reason)

    def note_end(self, outcome: str, reason: str) -> None:
        """Write the outcome of the session to the log and to meta.json."""
        log.info("%s: %s", outcome, reason)
        self._note_outcome(outcome, reason)

    def _note_outcome(self, outcome: str, reason: str) -> None:
        iteration = self.last_row["training_iteration"] if self.last_row else None
        try:
            self.folder.end_session(outcome, reason, iteration)
        except OSError as error:
            log.warning("meta.json: %s", error.strerror or error)

    def _outcome_at_end(self, interrupts: Interrupts) -> RunOutcome:
        if interrupts.cause is not None:
            return self._outcome("interrupted", interrupts.cause)
        return self._outcome("finished", self.stop_reason())

    def _outcome(self, end: End, reason: str) -> RunOutcome:
        newest, best = self.checkpoints.newest, self.checkpoints.best
        home = self.folder.path / CHECKPOINTS
        files = [] if newest is None else newest.glob("*")
        return RunOutcome(
            end=end,
            reason=reason,
            folder=self.folder.path,
            result=self.last_row,
            checkpoint=None if newest is None else home / newest.name,
            checkpoint_bytes=sum(file.stat().st_size for file in files),
            best_checkpoint=None if best is None else home / best.name,
        )


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"
