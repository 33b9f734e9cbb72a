"""Training the reference cases and comparing them with the published numbers.

Owns measuring and judging, by the interquartile mean of runs and its bootstrap interval
(report/statistics.py). It must not know how runs are executed (runs.py) or shown (page.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from rlrun.actors.ray_runtime import local_resources
from rlrun.config.problems import InputError
from rlrun.config.registry import suggestion
from rlrun.data.results import RETURN, Row, counts_already, number_at
from rlrun.experiment.report.sinks import read_rows
from rlrun.experiment.report.statistics import estimate, iqm
from rlrun.experiment.session import last_session
from rlrun.experiment.verify.cases import CASES, Case, Reference
from rlrun.experiment.verify.runs import RLRUN, RunQueue, SeedRun, plan_runs

RESULTS = Path("runs/verify")

Verdict = Literal["failed", "not run", "unfinished", "falls short", "passes", "reached"]
_FROM_THE_LEAST: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class SeedResult:
    """The result of one seed of a case."""

    seed: int
    folder: Path | None
    """The run folder; None for a recorded result."""
    env_steps: int
    """Env steps trained so far."""
    trained: bool
    """Whether training has ended."""
    training: float | None
    """Mean return of the last 100 training episodes of the last iteration; None before 100."""
    goal: float | None
    """The highest such mean of all iterations."""
    evaluation: float | None
    """Mean return of the rollout; None before it."""
    error: str | None
    """Reason of the failure, or None."""
    curve: tuple[tuple[int, float], ...]
    """(env steps, mean return of the last 100 training episodes, or of all if fewer) of each
    iteration with episodes, for the picture. The numbers above need 100 episodes."""
    session: Mapping[str, Any]
    """The last session in the run's meta.json: machine, versions, commit."""

    @property
    def commit(self) -> str:
        """Commit of the code, with a `+` if there were further changes."""
        git = self.session.get("git") or {}
        return str(git.get("commit", "unknown"))[:10] + ("+" if git.get("changed") else "")

    def facts(self) -> dict[str, Any]:
        """The plain values: seed, env steps, the numbers of each kind, and the error."""
        names = ("seed", "env_steps", "trained", "training", "goal", "evaluation", "error")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Judgement:
    """The results of a case's seeds, compared with a published number."""

    bar: Reference
    numbers: tuple[float, ...]
    """The number of the bar's kind of each seed that has one."""
    of: CaseResult

    @property
    def iqm(self) -> float | None:
        """Interquartile mean of the numbers; None without any."""
        return float(iqm(self.numbers)) if self.numbers else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """95% bootstrap interval of the IQM; with few seeds the lowest and the highest number."""
        found = estimate(self.numbers) if self.numbers else None
        if found is None or found.low is None or found.high is None:
            return None
        return found.low, found.high

    @property
    def verdict(self) -> Verdict:
        """Whether the IQM of all requested seeds is at least the published number."""
        if any(seed.error for seed in self.of.seeds):
            return "failed"
        if not self.of.seeds:
            return "not run"
        value = self.iqm
        if len(self.numbers) < self.of.wanted or value is None:
            return "unfinished"
        if value < self.bar.number:
            return "falls short"
        return "passes" if self.bar.pass_mark else "reached"

    def to_json(self) -> dict[str, Any]:
        """The judgement as plain JSON values."""
        bar = asdict(self.bar)
        bar["expected"] = bar.pop("number")
        return {**bar, "reached": self.iqm, "spread": self.spread, "verdict": self.verdict}


@dataclass(frozen=True)
class CaseResult:
    """A case with the results of its seeds."""

    case: Case
    seeds: tuple[SeedResult, ...]
    """The requested seeds that have started."""
    wanted: int
    """Number of requested seeds."""

    @property
    def judgements(self) -> tuple[Judgement, ...]:
        """One for each of the case's bars."""
        trained = [seed for seed in self.seeds if seed.trained]
        found = []
        for bar in self.case.bars:
            numbers = (getattr(seed, bar.kind) for seed in trained)
            found.append(Judgement(bar, tuple(x for x in numbers if x is not None), self))
        return tuple(found)

    @property
    def num_finished(self) -> int:
        """Seeds that have a number for each bar."""
        return min(len(judgement.numbers) for judgement in self.judgements)

    @property
    def verdict(self) -> Verdict:
        """The least of the verdicts on its bars."""
        verdicts = {judgement.verdict for judgement in self.judgements}
        return next(verdict for verdict in _FROM_THE_LEAST if verdict in verdicts)

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        return {
            "case": self.case.name,
            "algorithm": self.case.algorithm,
            "env": self.case.env,
            "config": self.case.config,
            "overrides": self.case.all_overrides(),
            "env_steps": self.case.budget,
            "bars": [judgement.to_json() for judgement in self.judgements],
            "verdict": self.verdict,
            "seeds": [
                {
                    **seed.facts(),
                    "folder": None if seed.folder is None else str(seed.folder),
                    "commit": seed.commit,
                }
                for seed in self.seeds
            ],
        }


@dataclass(frozen=True)
class Verification:
    """The results of all cases."""

    results: tuple[CaseResult, ...]
    interrupted: bool

    @property
    def all_reached(self) -> bool:
        """Whether all cases reached their numbers."""
        return all(result.verdict in ("reached", "passes") for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """The verification as plain JSON values."""
        return {
            "interrupted": self.interrupted,
            "all_reached": self.all_reached,
            "cases": [result.to_json() for result in self.results],
        }


def verify(
    names: Sequence[str] = (),
    *,
    seeds: Sequence[int] = (1, 2, 3),
    results: Path | str = RESULTS,
    jobs: int | None = None,
    train: bool = True,
    notice: Callable[[str], None] = print,
    cases: Sequence[Case] = CASES,
    rlrun: Sequence[str] = RLRUN,
) -> Verification:
    """Train cases on several seeds and compare the results with the published numbers.

    Args:
        names: names of the cases; empty for all.
        seeds: seeds of the runs of each case.
        results: folder of the runs; finished runs are not trained again.
        jobs: CPU cores to use; default all.
        train: if False, only read the folder.
        notice: called with a line of text whenever a run has ended.
        cases: the cases to choose from.
        rlrun: words of the command line that start rlrun.

    Raises:
        InputError: no such case, or ``results`` holds runs with other settings.
        ConfigError: a case cannot run, for instance because an extra is missing.
    """
    chosen = choose_cases(names, cases)
    runs = plan_runs(chosen, seeds, Path(results))
    errors: dict[str, str] = {}
    interrupted = False
    if train:
        queue = RunQueue(jobs or max(1, int(local_resources().cpus)), notice, rlrun)
        errors = _train(runs, queue)
        interrupted = queue.interrupted
    found = []
    for case in chosen:
        mine = [run for run in runs if run.case is case]
        begun = [run for run in mine if run.folder.metrics.exists() or run.name in errors]
        seed_results = tuple(seed_result(run, errors.get(run.name)) for run in begun)
        found.append(CaseResult(case, seed_results, len(seeds)))
    return Verification(tuple(found), interrupted)


def choose_cases(names: Sequence[str], cases: Sequence[Case] = CASES) -> list[Case]:
    """The cases of these names, in the order of the names; all cases without names.

    Raises:
        InputError: names are unknown; the message has the nearest ones.
    """
    known = {case.name: case for case in cases}
    unknown = [name for name in names if name not in known]
    if unknown:
        other = "; see `rlrun verify --list`"
        lines = [f"there is no case {n!r}{suggestion(n, known) or other}" for n in unknown]
        raise InputError("\n".join(lines))
    return [known[name] for name in dict.fromkeys(names)] or list(cases)


def _train(runs: Sequence[SeedRun], queue: RunQueue) -> dict[str, str]:
    """Execute the unfinished runs, and return errors by name of the run."""
    errors: dict[str, str] = {}
    missing = [run for run in runs if run.next_command() is not None]
    if done := len(runs) - len(missing):
        queue.notice(f"{done} of {len(runs)} runs are finished already")
    for run, error in queue.execute(missing):
        done += error is None
        if error is not None:
            errors[run.name] = error
        queue.notice(f"{run.name}: {_end_text(run, error)}  ({done} of {len(runs)})")
    return errors


def _end_text(run: SeedRun, error: str | None) -> str:
    if error is not None:
        return f"failed: {error}; see {run.log}"
    result = seed_result(run)
    texts = [
        f"{text} {value:,.2f}"
        for text, value in (("training", result.training), ("evaluation", result.evaluation))
        if value is not None
    ]
    return f"{', '.join(texts)} after {result.env_steps:,} env steps"


def seed_result(run: SeedRun, error: str | None = None) -> SeedResult:
    """The result in a run's folder."""
    rows = list(read_rows(run.folder.metrics))
    smoothing = run.experiment.report.smoothing_episodes
    curve = tuple(
        (int(row["env_steps"]), mean)
        for row in rows
        if (mean := number_at(row, RETURN)) is not None
    )
    full_means = (_full_mean(row, smoothing) for row in rows)
    evaluation = None
    if run.evaluation.exists():
        evaluation = number_at(json.loads(run.evaluation.read_text(encoding="utf-8")), RETURN)
    return SeedResult(
        seed=run.seed,
        folder=run.folder.path,
        env_steps=int(rows[-1]["env_steps"]) if rows else 0,
        trained=run.folder.is_finished(),
        training=_full_mean(rows[-1], smoothing) if rows else None,
        goal=max((mean for mean in full_means if mean is not None), default=None),
        evaluation=evaluation,
        error=error,
        curve=curve,
        session=last_session(run.folder.read_meta()),
    )


def _full_mean(row: Row, smoothing_episodes: int) -> float | None:
    """A row's mean return; None until its window of episodes is full."""
    return number_at(row, RETURN) if counts_already(RETURN, row, smoothing_episodes) else None
