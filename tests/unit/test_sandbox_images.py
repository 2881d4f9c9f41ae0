"""What every sandbox begins with: a folder, a tar archive, or a Python environment."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from headway.core.errors import SandboxError, UserError
from headway.sandbox import images
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.images import image_of
from headway.sandbox.local import LocalProvider
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.store import Store

SEE = "import hello, sys; print(hello.WORD, hello.__file__, sys.prefix)"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr(images, "_cache", lambda: folder)
    return folder


@pytest.fixture(params=["local", "bubblewrap"])
def provide(request, tmp_path):
    made = []

    def provide(image, **settings):
        directory = str(tmp_path / "sandboxes")
        settings = SandboxSettings(image=str(image), directory=directory, **settings)
        made.append((LocalProvider if request.param == "local" else BubblewrapProvider)(settings))
        return made[-1]

    yield provide
    for provider in made:
        if isinstance(provider, LocalProvider):
            provider.close()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "image"
    (folder / "d" / "e").mkdir(parents=True)
    (folder / "d" / "x").write_text("x")
    (folder / "d" / "e" / "y").write_text("y")
    (folder / "keep").write_text("keep")
    (folder / "link").symlink_to("keep")
    (folder / "run").write_text("#!/bin/sh\necho ran\n")
    (folder / "run").chmod(0o755)
    return folder


@pytest.fixture
def packed(folder, tmp_path):
    def pack(path):
        with tarfile.open(path, "w:gz") as tar:
            tar.add(folder, ".")
        return path

    return pack(tmp_path / "image.tgz")


async def says(sandbox, command):
    result = await sandbox.exec(["sh", "-c", command])
    assert result.stderr == ""
    return result.stdout.split()


@pytest.fixture(params=["folder", "packed"])
def source(request):
    return request.getfixturevalue(request.param)


async def test_each_sandbox_begins_with_it_and_none_changes_it(provide, source, cache, folder):
    provider = provide(source)
    assert [g.level for g in await provider.preflight() if g.name == "image"] != []
    one, two = [await provider.create(name, {"run": "r"}) for name in ("one", "two")]
    assert await says(one, "cat d/x d/e/y link; ./run; stat -c %u keep") == ["xykeepran", "1000"]
    await one.exec(["sh", "-c", "rm -r d; mkdir d; echo new > d/n; echo more >> keep; rm run; mv link l"])
    assert await says(one, "cat keep; ls -A . d") == ["keepmore", ".:", "d", "keep", "l", "d:", "n"]
    assert await says(two, "cat keep; ls -A . d") == ["keep.:", "d", "keep", "link", "run", "d:", "e", "x"]
    await two.write("keep", b"by the host")
    assert await two.read("d/e/y") == b"y"
    assert (folder / "keep").read_text() == "keep"
    (image,) = [path for path in cache.iterdir() if path.is_dir() and path.name != "seen"]
    assert (image / "keep").read_text() == "keep"
    for sandbox in (one, two):
        await sandbox.terminate()


async def test_what_differs_from_it_survives_a_snapshot_a_fork_and_a_reset(provide, folder, tmp_path):
    provider = provide(folder)
    one = await provider.create("one", {"run": "r"})
    await one.exec(["sh", "-c", "rm -r d; mkdir d; echo new > d/n; echo more >> keep; rm run; chmod 555 ."])
    digest = await provider.snapshot("one", tmp_path / "store", {})
    two = await provider.restore("two", {"run": "r"}, tmp_path / "store", digest)
    three = await provider.fork("one", "three", {"run": "r"})
    look = "cat keep; ls -A . d; stat -c %a .; touch z 2>/dev/null || echo no"
    seen = ["keepmore", ".:", "d", "keep", "link", "d:", "n", "555", "no"]
    for sandbox in (one, two, three):
        assert await says(sandbox, look) == seen
    await one.exec(["sh", "-c", "chmod 755 .; rm -rf *"])
    assert await says(one, "ls -A") == []
    empty = await provider.snapshot("one", tmp_path / "store", {})
    await provider.reset("two", tmp_path / "store", empty)
    assert await says(two, "ls -A") == []
    await provider.reset("one", tmp_path / "store", digest)
    assert await says(one, look) == seen
    assert await provider.snapshot("one", tmp_path / "store", {}) == digest
    for sandbox in (one, two, three):
        await sandbox.terminate()


async def test_a_snapshot_holds_only_what_differs_and_needs_the_same_image(folder, tmp_path):
    (folder / "large").write_bytes(os.urandom(1 << 20))
    provider = LocalProvider(SandboxSettings(image=str(folder)))
    other = LocalProvider(SandboxSettings())
    try:
        levels = {guarantee.name: guarantee.level for guarantee in await provider.preflight()}
        if levels["image"] != "enforced":
            pytest.skip("no overlays here")
        one = await provider.create("one", {})
        await one.write("new", b"new")
        digest = await provider.snapshot("one", tmp_path / "store", {})
        assert [path.read_bytes() for path in (tmp_path / "store" / "blobs").iterdir()] == [b"new"]
        assert Store(tmp_path / "store").snapshots()[digest].base
        with pytest.raises(SandboxError, match="over the image"):
            await other.restore("two", {}, tmp_path / "store", digest)
        assert await other.list({}) == []
    finally:
        provider.close()
        other.close()


async def test_without_overlays_each_sandbox_has_a_copy(folder, tmp_path, monkeypatch):
    folder.chmod(0o755)
    provider = LocalProvider(SandboxSettings(image=str(folder)))
    zygote = await provider.zygote()
    image = provider.image
    # As where the files' owner is none that the sandbox knows: the helper finds out and says so.
    provider.close()
    os.chown(image.path, 12345, 12345) if os.geteuid() == 0 else image.path.chmod(0o755)
    if os.geteuid() != 0:
        pytest.skip("needs another owner")
    provider = LocalProvider(SandboxSettings(image=str(folder)))
    try:
        levels = {guarantee.name: guarantee for guarantee in await provider.preflight()}
        assert levels["image"].level == "best-effort"
        one = await provider.create("one", {})
        assert await says(one, "cat d/x; rm -r d; ls -A") == ["xkeep", "link", "run"]
        digest = await provider.snapshot("one", tmp_path / "store", {})
        two = await provider.restore("two", {}, tmp_path / "store", digest)
        assert await says(two, "ls -A") == ["keep", "link", "run"]
    finally:
        provider.close()
    assert zygote.ended


def test_equal_content_is_one_image_and_a_change_is_another(folder, packed, cache):
    first = image_of(str(folder))
    assert image_of(str(folder)) == image_of(str(packed)) == first
    (folder / "keep").write_text("kept")
    second = image_of(str(folder))
    assert second.digest != first.digest
    assert (first.path / "keep").read_text() == "keep"
    assert (second.path / "keep").read_text() == "kept"
    assert image_of("") is None


def test_a_half_built_one_is_never_used_and_two_processes_build_one(folder, cache):
    code = (
        "import sys; from pathlib import Path; from headway.sandbox import images\n"
        "images._cache = lambda: Path(sys.argv[1])\n"
        "def die(*_, **__): import os; os.kill(os.getpid(), 9)\n"
        "if sys.argv[3:]: images.copy_tree = die\n"
        "print(images.image_of(sys.argv[2]).path)"
    )
    command = [sys.executable, "-c", code, str(cache), str(folder)]
    killed = subprocess.run([*command, "die"], capture_output=True, check=False)
    assert killed.returncode == -9
    drafts = [path for path in cache.iterdir() if path.name.endswith(".draft")]
    assert len(drafts) == 1
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate()[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert paths == {str(image_of(str(folder)).path)}
    assert (Path(paths.pop()) / "d" / "e" / "y").read_text() == "y"
    assert not drafts[0].exists()


@pytest.mark.parametrize("name", ["../escape", "/escape", "d/../../escape", "link/../../escape"])
def test_a_tar_that_leads_out_is_refused(tmp_path, cache, name):
    path = tmp_path / "bad.tar"
    with tarfile.open(path, "w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(UserError, match=r"sandbox\.image: an archive's entries must stay"):
        image_of(str(path))
    assert not (tmp_path / "escape").exists()
    assert [path for path in cache.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("missing", None, "must be a folder, a tar archive or a requirements file"),
        ("junk.tar", "junk", "must be a tar archive"),
        (
            "requirements.txt",
            "--no-index\nno-such-package==1\n",
            "No matching distribution found for no-such",
        ),
        ("requirements.txt", "-r other.txt\n", "must name packages, not other files"),
        ("requirements.txt", "./here\n", "must name packages, not other files"),
    ],
)
def test_a_bad_image_is_one_clear_error(tmp_path, cache, name, text, said):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError) as caught:
        image_of(str(path))
    assert said in str(caught.value)
    assert caught.value.key == "sandbox.image"
    assert "\n" not in str(caught.value)
    assert [path for path in cache.iterdir() if path.is_dir()] == []


@pytest.fixture
def requirements(tmp_path):
    """A requirements file whose one package comes from a folder beside it."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    info = "hello-1.0.dist-info"
    files = {
        "hello/__init__.py": "WORD = 'hi'\n\n\ndef main():\n    print('script', WORD)\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nhello = hello:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(wheels / "hello-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    path = tmp_path / "requirements.txt"
    path.write_text(f"--no-index\n--find-links {wheels}\nhello==1.0\n")
    return path


async def test_a_python_environment_is_on_the_path_of_python3(provide, requirements, cache):
    pytest.importorskip("pip")
    provider = provide(requirements)
    await provider.preflight()
    sandbox = await provider.create("one", {"run": "r"})
    where = f"/opt/headway/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    for argv in (["python3", "-c", SEE], ["python3", "-I", "-c", SEE], ["python3", "-O", "-c", SEE]):
        result = await sandbox.exec(argv)
        assert (result.stdout, result.stderr) == (f"hi {where}/hello/__init__.py /opt/headway\n", "")
    assert await says(sandbox, "/opt/headway/bin/hello; hello") == ["script", "hi"] * 2
    tries = f"for p in {where}/hello/__init__.py {where}/x /opt/headway/bin/x; do echo x > $p; done; ls"
    result = await sandbox.exec(["sh", "-c", tries])
    assert result.stderr.count("Read-only file system") == 3
    assert result.stdout == ""
    assert (await sandbox.exec(["python3", "-c", SEE])).stdout.startswith("hi ")
    await sandbox.terminate()


def test_an_environment_is_built_once_for_its_text_and_interpreter(requirements, cache, monkeypatch):
    pytest.importorskip("pip")
    first = image_of(str(requirements))
    monkeypatch.setattr(images, "_install", None)  # what is there is not built again
    assert image_of(str(requirements)) == first
    other = requirements.with_name("other.txt")
    other.write_bytes(requirements.read_bytes())
    assert image_of(str(other)) == first


async def test_a_bad_image_is_found_before_anything_runs(provide, tmp_path):
    provider = provide(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"sandbox\.image"):
        await provider.preflight()
    assert await provider.list({}) == []
