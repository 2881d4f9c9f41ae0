"""Tasks with a container image each: from a row to a score, over the stand-in of an engine and a real one."""

import difflib
import json
import uuid
from pathlib import Path

import pytest

from headway.core.errors import EnvironmentSetupError, SandboxError
from headway.environments.bugfix.rows import read_rows, with_bugs
from headway.environments.bugfix.sources import read_tree
from headway.environments.registry import build
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.containers import ContainerProvider
from headway.sandbox.settings import SandboxSettings
from tests.contract.test_container_providers import made, standin, state  # noqa: F401 - a fixture
from tests.contract.test_real_engines import engine, held, imported  # noqa: F401 - a fixture
from tests.unit.test_environments_bugfix import tried

EXAMPLES = Path(__file__).parents[2] / "examples" / "bugfix"
ROW = next(row for row in read_rows(EXAMPLES / "tasks.jsonl") if len(row.bugs) == 1)
TREE = read_tree(EXAMPLES / "wordkit")
HIDDEN = ROW.fail_to_pass[0].partition("::")[0]


def put(folder, tree):
    for path, data in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def task_file(tmp_path, **columns):
    row = {
        "repo": "o/r",
        "FAIL_TO_PASS": json.dumps(ROW.fail_to_pass),
        "PASS_TO_PASS": list(ROW.pass_to_pass),
    }
    row |= {"problem_statement": ROW.problem_statement, "runner": "unittest", "image_name": "swe/task:1"}
    path = tmp_path / "swe.jsonl"
    lines = [json.dumps(row | {"instance_id": f"o__r-{number}"} | columns) for number in range(8)]
    other = json.dumps(row | {"instance_id": "django", "FAIL_TO_PASS": ["test_a (a.Test)"]})
    path.write_text("\n".join([*lines, other]) + "\n")
    return {"tasks": str(path)}


def patch_between(before, after, path):
    texts = [tree.get(path, b"").decode().splitlines(keepends=True) for tree in (before, after)]
    return "".join(difflib.unified_diff(*texts, f"a/{path}", f"b/{path}"))


@pytest.fixture
def provider(state):  # noqa: F811
    return ContainerProvider(SandboxSettings(wall_s=20), "docker")


def mending():
    (bug,) = ROW.bugs
    old, new = (
        tree[bug.path].decode().split("\n")[bug.line - 2 : bug.line + 1]
        for tree in (with_bugs(TREE, ROW.bugs), TREE)
    )
    return ("edit_file", {"path": bug.path, "old": "\n".join(old), "new": "\n".join(new)})


class InImages:
    """A provider as the host uses it: each sandbox with its task's image."""

    def __init__(self, inner, image):
        self._inner, self._image, self._live = inner, image, inner._live

    async def create(self, sandbox_id, labels):
        return await self._inner.create(sandbox_id, {**labels, "image": self._image})


async def solve(tmp_path, provider, image, base):
    """Solve a task whose image holds `base` in /testbed, and do nothing about it another time."""
    new = "--- /dev/null\n+++ b/wordkit/helper.py\n@@ -0,0 +1 @@\n+HELP = 1\n"
    columns = {"test_patch": patch_between(base, TREE, HIDDEN) + new, "image_name": image}
    env = build("swe-bench", task_file(tmp_path, **columns))
    task = env.task("train", 0, None)
    assert env.image(task) == image
    images = InImages(provider, env.image(task))
    solved, outcome, _ = await tried(env, task, images, mending(), "Solved.")
    assert (solved.score, list(outcome.data["files"])) == (1.0, [ROW.bugs[0].path])
    # A file that the patch of the tests makes is the patch's, whatever the policy wrote there.
    own = ("run", {"command": "echo 'HELP = 2' > wordkit/helper.py"})
    solved, outcome, _ = await tried(env, task, images, mending(), own, "Solved.")
    assert (solved.score, len(outcome.data["files"])) == (1.0, 2)
    nothing, _, _ = await tried(env, task, images, "Solved.")
    assert nothing.score == 0.0


def without_the_tests():
    """The base state: the bug, and not yet the tests that show it."""
    return with_bugs(TREE, ROW.bugs) | {HIDDEN: b"import unittest\n"}


@standin
async def test_a_task_of_swe_bench_is_solved_in_its_own_image(tmp_path, state, provider):  # noqa: F811
    base = without_the_tests()
    put(state / "images" / "swe.task_1", base)
    await solve(tmp_path, provider, "swe/task:1", base)
    assert made(state) == []


@pytest.mark.slow
async def test_a_task_of_swe_bench_is_solved_by_a_real_engine(tmp_path, engine):  # noqa: F811
    base, name = without_the_tests(), f"headway-test/task:{uuid.uuid4().hex[:12]}"
    with imported(engine, name, [(f"testbed/{path}", data) for path, data in base.items()]):
        await solve(tmp_path, ContainerProvider(SandboxSettings(wall_s=60), engine), name, base)
        assert held(engine) == []


@pytest.mark.slow
@standin
async def test_a_bug_of_swe_smith_is_put_in_by_its_patch(tmp_path, state, provider):  # noqa: F811
    put(state / "images" / "swe.task_1", TREE)
    patch = patch_between(TREE, with_bugs(TREE, ROW.bugs), ROW.bugs[0].path)
    env = build("swe-bench", task_file(tmp_path, patch=patch) | {"patch": "bug"})
    task = env.task("train", 0, None)
    images = InImages(provider, env.image(task))
    assert (await tried(env, task, images, mending(), "Solved."))[0].score == 1.0


async def test_rows_that_cannot_be_used_are_left_out_and_images_must_be_named(tmp_path):
    env = build("swe-bench", task_file(tmp_path))
    names = {env.task("train", index, None).payload["instance"] for index in range(30)}
    names |= {env.task("eval", index, None).payload["instance"] for index in range(env.num_tasks("eval"))}
    assert names == {f"o__r-{number}" for number in range(8)}
    named = build("swe-bench", task_file(tmp_path) | {"image": "hub/{instance_id}:latest"})
    task = named.task("train", 0, None)
    assert named.image(task) == f"hub/{task.payload['instance']}:latest"
    with pytest.raises(EnvironmentSetupError, match="must name its container image"):
        build("swe-bench", task_file(tmp_path, image_name=""))
    with pytest.raises(EnvironmentSetupError, match="must name only image, instance_id in braces"):
        build("swe-bench", task_file(tmp_path) | {"image": "hub/{id}"})


async def test_a_provider_without_containers_says_so(tmp_path):
    provider = BubblewrapProvider(SandboxSettings(directory=str(tmp_path)))
    with pytest.raises(SandboxError, match="needs containers"):
        await provider.create("a", {"image": "swe/task:1"})
    assert await provider.list({}) == []
