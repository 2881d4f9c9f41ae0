"""A package is installed by pip into a virtual environment of its own; here from wheels on disk."""

import subprocess
import zipfile

import pytest
from click.testing import CliRunner

from headway.cli.main import cli
from headway.core.errors import EnvironmentSetupError
from headway.environments.verifiers.install import install
from headway.environments.verifiers.places import find

pytestmark = pytest.mark.slow  # a virtual environment each


def write_wheel(folder, name, version, module, text, requires=()):
    stem = f"{module}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}.py", text)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {each}" for each in requires]
        wheel.writestr(f"{stem}.dist-info/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(
            f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        names = [f"{module}.py", *(f"{stem}.dist-info/{each}" for each in ("METADATA", "WHEEL", "RECORD"))]
        wheel.writestr(f"{stem}.dist-info/RECORD", "".join(f"{each},,\n" for each in names))


@pytest.fixture
def index(tmp_path, monkeypatch):
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("0.3.1", "0.4.0"):
        write_wheel(folder, "verifiers", version, "verifiers", "")
    write_wheel(folder, "old-env", "1.0", "old_env", "def load_environment(): ...", ["verifiers>=0.1.14"])
    write_wheel(folder, "new-env", "2.0", "new_env", "class Taskset: ...", ["verifiers"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    return folder


def test_the_package_decides_the_major_version(index):
    old, new = install("old_env", say=str), install(str(index / "new_env-2.0-py3-none-any.whl"), say=str)
    assert (old.name, old.version, old.verifiers) == ("old-env", "1.0", "0.3.1")
    assert (new.name, new.version, new.verifiers) == ("new-env", "2.0", "0.4.0")
    assert find("old-env") == old
    done = subprocess.run([old.executable, "-c", "import old_env"], check=False)
    assert done.returncode == 0


def test_a_lock_is_written_kept_and_installed(index, tmp_path):
    lock = tmp_path / "old.lock"
    words = ["env", "install", "old-env", "--lock", str(lock)]
    first = CliRunner().invoke(cli, words)
    assert "installed verifiers:old-env 1.0, with verifiers 0.3.1" in first.output
    assert lock.read_text().splitlines()[1:] == ["old-env==1.0", "verifiers==0.3.1"]
    before = find("old-env")
    assert "is installed; --force installs it anew" in CliRunner().invoke(cli, words).output
    assert find("old-env") == before
    write_wheel(index, "verifiers", "0.3.9", "verifiers", "")
    CliRunner().invoke(cli, ["env", "install", "old-env", "--force"])
    assert find("old-env").verifiers == "0.3.9"
    assert not before.executable.exists()
    CliRunner().invoke(cli, ["env", "install", "old-env", "--locked", str(lock)])
    assert find("old-env").verifiers == "0.3.1"


def test_what_pip_cannot_find_leaves_nothing(index, tmp_path):
    with pytest.raises(EnvironmentSetupError, match="no-such-env"):
        install("no-such-env", say=str)
    assert not list((tmp_path / "cache" / "environments" / "venvs").iterdir())
