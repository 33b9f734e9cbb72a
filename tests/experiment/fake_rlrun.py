"""A stand-in for the command `rlrun`: it writes the folders of train and rollout in no time.

`python fake_rlrun.py train CONFIG KEY=VALUE ... --run-dir PATH --quiet` and so on. Beside the run's
folder are `resolved.yaml`, the whole config, and, for other behaviour, `plan-<seed>`: "slow" trains
until killed, "fail" fails once, "pause" takes a moment. `busy.txt` has a line for the beginning and
the end of each training.
"""

import fcntl
import json
import sys
import time
from pathlib import Path

words = [word for word in sys.argv[1:] if word != "--quiet"]
command, rest = words[0], words[1:]


def write_meta(outcome: str, reason: str = "") -> None:
    session = {"outcome": outcome, "reason": reason, "git": {"commit": "abcdef0123456789"}}
    (folder / "meta.json").write_text(json.dumps({"outcome": outcome, "sessions": [session]}))


if command == "rollout":
    folder = Path(rest[0])
    seed = int(folder.name.removeprefix("seed-"))
    sys.stdout.write(json.dumps({"episode_return_mean": 10.0 * seed, "per_episode": rest}))
    sys.exit(0)

resume = rest[0] == "--resume"
folder = Path(rest[1]) if resume else Path(rest[rest.index("--run-dir") + 1])
folder.mkdir(parents=True, exist_ok=True)
lock = (folder / ".lock").open("a")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
if not resume:
    seed_line = next(word for word in rest if word.startswith("seed=")).replace("=", ": ")
    resolved = (folder.parent / "resolved.yaml").read_text()
    (folder / "config.yaml").write_text(resolved.replace("seed: 1\n", f"{seed_line}\n"))
plan = folder.parent / f"plan-{folder.name.removeprefix('seed-')}"
todo = plan.read_text() if plan.exists() else ""
if todo == "fail":
    plan.unlink()
    write_meta("failed", "RuntimeError: as planned")
    sys.exit("the run failed")
if todo == "slow":
    write_meta("running")
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        write_meta("interrupted")
        sys.exit(130)
if todo == "pause":
    with (folder.parent.parent / "busy.txt").open("a") as file:
        file.write(f"+{folder.parent.name}\n")
    time.sleep(0.3)
    with (folder.parent.parent / "busy.txt").open("a") as file:
        file.write(f"-{folder.parent.name}\n")
for iteration in (1, 2, 3):
    row = {
        "training_iteration": iteration,
        "env_steps": 100 * iteration,
        "episode_return_mean": [90.0, 30.0, 20.0][iteration - 1],
        "episodes_in_mean": 50 * iteration,
    }
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
with (folder.parent.parent / "order.txt").open("a") as file:
    file.write(f"{folder.parent.name}/{folder.name}{' resumed' if resume else ''}\n")
write_meta("finished")
