"""`rlrun --help` answers at once."""

import resource
import subprocess
import sys

HEAVY = ("torch", "ray", "gymnasium", "numpy", "pydantic", "yaml")


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom rlrun.cli.main import main\nsys.argv = ['rlrun', '--help']\n"
        f"try:\n    main()\nfinally:\n    print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.splitlines()[-1] == "[]"
    # Processor time, since the machine may be busy with something else.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3
