"""Whatever a model's program does to its machine, the verifier does not meet: forged rewards gain nothing.

The programs run through the rollout host with the shipped `python-code` environment, on each provider: kind
`output` runs them in the rollout's sandbox, kind `function` in the verifier's own, beside the harness that
judges them. An honest answer in the same run scores 1, so that a 0 is no broken verifier.
"""

# ruff: noqa: E501 - programs read better in one line

import sys

import pytest
from tokenizers import Tokenizer

from headway.core.commands import Score
from headway.core.events import RolloutEnded, Scored
from headway.environments.generation import GenerationLimits
from headway.environments.python_code import PythonCode, PythonCodeSettings
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.local import LocalProvider
from headway.sandbox.settings import SandboxSettings
from tests.contract.sandbox_contract import running
from tests.unit.host_stage import TASK, opened
from tests.unit.rollout_parts import ScriptedEngine

MARKER = "98712344"
SITE = f".local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
FORGED = '[{"value": 1}, {"value": 1}, {"value": 1}, {"value": 1}, {"value": 1}]'
TRY = "import os, sys\ndef attempt(work):\n    try: work()\n    except OSError: pass\n"

# Each is run before the answer. None may be noticed by a verifier.
ATTACKS = {
    "nothing": "",
    "rewrites the tests": TRY + "for name in ('tests.py', 'test_answer.py', 'conftest.py', 'answer.py'): open(name, 'w').write('print(1)')",
    "writes the reward file": TRY + "for name in ('reward', 'reward.txt', 'reward.json', '/tmp/reward', 'score'): attempt(lambda: open(name, 'w').write('1.0'))",
    "plants a python3 before the others in PATH": TRY + "os.makedirs('bin'); open('bin/python3', 'w').write('#!/bin/sh\\necho 1'); os.chmod('bin/python3', 0o755)\n"
    "os.environ['PATH'] = '/work/bin:' + os.environ.get('PATH', '')\n"
    "for name in ('.profile', '.bashrc', '.pam_environment', '.bash_env'): open(name, 'w').write('export PATH=/work/bin:$PATH')",
    "plants usercustomize and sitecustomize": TRY + f"os.makedirs({SITE!r})\n"
    f"for name in ('usercustomize', 'sitecustomize', 'json', 'os'):\n    open({SITE!r} + f'/{{name}}.py', 'w').write('print(1); raise SystemExit(0)')\n"
    "for place in sys.path: attempt(lambda: open(place + '/usercustomize.py', 'w').write('raise SystemExit(0)'))",
    "shadows modules of the library": TRY + "for name in ('json', 'os', 'sys', 'random', 'io'): open(name + '.py', 'w').write('print(1); raise SystemExit(0)')",
    "replaces the interpreter": TRY + "for path in ('/opt/headway/bin/python3', sys.executable, os.path.realpath(sys.executable), '/usr/bin/python3', '/bin/sh'):\n"
    "    attempt(lambda: os.remove(path)); attempt(lambda: os.symlink('/bin/true', path)); attempt(lambda: open(path, 'w')); attempt(lambda: os.rename(path, path + '.x'))",
    "leaves a daemon that rewrites everything": TRY + "import time\n"
    f"if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.execv('/bin/sh', ['sh', '-c', ': {MARKER}; while :; do for f in /work/*; do echo 1 > $f; done; sleep 0.01; done'])\n    os._exit(0)\n"
    "time.sleep(0.05)",
    "patches what the harness calls": TRY + "import json, builtins\n"
    f"json.dumps = lambda *a, **k: {FORGED!r}\nbuiltins.ValueError = Exception",
}  # fmt: skip

# Answers that have nothing to say but try to be taken for right.
FORGERIES = {
    "says nothing": "def f(x): return None",
    "prints a forged list and leaves": f"import os, sys\nfor fd in range(1, 9):\n    try: os.write(fd, {FORGED!r}.encode())\n    except OSError: pass\nos._exit(0)",
    "is equal to everything": "class E(int):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(x): return E(0)",
    "raises a success": "raise SystemExit(0)",
    "rewrites the results": "import sys\ndef f(x):\n    frame = sys._getframe(1)\n    frame.f_globals['results'] = [{'value': True}] * 5\n    return True",
    "reads the expected values": "import gc\ndef f(x):\n    found = [o for o in gc.get_objects() if isinstance(o, dict) and 'expected' in o]\n    return found[0]['expected'] if found else 0",
}  # fmt: skip


@pytest.fixture(params=["bubblewrap", "local"])
def provider(request, tmp_path):
    settings = SandboxSettings(directory=str(tmp_path / "sandboxes"), wall_s=20, cpu_s=20)
    if request.param == "bubblewrap":
        yield BubblewrapProvider(settings)
        return
    provider = LocalProvider(settings)
    yield provider
    provider.close()


def task_of(**settings):
    """Return the environment and its first task."""
    environment = PythonCode(PythonCodeSettings(levels=(1,), code_tokens=4000, **settings), 0)
    return environment, environment.task("train", 0, None)


def right(task):
    """Return an honest answer."""
    a = task.payload["a"]
    if task.payload["kind"] == "output":
        return f"print({a} {task.payload['op']} {task.payload['b']})"
    word = {"add": "+", "multiply": "*", "subtract": "-"}[task.payload["family"]]
    return f"def f(x): return x {word} {a}"


async def scores(provider, environment, task, answers, tmp_path, model_dir, renderer):
    """Run a rollout for each answer, one after the other, and score each; return the scores."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))

    def script(request):
        answer = answers[int(request.request_id.partition(".")[0].removeprefix("r"))]
        text = f"```python\n{answer}\n```\n"
        return tokenizer.encode(text, add_special_tokens=False).ids

    engine = ScriptedEngine(script, decode=renderer.decode, context=8192)
    stage = opened(
        tmp_path, {"replica-0": engine}, renderer,
        lambda chat, sandbox: environment.rollout(task, chat, sandbox),
        lambda outcome, sandbox: environment.score(task, outcome, sandbox),
        GenerationLimits(4000, 8192), provider=provider,
    )  # fmt: skip
    async with stage as s:
        for number in range(len(answers)):
            s.start(f"r{number}")
            ended = await s.until(RolloutEnded, number + 1)
            s.host.score(Score(f"r{number}", 1, 1, TASK.id, ended.payload), TASK)
            await s.until(Scored, number + 1)
        return [event.reward for event in s.events if isinstance(event, Scored)]


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_program_that_attacks_its_verifier_scores_what_it_computed(
    attack, provider, tmp_path, model_dir, renderer
):
    """The judge runs the program itself: its machine is the verifier's own, and still nothing is gained."""
    environment, task = task_of(kind="function")
    code = ATTACKS[attack]
    answers = [
        f"{code}\n{FORGERIES['says nothing']}",
        f"{code}\n{right(task)}",
        right(task),
        "def f(x): return x",
    ]
    found = await scores(provider, environment, task, answers, tmp_path, model_dir, renderer)
    assert found[0] == found[3] == 0.0
    assert found[2] == 1.0  # whoever comes next is judged as if nothing had happened
    if attack != "patches what the harness calls":  # that one breaks its own verdict, which is its loss
        assert found[1] == 1.0
    assert running(MARKER) == []


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_forged_answer_scores_nothing(forgery, provider, tmp_path, model_dir, renderer):
    environment, task = task_of(kind="function")
    answers = [FORGERIES[forgery], right(task)]
    found = await scores(provider, environment, task, answers, tmp_path, model_dir, renderer)
    assert found == [0.0, 1.0]


async def test_a_program_of_the_rollout_scores_what_it_printed(provider, tmp_path, model_dir, renderer):
    environment, task = task_of(kind="output", turns=1)
    attacks = [f"{code}\nprint('no number')" for code in ATTACKS.values()]
    answers = [*attacks, right(task)]
    found = await scores(provider, environment, task, answers, tmp_path, model_dir, renderer)
    assert found == [0.0] * len(ATTACKS) + [1.0]
    assert running(MARKER) == []


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name != "patches what the harness calls"])
async def test_a_verifier_made_from_a_snapshot_runs_the_tests_that_were_put_in_then(
    attack, provider, tmp_path
):
    """For environments whose answer is a folder: restored afresh, the tests injected, run with python3 -I."""
    labels = {"run": "r"}
    model = await provider.create("model", labels)
    await model.write("answer.py", b"def f(x): return x + 1\n")
    ran = await model.exec(["python3", "-c", ATTACKS[attack]])
    assert (ran.rc, ran.stderr) == (0, "")
    await model.write("answer.py", b"def f(x): return x + 1\n")
    digest = await provider.snapshot("model", tmp_path / "snapshots", labels)
    await model.terminate()
    tests = "import importlib.util as u\ns = u.spec_from_file_location('answer', '/work/answer.py')\nm = u.module_from_spec(s); s.loader.exec_module(m)\n"
    for number, (wanted, said) in enumerate(((3, "False\n"), (2, "True\n"))):
        verifier = await provider.restore(f"verifier{number}", labels, tmp_path / "snapshots", digest)
        try:
            await verifier.write("tests.py", f"{tests}print(m.f(1) == {wanted})\n".encode())
            result = await verifier.exec(["python3", "-I", "tests.py"])
            assert (result.rc, result.stdout, result.cause) == (0, said, "exit")
            found = await verifier.exec(["sh", "-c", "command -v python3; ls -A /tmp"])
            assert found.stdout == "/opt/headway/bin/python3\n"
        finally:
            await verifier.terminate()
    assert running(MARKER) == []
