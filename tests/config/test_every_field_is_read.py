"""A key that no code reads does not exist: every field of the schema is read somewhere in rlrun.

How: mypy gives the type of every expression in rlrun/. A field counts as read where an attribute
of its name is taken from an expression whose type is its section (or a sub- or superclass of it),
outside of rlrun/config, which only checks and prints. So `checkpoint.every` is not kept alive by
some other object's `every`.

Limits: reading is not obeying, `getattr` with a computed name is not seen, and an expression of
type Any hides what it reads.
"""

from pathlib import Path

import pytest
from mypy import build, nodes, types
from mypy.find_sources import create_source_list
from mypy.options import Options
from mypy.traverser import NameAndMemberCollector

from rlrun.config.registry import ALGORITHMS, algorithm_class
from rlrun.config.schema import EnvSpec, TrainingConfig, UseSpec, sections

ROOT = Path(__file__).parents[2]
THIRD_PARTY = ("numpy", "torch", "ray", "gymnasium", "pydantic", "rich", "typer", "yaml", "ale_py")
# They plan batches and policies on behalf of algorithms.
READS_FOR_OTHERS = ("rlrun.config.batch_arithmetic", "rlrun.config.policies")

pytestmark = pytest.mark.types  # a quarter of a minute

Read = tuple[str, str]  # qualified name of the class, attribute


def _member_expressions(tree: nodes.Node):
    collector = NameAndMemberCollector()
    tree.accept(collector)
    return collector.member_exprs


def _parts(found: types.Type | None):
    found = types.get_proper_type(found) if found is not None else None
    if isinstance(found, types.TypeVarType):
        return _parts(found.upper_bound)
    if isinstance(found, types.UnionType):
        return [part for item in found.items for part in _parts(item)]
    return [found] if isinstance(found, types.Instance) else []


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory):
    options = Options()
    options.python_version = (3, 11)
    options.export_types = options.preserve_asts = options.check_untyped_defs = True
    options.incremental = False
    options.cache_dir = str(tmp_path_factory.mktemp("mypy"))
    skip = {"follow_imports": "skip", "follow_imports_for_stubs": True}
    options.per_module_options = {
        pattern: skip for name in THIRD_PARTY for pattern in (name, f"{name}.*")
    }
    options.build_per_module_cache()
    result = build.build(create_source_list([str(ROOT / "rlrun")], options), options)
    found: set[Read] = set()
    for name, tree in result.files.items():
        inside_config = name.startswith("rlrun.config") and name not in READS_FOR_OTHERS
        if not name.startswith("rlrun") or inside_config:
            continue
        for expression in _member_expressions(tree):
            receivers = _parts(result.types.get(expression.expr))
            found |= {(receiver.type.fullname, expression.name) for receiver in receivers}
    return found


def _fields():
    found = [
        (section, schema, name)
        for section, schema in sections(TrainingConfig).items()
        for name in schema.model_fields
        if section != "training"
    ]
    found += [("callbacks", UseSpec, name) for name in UseSpec.model_fields]
    found += [("env", EnvSpec, name) for name in EnvSpec.model_fields]
    for algorithm in ALGORITHMS:
        training = algorithm_class(algorithm).Training
        found += [(f"training ({algorithm})", training, name) for name in training.model_fields]
    return list(dict.fromkeys(found))


def _is_read(schema, field, reads):
    above = {f"{base.__module__}.{base.__qualname__}" for base in schema.__mro__}
    below = {f"{kind.__module__}.{kind.__qualname__}" for kind in _subclasses(schema)}
    names = (field, "arguments") if field == "kwargs" else (field,)  # copies of these
    return any((kind, name) in reads for kind in above | below for name in names)


def _subclasses(schema):
    direct = schema.__subclasses__()
    return direct + [below for kind in direct for below in _subclasses(kind)]


def test_every_field_is_read(reads):
    unread = [
        f"{section}.{field}".lstrip(".")
        for section, schema, field in _fields()
        if not _is_read(schema, field, reads)
    ]
    assert not unread, f"no code reads {', '.join(unread)}"


def test_a_field_that_nothing_reads_is_found(reads):
    class Unread(UseSpec):
        every: int = 1
        """`every` is read of other sections, and of nothing that is a UseSpec."""

    assert not _is_read(Unread, "every", reads)
    assert _is_read(EnvSpec, "use", reads)
