"""The record of verifications, `results.json` beside the results page.

Owns the file and the rule by which an entry is still valid. It must not know how runs are trained.
With the record a page can be rewritten on a machine that has not trained all of its cases.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlrun.checkpoint.files import replace_text
from rlrun.config.dump import dump_yaml
from rlrun.config.loader import load_experiment
from rlrun.config.registry import configs_folder
from rlrun.experiment.verify.cases import Case
from rlrun.experiment.verify.verify import CaseResult, SeedResult, Verification

POINTS_OF_A_CURVE = 200
_NUMBERS = ("training", "goal", "evaluation")


def with_recorded(verification: Verification, path: Path) -> Verification:
    """The verification, with recorded results for unfinished cases.

    An entry is used if the case's settings and its published number are unchanged, and if it has
    more finished seeds than the verification.
    """
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    results = tuple(_recorded(result, entries) for result in verification.results)
    return replace(verification, results=results)


def _recorded(result: CaseResult, entries: Mapping[str, Any]) -> CaseResult:
    entry = entries.get(result.case.name)
    if entry is None or entry["settings"] != settings_digest(result.case):
        return result
    recorded = CaseResult(result.case, tuple(map(_seed, entry["seeds"])), entry["wanted"])
    unfinished = len(result.numbers) < result.wanted
    is_further = unfinished and len(recorded.numbers) > len(result.numbers)
    return recorded if is_further or not result.seeds else result


def write_record(verification: Verification, path: Path) -> None:
    """Write the results, a line a case; entries of other cases in the file stay."""
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    entries |= {result.case.name: _entry(result) for result in verification.results if result.seeds}
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()]
    replace_text(path, "{{\n{}\n}}\n".format(",\n".join(lines)))


def settings_digest(case: Case) -> str:
    """Digest of the settings of a case, except the seed, and of its published number."""
    experiment = load_experiment(configs_folder() / case.config, case.all_overrides())
    text = dump_yaml(experiment.model_copy(update={"seed": 0}))
    return sha256(f"{case.reference}\n{text}".encode()).hexdigest()[:16]


def _entry(result: CaseResult) -> dict[str, Any]:
    return {
        "settings": settings_digest(result.case),
        "wanted": result.wanted,
        "seeds": [_seed_entry(seed) for seed in result.seeds],
    }


def _seed_entry(seed: SeedResult) -> dict[str, Any]:
    every = -(-len(seed.curve) // POINTS_OF_A_CURVE) or 1
    # From the end, so that the last point, where training ended, is one of them.
    curve = seed.curve[::-1][::every][::-1]
    return {
        "seed": seed.seed,
        "env_steps": seed.env_steps,
        "trained": seed.trained,
        **{name: getattr(seed, name) for name in _NUMBERS},
        "error": seed.error,
        "session": {
            key: seed.session[key]
            for key in ("cpus", "python", "versions", "git")
            if key in seed.session
        },
        "curve": [[steps, round(mean, 2)] for steps, mean in curve],
    }


def _seed(entry: Mapping[str, Any]) -> SeedResult:
    curve = tuple((int(steps), float(mean)) for steps, mean in entry["curve"])
    return SeedResult(**{**entry, "folder": None, "curve": curve})
