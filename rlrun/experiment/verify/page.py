"""The page of a verification: docs/results.md and the picture of its learning curves.

Owns the page's words and the picture. It must not know how anything was measured. matplotlib is an
extra: without it there is no picture.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.checkpoint.files import replace_text
from rlrun.config.registry import is_installed
from rlrun.experiment.verify.cases import KINDS, SOURCES, Case
from rlrun.experiment.verify.report import case_table, markdown_lines, result_table, seed_table
from rlrun.experiment.verify.verify import CaseResult, Verification

_HEAD = """\
# Results

What the shipped configurations reach, beside what others have published. Written by
`rlrun verify --seeds 11-13 --markdown docs/results.md`: settings were chosen on the seeds 1, 2 and
3, so others judge them where they have been run (*Every seed* below). `rlrun verify CASE` trains
one case, `rlrun verify --list` names them all. *Reached* is the interquartile mean over the seeds;
it has to be at *expected* or above after at most *budget* env steps (and what is left of an
iteration then), and is followed by its 95% bootstrap interval. Published numbers differ in kind,
and each is compared with the same kind of rlrun's:
"""

_CAPTION = (
    "Mean return of the last 100 training episodes, or of all there are before that, over env "
    "steps, a line a seed; dashed: the published number"
)

_COLUMNS = 4


def write_page(verification: Verification, path: Path) -> None:
    """Write the page at ``path``, and the curves beside it as ``<name>.png``."""
    picture = path.with_suffix(".png")
    curved = [r for r in verification.results if any(seed.curve for seed in r.seeds)]
    drawn = draw_curves(curved, picture)
    replace_text(path, "\n".join(_page(verification, picture.name if drawn else None)) + "\n")


def _page(verification: Verification, picture: str | None) -> Iterator[str]:
    results = verification.results
    finished = [result for result in results if result.verdict in ("reached", "falls short")]
    others = [result for result in results if result not in finished]
    yield _HEAD
    kinds = [kind for kind in KINDS if any(r.case.reference.kind == kind for r in results)]
    yield from (f"- **{kind}**: {KINDS[kind]}." for kind in kinds)
    yield from ("", *markdown_lines(result_table(finished)), "")
    yield from (f"- {r.case.name}: {r.case.note}." for r in results if r.case.note)
    if others:
        yield from ("", "## Not finished", "", *markdown_lines(result_table(others)))
    if picture is not None:
        yield from ("", "## Learning curves", "", f"![{_CAPTION}]({picture})", "", f"{_CAPTION}.")
    yield from ("", "## Every seed", "", *markdown_lines(seed_table(results)))
    yield from ("", "## The published numbers", "", *markdown_lines(case_table(_cases(results))))
    yield from ("", *(f"- {name}: {url}" for name, url in SOURCES.items()))
    yield from ("", "## Machine and code", "", *_provenance(results))


def _cases(results: Sequence[CaseResult]) -> list[Case]:
    return [result.case for result in results]


def _provenance(results: Sequence[CaseResult]) -> Iterator[str]:
    """What the runs say of the machine and the code that they were trained with."""
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


def draw_curves(results: Sequence[CaseResult], path: Path) -> bool:
    """Draw the training curves of all seeds, a panel a case; False without matplotlib."""
    if not results or not is_installed("matplotlib"):
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(results))
    rows = -(-len(results) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, result in zip(panels, results, strict=False):
        _draw_panel(panel, result)
    for panel in panels[len(results) :]:
        panel.set_visible(False)
    figure.savefig(path, dpi=80)
    return True


def _draw_panel(panel: Any, result: CaseResult) -> None:
    for seed in result.seeds:
        steps = [env_steps / 1000 for env_steps, _ in seed.curve]
        dot = "o" if len(steps) == 1 else None  # no line leads from one point to itself
        panel.plot(steps, [mean for _, mean in seed.curve], linewidth=1.2, marker=dot)
    panel.axhline(result.case.reference.number, color="0.4", linestyle="--", linewidth=0.8)
    panel.set_title(result.case.name, fontsize=9)
    panel.set_xlabel("1,000 env steps", fontsize=7)
    panel.tick_params(labelsize=7)
