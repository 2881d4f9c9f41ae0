"""A run directory is driven by one process at a time."""

import json
import os
import subprocess
import sys

import pytest

from headway.core.errors import RunDirectoryError
from headway.runtime import directory


def test_a_run_is_claimed_once_and_free_again_afterwards(tmp_path):
    with directory.claimed(tmp_path):
        wanted = pytest.raises(RunDirectoryError, match="another process is starting the run")
        with wanted, directory.claimed(tmp_path):
            pass
    with directory.claimed(tmp_path):
        pass


def test_a_claim_ends_with_its_process_and_a_life_that_goes_on_is_named(tmp_path):
    code = (
        "import sys, pathlib, time\n"
        "from headway.runtime import directory\n"
        "with directory.claimed(pathlib.Path(sys.argv[1])):\n"
        "    print('claimed', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), "headway"]
    other = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"claimed\n"
        life = {"pid": other.pid, "run_id": "r", "weights_dir": "w"}
        (tmp_path / directory.LIFE).write_text(json.dumps(life))
        wanted = pytest.raises(RunDirectoryError, match=f"process {other.pid} is still running")
        with wanted, directory.claimed(tmp_path):
            pass
    finally:
        other.kill()
        other.communicate()
    with directory.claimed(tmp_path):
        assert directory.last_life(tmp_path) == directory.LifeRecord(**life)
    assert os.listdir(tmp_path) == [directory.LIFE]


def test_runs_cannot_be_kept_in_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="file is not a directory") as caught:
        directory.create(tmp_path / "file", "name")
    assert caught.value.key == "run.dir"
