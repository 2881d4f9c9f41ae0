"""A stand-in for `podman` and `docker`: one small program that really runs the commands, in boxes (box.py).

It knows the flags that Headway uses, as the engines document them, and refuses every other; it refuses a
`run` that leaves out one that contains. Run as `engine.py NAME STATE ARGUMENTS...`; files in STATE make it
fail: `down`, `fail-run` (the container is made and does not start), `slow-run` (seconds). A folder below
`images` in STATE is a further image, `o.r_1` of `o/r:1`, whose content is in /testbed.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import box

IMAGES = ("python:3.12-slim",)


class Refused(Exception):
    """What an engine says to a command line that it does not take: exit code 125."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(message)


def main(engine, state, arguments):
    if (state / "down").exists() and arguments[0] != "--version":
        sys.stderr.write(
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?\n"
        )
        return 1
    verb = arguments[0]
    if verb == "image":
        assert arguments[1] == "inspect"
        if not known_image(state, arguments[-1]):
            sys.stderr.write(f"Error: No such image: {arguments[-1]}\n")
            return 1
        print("sha256:0")
        return 0
    if verb in ("version", "info"):
        print("28.0")
        return 0
    return {
        "run": run,
        "exec": execute,
        "rm": remove,
        "ps": listing,
        "inspect": inspect,
        "pause": lambda *args: freeze(*args, signal.SIGSTOP),
        "unpause": lambda *args: freeze(*args, signal.SIGCONT),
        "update": update,
    }[verb](engine, state, arguments[1:])


def run(engine, state, arguments):
    parser = Parser(allow_abbrev=False)
    for flag in ("detach", "read-only", "no-healthcheck"):
        parser.add_argument(f"--{flag}", action="store_true", required=True)
    for flag in (
        "name", "pull", "log-driver", "network", "hostname", "cap-drop", "security-opt", "user", "pids-limit",
        "memory", "memory-swap", "cpus", "shm-size", "workdir", "entrypoint",
    ):  # fmt: skip
        parser.add_argument(f"--{flag}", required=True)
    parser.add_argument("--label", action="append", required=True)
    parser.add_argument("--tmpfs", action="append", required=True)
    parser.add_argument("--ulimit", action="append", required=True)
    if engine == "podman":
        parser.add_argument("--read-only-tmpfs", required=True, choices=["false"])
    parser.add_argument("image")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    asked = parser.parse_args(arguments)
    wanted = {"network": "none", "cap_drop": "ALL", "security_opt": "no-new-privileges"}
    wanted |= {"pull": "never", "user": "0:0"}
    for flag, value in wanted.items():
        if getattr(asked, flag) != value:
            raise Refused(f"the stand-in wants --{flag} {value}")
    for limit in asked.ulimit:
        which, _, most = limit.replace(":", "=").split("=")
        hard = resource.getrlimit(getattr(resource, f"RLIMIT_{which.upper()}"))[1]
        if engine == "podman" and hard != resource.RLIM_INFINITY and int(most) > hard:
            raise Refused(f"setrlimit RLIMIT_{which.upper()}: Operation not permitted")
    if asked.memory != asked.memory_swap:
        raise Refused("the stand-in wants no swap")
    int(asked.pids_limit), float(asked.cpus)
    mounts = dict(item.split(":", 1) for item in asked.tmpfs)
    if not known_image(state, asked.image):
        raise Refused(f"Unable to find image '{asked.image}' locally")
    slow = state / "slow-run"
    record = {
        "labels": dict(item.split("=", 1) for item in asked.label),
        "name": asked.name,
        "pids": asked.pids_limit,
    }
    (state / f"{asked.name}.json").write_text(json.dumps(record))  # created, not started yet
    if slow.exists():
        time.sleep(float(slow.read_text()))
    if (state / "fail-run").exists():
        raise Refused("OCI runtime create failed: no such luck")
    known = ("size", "mode", *(["nr_inodes"] if engine == "docker" else []))
    for options in mounts.values():
        for option in options.split(","):
            if option.split("=")[0] not in (*known, "rw", "exec", "nosuid", "nodev"):
                raise Refused(f"invalid tmpfs option {option}")
    guard, first = box.make(
        state / asked.name,
        [asked.entrypoint, *asked.rest],
        work=mounts["/work"],
        tmp=mounts["/tmp"],
        testbed=None if asked.image in IMAGES else folder_of(state, asked.image),
    )
    if not (state / f"{asked.name}.json").exists():  # removed meanwhile
        box.end(guard, first, state / asked.name)
        raise Refused("No such container")
    record |= {"guard": guard, "first": first, "started": box.started(first)}
    (state / f"{asked.name}.json").write_text(json.dumps(record))
    print(asked.name)
    return 0


def folder_of(state, image):
    return state / "images" / image.replace("/", ".").replace(":", "_")


def known_image(state, image):
    return image in IMAGES or folder_of(state, image).is_dir()


def load(state, name):
    path = state / f"{name}.json"
    if not path.exists():
        raise Refused(f"Error: No such container: {name}")
    return json.loads(path.read_text())


def runs(record):
    return "first" in record and box.started(record["first"]) == record["started"]


def execute(engine, state, arguments):
    parser = Parser(allow_abbrev=False)
    parser.add_argument("--interactive", action="store_true", required=True)
    parser.add_argument("--user", required=True)
    parser.add_argument("name")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(arguments)
    record = load(state, asked.name)
    if not runs(record) or record.get("paused"):
        raise Refused("can only create exec sessions on running containers: container state improper")
    command = box.enter(record["first"], asked.command, uid=int(asked.user.split(":")[0]))
    os.execvp(command[0], command)


def remove(engine, state, arguments):
    parser = Parser(allow_abbrev=False)
    parser.add_argument("--force", action="store_true", required=True)
    parser.add_argument("--volumes", action="store_true", required=True)
    parser.add_argument("name")
    name = parser.parse_args(arguments).name
    record = load(state, name)
    with contextlib.suppress(FileNotFoundError):
        (state / f"{name}.json").unlink()
    if runs(record):
        box.end(record["guard"], record["first"], state / name)
    shutil.rmtree(state / name, ignore_errors=True)
    print(name)
    return 0


def listing(engine, state, arguments):
    parser = Parser(allow_abbrev=False)
    for flag in ("all", "quiet", "no-trunc"):
        parser.add_argument(f"--{flag}", action="store_true", required=True)
    parser.add_argument("--filter", required=True)
    word, key, value = parser.parse_args(arguments).filter.split("=", 2)
    assert word == "label"
    for path in sorted(state.glob("*.json")):
        record = json.loads(path.read_text())
        if record["labels"].get(key) == value:
            print(record["name"])
    return 0


def inspect(engine, state, arguments):
    assert arguments[:4] == ["--type", "container", "--format", "{{.State.Status}}"]
    record = load(state, arguments[4])
    print(("paused" if record.get("paused") else "running") if runs(record) else "exited")
    return 0


def freeze(engine, state, arguments, signum):
    record = load(state, arguments[0])
    if not runs(record) or record.get("paused", False) == (signum == signal.SIGSTOP):
        raise Refused("container state improper")
    for pid in box.processes(record["first"]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
    record["paused"] = signum == signal.SIGSTOP
    (state / f"{arguments[0]}.json").write_text(json.dumps(record))
    return 0


def update(engine, state, arguments):
    assert arguments[0] == "--pids-limit"
    if engine == "podman":
        raise Refused("unknown flag: --pids-limit")  # to 4.3
    record = load(state, arguments[2]) | {"pids": arguments[1]}
    (state / f"{arguments[2]}.json").write_text(json.dumps(record))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
    except Refused as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(125 if sys.argv[3] in ("run", "exec") else 1)
