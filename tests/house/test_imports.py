"""Imports go down the ladder only, never in a circle, and each heavy library stays in its room."""

import subprocess
import sys
from fnmatch import fnmatch

import pytest
from source_tree import LADDER, LEAF, ROOT, modules, target_module

# Library -> the files that may import it. Everything else reaches it through those.
PLACES = {
    "torch": ["policies/*.py", "learning/*.py", "algorithms/*.py"],
    "ray": [
        "actors/actor_manager.py",
        "actors/ray_changes.py",
        "actors/ray_runtime.py",
        "actors/remote_runners.py",
        "actors/runner_host.py",
        "envs/remote_env.py",
        "learning/learner_group.py",
        "experiment/sweep/trial.py",
        "experiment/sweep/tune.py",
    ],
    "rich": [
        "experiment/report/*.py",
        "experiment/sweep/*.py",
        "cli/*.py",
    ],
    "typer": ["cli/*.py"],
    "yaml": ["config/*.py"],
}
# Where a library may also be imported inside a function, by a user who asked for it.
LAZY_PLACES = {
    "torch": [
        "data/column_batch.py",
        "experiment/report/loggers.py",
    ],
    # EnvRunner.as_remote, and Tune's walk over grids
    "ray": ["sampling/env_runner.py", "experiment/sweep/points.py"],
}
# The part of policies that env runners act with: Ray actors for MLP policies never import torch.
ACTING = (
    "policies/policy.py",
    "policies/numpy_policy.py",
    "policies/q_policy.py",
    "policies/sac_policy.py",
    "policies/layers.py",
    "policies/action_sampling.py",
)


def test_every_room_is_on_the_ladder() -> None:
    rooms = {module.room for module in modules().values()} - {""}
    assert rooms == {*LADDER, LEAF}


def test_imports_go_down_only() -> None:
    broken = []
    for module in modules().values():
        if module.room in ("", LEAF):
            continue
        for imported in module.imports:
            target = target_module(imported)
            if target is None or target == "rlrun":
                continue
            room = target.split(".")[1]
            if room != LEAF and LADDER.index(room) < LADDER.index(module.room):
                broken.append(f"{module.where}:{imported.line} imports {target}")
    assert not broken, "\n".join(broken)


def test_config_is_a_leaf() -> None:
    broken = [
        f"{module.where}:{imported.line} imports {target}"
        for module in modules().values()
        if module.room == LEAF
        for imported in module.imports
        if (target := target_module(imported)) not in (None, "rlrun")
        and not str(target).startswith(f"rlrun.{LEAF}")
    ]
    assert not broken, "\n".join(broken)


def test_no_module_imports_a_public_name_from_the_top() -> None:
    """`from rlrun import PPO` is for users; inside the house it would hide which room is meant."""
    broken = [
        f"{module.where}:{imported.line} imports {imported.name} from rlrun"
        for module in modules().values()
        for imported in module.imports
        if imported.module == "rlrun"
        and imported.name not in (None, "__version__")
        and target_module(imported) == "rlrun"
    ]
    assert not broken, "\n".join(broken)


def test_no_import_cycles() -> None:
    """Not even through an import inside a function, one for types alone, or a name in a text."""
    edges = {
        name: {target for imported in module.imports if (target := target_module(imported))}
        - {name, "rlrun"}
        for name, module in modules().items()
    }
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        path.append(name)
        for target in sorted(edges[name]):
            assert target in edges, f"{name} imports {target}, which does not exist"
            visit(target)
        path.pop()
        done.add(name)

    for name in edges:
        visit(name)


def test_rooms_hold_no_code_in_their_init() -> None:
    """A room's `__init__.py` is its docstring: importing a module never imports its neighbours."""
    broken = [
        module.where
        for module in modules().values()
        if module.path.name == "__init__.py" and module.room and len(module.tree.body) != 1
    ]
    assert not broken, broken


@pytest.mark.parametrize("library", sorted(PLACES))
def test_library_stays_in_its_place(library: str) -> None:
    broken = [
        f"{module.where}:{imported.line} imports {imported.module}"
        for module in modules().values()
        for imported in module.imports
        if imported.module.split(".")[0] == library
        and not any(fnmatch(module.where, place) for place in PLACES[library])
        and (imported.when == "at import" or module.where not in LAZY_PLACES.get(library, []))
    ]
    assert not broken, "\n".join(broken)


def test_acting_part_of_policies_never_names_torch() -> None:
    torch_files = {
        module.where
        for module in modules().values()
        if any(imported.module.split(".")[0] == "torch" for imported in module.imports)
    }
    assert not torch_files.intersection(ACTING)


def test_data_knows_numpy_alone() -> None:
    allowed = sys.stdlib_module_names | {"numpy", "rlrun"}
    broken = [
        f"{module.where}:{imported.line} imports {imported.module}"
        for module in modules().values()
        if module.room == "data"
        for imported in module.imports
        if imported.when == "at import" and imported.module.split(".")[0] not in allowed
    ]
    assert not broken, "\n".join(broken)


def _loaded_by(names: list[str]) -> set[str]:
    code = (
        f"import sys\nimport {', '.join(names)}\nprint(*{{n.split('.')[0] for n in sys.modules}})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_rooms_below_the_learner_load_neither_torch_nor_ray() -> None:
    """What an env runner's process imports. Those that name Ray are the driver's and left out."""
    names = [
        name
        for name, module in modules().items()
        if module.room in ("data", "connectors", "envs", "replay", "sampling", "actors", LEAF)
        if module.where not in PLACES["ray"]
    ]
    names += [name for name, module in modules().items() if module.where in ACTING]
    assert not _loaded_by(names) & {"torch", "ray", "rich", "typer"}


def test_data_and_config_load_light() -> None:
    data = [name for name, module in modules().items() if module.room == "data"]
    assert not _loaded_by(data) & {"torch", "ray", "gymnasium", "pydantic", "yaml"}
    config = [name for name, module in modules().items() if module.room == LEAF]
    assert not _loaded_by(config) & {"torch", "ray", "numpy", "gymnasium"}
