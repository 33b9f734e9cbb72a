"""The runs of a verification: a run folder and two commands for each case and seed.

Owns the folders, the next command for each, and the child processes. It must not know the published
numbers. A run is `rlrun train` into a run folder, then `rlrun rollout` on it. The folder alone
determines the next command, so a killed verification can be continued. (The trials of a sweep are
different: they share one experiment file and need Ray.)

    RESULTS/<case>/seed-<n>/                  the run folder
    RESULTS/<case>/seed-<n>/evaluation.json   output of `rlrun rollout --json`; written last
    RESULTS/<case>/seed-<n>.log               error output of the commands
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rlrun.checkpoint.files import replace_text
from rlrun.config.dump import to_plain
from rlrun.config.loader import load_experiment
from rlrun.config.problems import ConfigError, InputError, Problem
from rlrun.config.registry import configs_folder
from rlrun.config.schema import ExperimentConfig
from rlrun.data.results import flat
from rlrun.experiment.run_folder import RunFolder, is_in_use
from rlrun.experiment.session import last_session
from rlrun.experiment.stopping import Interrupts
from rlrun.experiment.verify.cases import Case

EVALUATION_EPISODES = 100
JUDGING_SEED = 1_000_000
"""Seed of the episodes that judge a checkpoint which the run's own evaluations have chosen."""
RLRUN = (sys.executable, "-m", "rlrun")
_POLL_S = 0.05


@dataclass(frozen=True)
class SeedRun:
    """One case with one seed."""

    case: Case
    seed: int
    experiment: ExperimentConfig
    folder: RunFolder

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"{self.case.name} seed {self.seed}"

    @property
    def log(self) -> Path:
        """File with the error output of the commands."""
        return self.folder.path.with_suffix(".log")

    @property
    def evaluation(self) -> Path:
        """File with the result of the rollout, which is written last."""
        return self.folder.path / "evaluation.json"

    @property
    def num_cpus(self) -> int:
        """Busy processes at a time: the env runners, or else the training process."""
        return max(1, self.experiment.env_runners.num_env_runners)

    def next_command(self) -> list[str] | None:
        """The arguments of the next `rlrun` command; None if the run is finished."""
        path = str(self.folder.path)
        if self.evaluation.exists():
            return None
        if self.folder.is_finished():
            words = ["rollout", path, "--episodes", str(EVALUATION_EPISODES), "--json"]
            chosen_by_evaluation = self.experiment.checkpoint.metric.startswith("evaluation/")
            return [*words, "--seed", str(JUDGING_SEED)] if chosen_by_evaluation else words
        if self.folder.config.exists():
            return ["train", "--resume", path, "--quiet"]
        config, overrides = str(configs_folder() / self.case.config), self.case.all_overrides()
        return ["train", config, *overrides, f"seed={self.seed}", "--run-dir", path, "--quiet"]


def plan_runs(cases: Sequence[Case], seeds: Sequence[int], results: Path) -> list[SeedRun]:
    """The runs of the cases with these seeds.

    Raises:
        ConfigError: all problems of the cases' files, for instance a missing extra.
        InputError: the folder has runs with different settings.
    """
    runs: list[SeedRun] = []
    problems: list[Problem] = []
    for case in cases:
        try:
            experiment = load_experiment(configs_folder() / case.config, case.all_overrides())
        except ConfigError as error:
            problems += error.problems
            continue
        for seed in seeds:
            folder = RunFolder(results / case.name / f"seed-{seed}")
            seeded = experiment.model_copy(update={"seed": seed})
            runs.append(SeedRun(case, seed, seeded, folder))
    if problems:
        raise ConfigError(problems)
    stale = [text for run in runs if (text := _other_settings(run))]
    if stale:
        message = "these runs cannot be used; move them, or name another folder with --results"
        raise InputError("\n".join([*stale, message]))
    return runs


def _other_settings(run: SeedRun) -> str:
    """The differences between the settings of the folder and the case as text, or ""."""
    if not run.folder.config.exists():
        return ""
    try:
        trained = load_experiment(run.folder.config)
    except ConfigError as error:
        return f"{run.folder.path}: {error.problems[0].render()}"
    there, here = _settings(trained), _settings(run.experiment)
    texts = [
        f"{key} is {there.get(key, 'missing')}, expected {here.get(key, 'none')}"
        for key in {**there, **here}
        if there.get(key) != here.get(key)
    ]
    other = f"{run.folder.path}: trained with other settings: {'; '.join(texts)}"
    return other if texts else ""


def _settings(experiment: ExperimentConfig) -> dict[str, str]:
    """Address -> value as JSON, without what only decides what checkpoints hold."""
    values = flat(to_plain(experiment), ".")
    values.pop("replay.store_in_checkpoints", None)
    return {key: json.dumps(value) for key, value in values.items()}


Ended = tuple[SeedRun, str | None]
"""A run that has ended, and the reason if it has failed."""


class _Process:
    """A child process with one command of a run; its output goes to files."""

    def __init__(self, run: SeedRun, rlrun: Sequence[str], words: list[str]) -> None:
        self.run, self.words = run, words
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - finish() closes it
        run.log.parent.mkdir(parents=True, exist_ok=True)
        with run.log.open("ab") as log:
            self.popen = subprocess.Popen(
                [*rlrun, *words],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=log,
                # So that Ctrl-C reaches only this process, which passes it on once.
                start_new_session=True,
            )

    def finish(self) -> str | None:
        """Store the output, and return the reason if the command failed."""
        self._output.seek(0)
        text = self._output.read().decode(errors="replace")
        self._output.close()
        if self.popen.returncode != 0:
            return self._why_it_failed()
        if self.words[0] == "rollout":
            replace_text(self.run.evaluation, text)
        else:
            with self.run.log.open("a", encoding="utf-8") as log:
                log.write(text)
        return None

    def _why_it_failed(self) -> str:
        session = last_session(self.run.folder.read_meta())
        if self.words[0] == "train" and session.get("outcome") == "failed":
            return str(session["reason"])
        lines = self.run.log.read_text(encoding="utf-8", errors="replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "")
        return last or f"exit code {self.popen.returncode}"


class RunQueue:
    """Executes runs, several at a time.

    Args:
        jobs: CPU cores to use; a run that needs more runs alone.
        notice: called with lines of text.
        rlrun: words of the command line that start rlrun.
    """

    def __init__(
        self, jobs: int, notice: Callable[[str], None], rlrun: Sequence[str] = RLRUN
    ) -> None:
        self.notice = notice
        self._jobs, self._rlrun = jobs, rlrun
        self._waiting: list[SeedRun] = []
        self._running: list[_Process] = []
        self._elsewhere: set[str] = set()
        self.interrupted = False

    def execute(self, runs: Sequence[SeedRun]) -> Iterator[Ended]:
        """Yield each run when it ends. After a signal running ones save, and no others start."""
        self._waiting = list(runs)
        with Interrupts(self._on_signal) as interrupts:
            interrupts.defer()
            try:
                while self._running or (self._waiting and not self.interrupted):
                    if not self.interrupted:
                        yield from self._start()
                    time.sleep(_POLL_S)
                    yield from self._collect()
            except BaseException:
                for process in self._running:
                    process.popen.kill()
                    process.popen.wait()
                raise

    def _start(self) -> Iterator[Ended]:
        """Start the runs that fit, except those that another process executes."""
        for run in list(self._waiting):
            used = sum(process.run.num_cpus for process in self._running)
            if used and used + run.num_cpus > self._jobs:
                return
            if is_in_use(run.folder.path):
                if run.name not in self._elsewhere:
                    self.notice(f"{run.name}: waiting for another process that executes this run")
                    self._elsewhere.add(run.name)
                continue
            self._waiting.remove(run)
            if not run.folder.config.exists():
                run.folder.discard()  # An empty folder, left by an early kill.
            words = run.next_command()
            if words is None:
                yield run, None  # Finished by the other process.
            else:
                self._running.append(_Process(run, self._rlrun, words))

    def _collect(self) -> Iterator[Ended]:
        for process in [each for each in self._running if each.popen.poll() is not None]:
            self._running.remove(process)
            error = process.finish()
            run = process.run
            if error is None and run.next_command() == process.words:
                error = f"`rlrun {process.words[0]}` ended without a result"
            if error is None and run.next_command() is not None:
                self._waiting.insert(0, run)
            elif not self.interrupted or error is None:
                yield run, error

    def _on_signal(self, name: str) -> None:
        self.interrupted = True
        self.notice(f"{name}: waiting for the runs to save; a second signal stops them at once")
        for process in self._running:
            process.popen.send_signal(signal.SIGINT)  # which has no effect on one that has ended
