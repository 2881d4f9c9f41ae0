"""The local provider as an ordinary user: contract and hostile programs, in a process of another uid."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UID = "64321"  # nobody's
# setpriv itself may still read everything; what the shell executes may not.
AS_USER = [
    "setpriv",
    f"--reuid={UID}",
    f"--regid={UID}",
    "--clear-groups",
    "/bin/sh",
    "-c",
    'exec "$@"',
    "sh",
]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="an ordinary user runs the tests themselves"
)


@pytest.fixture
def interpreter():
    """One that another uid can run: not below a home of ours."""
    packages = os.pathsep.join(path for path in sys.path if path.endswith("-packages"))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, f"/usr/local/bin/{version}", f"/usr/bin/{version}"):
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"}
        probe = "import pytest, pytest_asyncio, pytest_timeout"
        done = subprocess.run([*AS_USER, path, "-c", probe], env=env, capture_output=True, check=False)
        if done.returncode == 0:
            return path, env
    pytest.skip("no interpreter here can be run by another uid")


@pytest.mark.parametrize(
    ("file", "only"),
    [
        ("tests/contract/test_local_provider.py", "TestLocal and not Without"),
        ("tests/unit/test_sandbox_hostile_table.py", "not plain"),
        ("tests/unit/test_sandbox_traps.py", "trap"),
        pytest.param(
            "tests/contract/test_serving.py",
            "(TestLocal or TestBubblewrap) and (answered or nobody)",
            marks=pytest.mark.slow,
        ),
        pytest.param("tests/unit/test_sandbox_soak.py", "come_and_go", marks=pytest.mark.slow),
        pytest.param("tests/unit/test_sandbox_images.py", "not bubblewrap", marks=pytest.mark.slow),
        pytest.param("tests/unit/test_sandbox_first_process.py", "test", marks=pytest.mark.slow),
    ],
)
def test_an_ordinary_user_has_the_same_sandbox(interpreter, file, only, tmp_path_factory):
    python, env = interpreter
    home = Path("/tmp") / f"headway-test-{os.getpid()}-{UID}"  # pytest's own folders are closed to others
    home.mkdir(mode=0o700)
    os.chown(home, int(UID), int(UID))
    env |= {"HOME": str(home), "TMPDIR": str(home), "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), env["PYTHONPATH"]])
    command = [*AS_USER, python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", only]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), str(ROOT / file)]
    try:
        done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert "passed" in done.stdout
    finally:
        shutil.rmtree(home)
