"""Trains the reference cases and holds what they reach against the published numbers.

Owns measuring and judging. It must not know how runs are carried out (verify_runs.py) nor how
results are shown (verify_report.py, verify_page.py).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlrun.actors.ray_runtime import local_resources
from rlrun.config.registry import suggestion
from rlrun.data.results import Row, counts_already, number_at
from rlrun.experiment.report.jsonl import read_rows
from rlrun.experiment.verify.cases import CASES, Case
from rlrun.experiment.verify.iqm import bootstrap_interval, iqm
from rlrun.experiment.verify.runs import Ended, RunQueue, SeedRun, VerifyError, plan_runs

RETURN = "episode_return_mean"
RESULTS = Path("runs/verify")

Verdict = Literal["reached", "falls short", "failed", "unfinished", "not run"]


@dataclass(frozen=True)
class SeedResult:
    """What one seed of a case has come to."""

    seed: int
    folder: Path | None
    """Of the run; None for a result that was recorded elsewhere."""
    env_steps: int
    """Env steps trained so far."""
    trained: bool
    """Whether training has ended."""
    training: float | None
    """Mean return of the last 100 training episodes of the last iteration; None before 100."""
    goal: float | None
    """The highest such mean of all iterations."""
    evaluation: float | None
    """Mean return of the played episodes; None before they are played."""
    error: str | None
    """Why it failed, if it did."""
    curve: tuple[tuple[int, float], ...]
    """(env steps, mean return of the last 100 training episodes, or of all before 100) of each
    iteration that has one: what is drawn, while the numbers above need their 100."""
    session: Mapping[str, Any]
    """The machine, versions and commit that the run ended with, as meta.json has them."""

    @property
    def commit(self) -> str:
        """Commit of the code; marked if the code was changed since."""
        git = self.session.get("git") or {}
        return str(git.get("commit", "unknown"))[:10] + ("+" if git.get("changed") else "")


@dataclass(frozen=True)
class CaseResult:
    """A case, its seeds, and how it compares."""

    case: Case
    seeds: tuple[SeedResult, ...]
    """One for each seed that was asked for and has begun."""
    wanted: int
    """Seeds that were asked for."""

    @property
    def numbers(self) -> list[float]:
        """Of the trained seeds, the number of the kind that was published, where there is one."""
        kind = self.case.reference.kind
        trained = [seed for seed in self.seeds if seed.trained]
        return [value for seed in trained if (value := getattr(seed, kind)) is not None]

    @property
    def iqm(self) -> float | None:
        """Interquartile mean of the numbers; None without any."""
        return float(iqm(self.numbers)) if self.numbers else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% bootstrap interval of the IQM; None with fewer than two numbers."""
        return bootstrap_interval([self.numbers]) if len(self.numbers) > 1 else None

    @property
    def verdict(self) -> Verdict:
        """Whether the IQM of all seeds that were asked for is at the published number or above."""
        if any(seed.error for seed in self.seeds):
            return "failed"
        if not self.seeds:
            return "not run"
        value = self.iqm
        if len(self.numbers) < self.wanted or value is None:
            return "unfinished"
        return "reached" if value >= self.case.reference.number else "falls short"

    def to_json(self) -> dict[str, Any]:
        """One plain object."""
        reference = self.case.reference
        return {
            "case": self.case.name,
            "algorithm": self.case.algorithm,
            "env": self.case.env,
            "config": self.case.config,
            "overrides": self.case.all_overrides(),
            "env_steps": reference.env_steps,
            "kind": reference.kind,
            "expected": reference.number,
            "source": reference.source,
            "published": reference.published,
            "reached": self.iqm,
            "interval": self.interval,
            "verdict": self.verdict,
            "seeds": [
                {
                    "seed": seed.seed,
                    "folder": None if seed.folder is None else str(seed.folder),
                    "env_steps": seed.env_steps,
                    "training": seed.training,
                    "goal": seed.goal,
                    "evaluation": seed.evaluation,
                    "error": seed.error,
                    "commit": seed.commit,
                }
                for seed in self.seeds
            ],
        }


@dataclass(frozen=True)
class Verification:
    """What all cases have come to."""

    results: tuple[CaseResult, ...]
    interrupted: bool

    @property
    def all_reached(self) -> bool:
        """Whether nothing fell short, failed or is missing."""
        return all(result.verdict == "reached" for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """One plain object, for ``--json``."""
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
) -> Verification:
    """Train cases on several seeds and hold the outcome against the published numbers.

    Args:
        names: of the cases; all of them if there is none.
        seeds: of the runs of each case.
        results: folder of the runs; what is finished there is not trained again.
        jobs: CPU cores to use at a time; default all.
        train: False takes the folder as it is.
        notice: receives a line whenever there is news.
        cases: the table to choose from.

    Raises:
        VerifyError: no such case, or ``results`` holds runs with other settings.
        ConfigError: a case cannot run here; it lacks an extra for instance.

    """
    chosen = choose_cases(names, cases)
    runs = plan_runs(chosen, seeds, Path(results))
    errors: dict[str, str] = {}
    interrupted = False
    if train:
        interrupted = _train(runs, jobs or max(1, int(local_resources().cpus)), notice, errors)
    found = []
    for case in chosen:
        mine = [run for run in runs if run.case is case]
        begun = [seed_result(run, errors.get(run.name)) for run in mine if _has_begun(run, errors)]
        found.append(CaseResult(case, tuple(begun), len(seeds)))
    return Verification(tuple(found), interrupted)


def choose_cases(names: Sequence[str], cases: Sequence[Case] = CASES) -> list[Case]:
    """The cases of these names, in their order; all of them if there is none.

    Raises:
        VerifyError: every name that there is not, with the nearest one.

    """
    known = {case.name: case for case in cases}
    unknown = [name for name in names if name not in known]
    if unknown:
        other = "; `rlrun verify --list` names all"
        lines = [f"there is no case {n!r}{suggestion(n, known) or other}" for n in unknown]
        raise VerifyError("\n".join(lines))
    return [known[name] for name in dict.fromkeys(names)] or list(cases)


def _train(
    runs: Sequence[SeedRun], jobs: int, notice: Callable[[str], None], errors: dict[str, str]
) -> bool:
    """Carry out what is missing; fills ``errors``. Returns whether a signal ended it."""
    missing = [run for run in runs if run.next_command() is not None]
    done = len(runs) - len(missing)
    if done:
        notice(f"{done} of {len(runs)} runs are finished already")
    queue = RunQueue(missing, jobs, notice)
    for ended in queue.work():
        done += ended.error is None
        if ended.error is not None:
            errors[ended.run.name] = ended.error
        notice(f"{_news(ended)}  ({done} of {len(runs)})")
    return queue.interrupted


def _news(ended: Ended) -> str:
    if ended.error is not None:
        return f"{ended.run.name}: failed: {ended.error}; see {ended.run.log}"
    result = seed_result(ended.run)
    texts = [
        f"{text} {value:,.2f}"
        for text, value in (("training", result.training), ("evaluation", result.evaluation))
        if value is not None
    ]
    return f"{ended.run.name}: {', '.join(texts)} after {result.env_steps:,} env steps"


def _has_begun(run: SeedRun, errors: dict[str, str]) -> bool:
    return run.folder.metrics.exists() or run.name in errors


def seed_result(run: SeedRun, error: str | None = None) -> SeedResult:
    """Read what a run has come to out of its folder."""
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
    sessions = run.folder.read_meta().get("sessions") or [{}]
    return SeedResult(
        seed=run.seed,
        folder=run.folder.path,
        env_steps=int(rows[-1]["env_steps"]) if rows else 0,
        trained=run.trained,
        training=_full_mean(rows[-1], smoothing) if rows else None,
        goal=max((mean for mean in full_means if mean is not None), default=None),
        evaluation=evaluation,
        error=error,
        curve=curve,
        session=sessions[-1],
    )


def _full_mean(row: Row, smoothing_episodes: int) -> float | None:
    """A row's mean return; None while it averages fewer episodes than it should."""
    return number_at(row, RETURN) if counts_already(RETURN, row, smoothing_episodes) else None
