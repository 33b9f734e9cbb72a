"""The results of a verification: tables, the page docs/results.md, its curves and its record.

Owns the words, the columns, the picture and `results.json` beside the page, from which a machine
that has not trained all cases can rewrite the page. It must not know how numbers are measured.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlrun.checkpoint.files import replace_text
from rlrun.config.registry import configs_folder
from rlrun.config.yaml_tree import parse_yaml
from rlrun.experiment.report.charts import Chart, Curve, thinned
from rlrun.experiment.report.numbers import number, two_decimals
from rlrun.experiment.report.plots import save_charts
from rlrun.experiment.report.tables import Table
from rlrun.experiment.verify.cases import CASES, KINDS, SOURCES, Case
from rlrun.experiment.verify.verify import CaseResult, Judgement, SeedResult, Verification

POINTS_OF_A_CURVE = 200


def with_recorded(verification: Verification, path: Path) -> Verification:
    """The verification, with recorded results for unfinished cases and cases without runs.

    An entry is used if the case's settings are unchanged and the entry has more finished seeds than
    the verification. The results have the order of CASES.
    """
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    results = {result.case: result for result in verification.results}
    for case in CASES:
        if case.name in entries:
            results.setdefault(case, CaseResult(case, (), entries[case.name]["wanted"]))
    place = {case: i for i, case in enumerate(CASES)}
    ordered = sorted(results.values(), key=lambda result: place.get(result.case, len(place)))
    return replace(verification, results=tuple(_recorded(each, entries) for each in ordered))


def _recorded(result: CaseResult, entries: Mapping[str, Any]) -> CaseResult:
    entry = entries.get(result.case.name)
    if entry is None or entry["settings"] != settings_digest(result.case):
        return result
    recorded = CaseResult(result.case, tuple(map(_seed, entry["seeds"])), entry["wanted"])
    unfinished = result.num_finished < result.wanted
    is_further = unfinished and recorded.num_finished > result.num_finished
    return recorded if is_further or not result.seeds else result


def write_record(verification: Verification, path: Path) -> None:
    """Write the results, a line for each case; entries of other cases in the file stay."""
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    entries |= {
        result.case.name: {
            "settings": settings_digest(result.case),
            "wanted": result.wanted,
            "seeds": [_seed_entry(seed) for seed in result.seeds],
        }
        for result in verification.results
        if result.seeds
    }
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()]
    replace_text(path, "{{\n{}\n}}\n".format(",\n".join(lines)))


def settings_digest(case: Case) -> str:
    """Digest of the settings that decide what a case learns: of its file and its overrides.

    The seed does not count, nor does `replay.store_in_checkpoints`.
    """
    text = (configs_folder() / case.config).read_text(encoding="utf-8")
    settings = {**parse_yaml(text, case.config).plain(), "seed": None}
    settings.get("replay", {}).pop("store_in_checkpoints", None)
    words = json.dumps([settings, case.all_overrides()], sort_keys=True)
    return sha256(words.encode()).hexdigest()[:16]


def _seed_entry(seed: SeedResult) -> dict[str, Any]:
    return {
        **seed.facts(),
        "session": {
            key: seed.session[key]
            for key in ("cpus", "python", "versions", "git")
            if key in seed.session
        },
        "curve": [
            [int(steps), round(mean, 2)] for steps, mean in thinned(seed.curve, POINTS_OF_A_CURVE)
        ],
    }


def _seed(entry: Mapping[str, Any]) -> SeedResult:
    curve = tuple((int(steps), float(mean)) for steps, mean in entry["curve"])
    return SeedResult(**{**entry, "folder": None, "curve": curve})


_HEAD = """\
# Results

What the shipped configurations reach, and what others have published. Written by
`rlrun verify --seeds 11-13 --markdown docs/results.md`. Settings were chosen on the seeds 1, 2 and
3; other seeds judge them if they have been run (*Every seed* below). `rlrun verify CASE` trains one
case, `rlrun verify --list` lists all. *Reached* is the interquartile mean over the seeds, which
must be at least *expected* after at most *budget* env steps and the rest of that iteration. The
lowest and the highest seed follow it, or with five seeds or more its 95% bootstrap interval.

A case is compared with the highest known benchmark of each kind that took at least as many env
steps. Without a benchmark it is compared with a *pass mark*, the number at which a library's own
test of the algorithm ends, which is weaker evidence. Each kind of published number is compared with
the same kind of number of rlrun:
"""

_CAPTION = (
    "Mean return of the last 100 training episodes, or of all if there are fewer, over env steps, "
    "a line for each seed; dashed: the published numbers of training, and goals"
)


def publish(verification: Verification, path: Path) -> Verification:
    """Write the page and, beside it, the record of all results as ``<name>.json``.

    The page has all cases of the record, so that one case can be verified again alone.

    Returns:
        The verification, with recorded results for cases without runs. On the page recorded results
        also replace failed runs; the returned verification still has the failures.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    record = path.with_suffix(".json")
    shown = with_recorded(verification, record)
    write_record(shown, record)
    write_page(shown, path)
    shown_of = {result.case: result for result in shown.results}
    results = tuple(own if own.seeds else shown_of[own.case] for own in verification.results)
    return replace(verification, results=results)


def write_page(verification: Verification, path: Path) -> None:
    """Write the page at ``path``, and the curves beside it as ``<name>.png``."""
    picture = path.with_suffix(".png")
    curved = [_chart(r) for r in verification.results if any(seed.curve for seed in r.seeds)]
    drawn = save_charts(picture, curved, columns=4, panel_size=(3.4, 2.4), dpi=80)
    replace_text(path, "\n".join(_page(verification, picture.name if drawn else None)) + "\n")


def _page(verification: Verification, picture: str | None) -> Iterator[str]:
    results = verification.results
    others = [r for r in results if r.verdict in ("failed", "not run", "unfinished")]
    finished = [result for result in results if result not in others]
    yield _HEAD
    kinds = [k for k in KINDS if any(bar.kind == k for r in results for bar in r.case.bars)]
    yield from (f"- **{kind}**: {KINDS[kind]}." for kind in kinds)
    yield from ("", *result_table(finished).markdown_lines(), "")
    yield from (f"- {r.case.name}: {r.case.note}." for r in results if r.case.note)
    if others:
        yield from ("", "## Not finished", "", *result_table(others).markdown_lines())
    if picture is not None:
        yield from ("", "## Learning curves", "", f"![{_CAPTION}]({picture})", "", f"{_CAPTION}.")
    yield from ("", "## Every seed", "", *seed_table(results).markdown_lines())
    yield from (
        "",
        "## The published numbers",
        "",
        "A number without *decides* is lower than another, took fewer env steps than the case's",
        "budget, or is of training while the case ends at its goal.",
        "",
        *case_table([r.case for r in results]).markdown_lines(),
    )
    yield from ("", *(f"- {name}: {url}" for name, url in SOURCES.items()))
    yield from ("", "## Machine and code", "", *_provenance(results))


def _provenance(results: Sequence[CaseResult]) -> Iterator[str]:
    """The machines and commits that the runs were trained with."""
    machines: dict[str, None] = {}
    trained_at: dict[str, dict[str, None]] = {}
    for result in results:
        for seed in result.seeds:
            machines[_machine(seed.session)] = None
            trained_at.setdefault(seed.commit, {})[result.case.name] = None
    yield from (f"- {machine}" for machine in machines)
    yield from (f"- commit `{commit}`: {', '.join(names)}" for commit, names in trained_at.items())
    if any(commit.endswith("+") for commit in trained_at):
        yield "- `+`: with changes in the working tree"


def _machine(session: Mapping[str, Any]) -> str:
    versions = session.get("versions", {})
    texts = [f"{session.get('cpus', 'unknown')} CPUs", f"Python {session.get('python', 'unknown')}"]
    return ", ".join([*texts, *(f"{name} {version}" for name, version in versions.items())])


def _chart(result: CaseResult) -> Chart:
    """The curve of each seed, with the published numbers of training and the goals."""
    curves = [
        Curve("", [env_steps for env_steps, _ in seed.curve], [mean for _, mean in seed.curve])
        for seed in result.seeds
        if seed.curve
    ]
    goals = [bar.number for bar in result.case.bars if bar.kind != "evaluation"]
    return Chart(result.case.name, "env steps", curves, goals=goals)


_SEED_NUMBERS = ("seed", "training", "goal", "evaluation")
NUMERIC = ("env steps", "budget", "expected", "reached", "seeds", *_SEED_NUMBERS)
"""Headings of right-aligned columns."""


def case_table(cases: Sequence[Case]) -> Table:
    """All published numbers of the cases, and whether they decide."""
    heads = ("case", "algorithm", "env", "env steps", "kind", "expected", "published", "source", "")
    rows = [
        (
            case.name,
            case.algorithm,
            case.env,
            f"{reference.env_steps:,}",
            reference.kind + (", pass mark" if reference.pass_mark else ""),
            number(reference.number),
            reference.published,
            reference.source,
            "decides" if reference in case.bars else "",
        )
        for case in cases
        for reference in case.references
    ]
    return Table(heads, rows, NUMERIC)


def result_table(results: Sequence[CaseResult]) -> Table:
    """Expected and reached numbers, a row for each published number that decides."""
    heads = ("case", "kind", "budget", "env steps", "expected", "reached", "seeds", "verdict")
    rows = [
        (
            result.case.name,
            judgement.bar.kind + (", pass mark" if judgement.bar.pass_mark else ""),
            f"{result.case.budget:,}",
            _range(seed.env_steps for seed in result.seeds),
            number(judgement.bar.number),
            two_decimals(judgement.iqm, ""),
            " to ".join(map(two_decimals, judgement.spread or ())),
            _verdict(judgement),
        )
        for result in results
        for judgement in result.judgements
    ]
    return Table(heads, rows, NUMERIC)


def seed_table(results: Sequence[CaseResult]) -> Table:
    """All reached numbers, a row for each seed."""
    heads = ("case", "seed", "env steps", "training", "goal", "evaluation")
    rows = [
        (
            result.case.name,
            str(seed.seed),
            f"{seed.env_steps:,}",
            two_decimals(seed.training, ""),
            two_decimals(seed.goal, ""),
            two_decimals(seed.evaluation, ""),
        )
        for result in results
        for seed in result.seeds
    ]
    return Table(heads, rows, NUMERIC)


def _range(counts: Iterable[int]) -> str:
    ends = sorted(counts)
    return " to ".join(f"{end:,}" for end in dict.fromkeys((ends[0], ends[-1]))) if ends else ""


def _verdict(judgement: Judgement) -> str:
    if judgement.verdict == "unfinished":
        return f"unfinished, {len(judgement.numbers)} of {judgement.of.wanted} seeds"
    return judgement.verdict
