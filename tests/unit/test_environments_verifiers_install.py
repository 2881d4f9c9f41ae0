"""A package is installed by pip into a virtual environment of its own; here from wheels on disk."""

import hashlib
import re
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


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
    lines = [
        f"old-env==1.0 --hash=sha256:{digest(index / 'old_env-1.0-py3-none-any.whl')}",
        f"verifiers==0.3.1 --hash=sha256:{digest(index / 'verifiers-0.3.1-py3-none-any.whl')}",
    ]
    assert lock.read_text().splitlines()[1:] == lines
    before = find("old-env")
    assert "is installed; --force installs it anew" in CliRunner().invoke(cli, words).output
    assert find("old-env") == before
    write_wheel(index, "verifiers", "0.3.9", "verifiers", "")
    CliRunner().invoke(cli, ["env", "install", "old-env", "--force"])
    assert find("old-env").verifiers == "0.3.9"
    assert not before.executable.exists()
    said = CliRunner().invoke(cli, ["env", "install", "old-env", "--locked", str(lock)]).output
    assert "installing the 1 packages of" in said
    assert "each by its hash" in said
    assert find("old-env").lock == tuple(lines)


def test_a_file_that_is_not_the_locked_one_is_not_installed(index, tmp_path):
    lock = tmp_path / "old.lock"
    words = ["env", "install", "old-env", "--force"]
    CliRunner().invoke(cli, [*words, "--lock", str(lock)])
    before = find("old-env")
    write_wheel(index, "verifiers", "0.3.1", "verifiers", "stolen = True")
    with pytest.raises(EnvironmentSetupError, match=r"HASHES[\s\S]*Expected sha256"):
        install("old-env", locked=lock, say=str)
    assert find("old-env") == before
    bare = tmp_path / "bare.lock"
    bare.write_text(re.sub(r"(old-env.*) --hash.*", r"\1", lock.read_text()))
    with pytest.raises(EnvironmentSetupError, match="HASHES"):
        install("old-env", locked=bare, say=str)
    bare.write_text(re.sub(r" --hash.*", "", lock.read_text()))
    said = []
    install("old-env", locked=bare, say=said.append)
    assert said[-1].endswith("no hash is checked, for 1 have none")


def test_an_index_that_cannot_be_reached_is_named(index, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(EnvironmentSetupError, match="pip must reach its index") as caught:
        install("no-such-env", say=str)
    assert "Connection refused" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_what_pip_cannot_find_leaves_nothing(index, tmp_path):
    with pytest.raises(EnvironmentSetupError, match="no-such-env"):
        install("no-such-env", say=str)
    assert not list((tmp_path / "cache" / "environments" / "venvs").iterdir())
