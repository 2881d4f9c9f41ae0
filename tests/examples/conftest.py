"""What test_verifiers.py needs of PyPI is installed in the background, while the other examples run."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.models.cache import model_dir

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
PACKAGES = {"v0": "sophistry-bench-sprint", "v1": "examples/verifiers/plain_sums"}
LONGEST_S = 900


class Installs:
    """Processes `headway env install`, each with a log; all into one cache, which is of these tests alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = {}
        self.env = ENVIRONMENT | {"HEADWAY_CACHE": str(folder / "cache")}

    def start(self, which):
        if which in self._running:
            return
        (self._folder / "cache").mkdir(exist_ok=True)
        command = ["headway", "env", "install", PACKAGES[which], "--lock", str(self.lock(which))]
        patience = {"PIP_DEFAULT_TIMEOUT": "30", "PIP_RETRIES": "2"}  # where no index answers
        with self._log(which).open("w") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=self.env | patience, stdout=log, stderr=log, start_new_session=True
            )
        self._running[which] = process, time.monotonic()

    def lock(self, which):
        return self._folder / f"{which}.lock"

    def installed(self, which):
        """Wait until a package is there; fail with what its installation said last."""
        self.start(which)
        process, began = self._running[which]
        try:
            code = process.wait(max(1.0, began + LONGEST_S - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = f"nothing within {LONGEST_S} s"
        if code != 0:
            said = " ".join(self._log(which).read_text().split())[-600:]
            pytest.fail(f"headway env install {PACKAGES[which]}: {code}: {said}", pytrace=False)

    def close(self):
        for process, _ in self._running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        shutil.rmtree(self._folder)  # more than a gigabyte

    def _log(self, which):
        return self._folder / f"{which}.log"


@pytest.fixture(scope="session", autouse=True)
def installs(request, tmp_path_factory):
    found = Installs(tmp_path_factory.mktemp("verifiers"))
    wanted = any(item.path.name == "test_verifiers.py" for item in request.session.items)
    if wanted and "PYTEST_XDIST_WORKER" not in os.environ:  # else by the worker that runs them
        for which in PACKAGES:
            found.start(which)
    yield found
    found.close()


@pytest.fixture(scope="session")
def cache(installs):
    """The environment of a command that finds these packages, and the models."""
    subprocess.run(["headway", "model", "fetch", "tiny"], cwd=ROOT, env=ENVIRONMENT, check=True)
    (Path(installs.env["HEADWAY_CACHE"]) / "models").symlink_to(model_dir("tiny").parent)
    return installs.env
