"""The memory of a process and all its descendants together (Linux, `/proc`).

PSS counts a page shared by n processes as 1/n in each, so the sum over a tree of processes is
what the tree as a whole occupies; RSS would count libraries and Ray's object store many times.
"""

from pathlib import Path


def descendants(root: int) -> list[int]:
    """`root` and every process below it, found through the parent ids of all processes."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The command name is in parentheses and may hold blanks: count from its end.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, open_ids = [], [root]
    while open_ids:
        pid = open_ids.pop()
        found.append(pid)
        open_ids.extend(children.get(pid, ()))
    return found


def pss_mb(pid: int) -> float:
    """Proportional set size of one process in MB (10^6 bytes); 0 if it has just ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    except (OSError, ProcessLookupError):
        pass
    return 0.0


def process_name(pid: int) -> str:
    """Short name of a process: Ray's titles (`ray::Runner`, `gcs_server`), else the program."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    program = Path(arguments[0].decode(errors="replace").split(" ")[0]).name
    if not program.startswith("python"):
        return program
    for argument in arguments[1:]:
        if argument.endswith(b".py"):
            return Path(argument.decode(errors="replace")).name
    return "python"


def tree_pss_mb(root: int) -> dict[str, float]:
    """PSS in MB of the tree under `root` by process name, `total` and `processes` included."""
    by_name: dict[str, float] = {}
    pids = descendants(root)
    for pid in pids:
        name = "driver" if pid == root else process_name(pid)
        by_name[name] = by_name.get(name, 0.0) + pss_mb(pid)
    return {"total": sum(by_name.values()), "processes": len(pids), **by_name}
