"""Work folders on the host: their names, and who makes and removes them at once."""

import asyncio
import os
from pathlib import Path

import pytest

from headway.sandbox.bubblewrap import BubblewrapProvider, folder_name
from headway.sandbox.hosted import make_folder
from headway.sandbox.pools import make_pool
from headway.sandbox.settings import SandboxSettings

NAMES = ("", ".", "..", "...", "%", "%2E", "%.", "a/b", "a%2Fb", "a", "../a", "%draft", "s%draft", "é")


def test_every_text_has_a_folder_of_its_own_and_none_is_another_place():
    names = [folder_name(text) for text in NAMES]
    assert len(set(names)) == len(NAMES)
    for name in names:
        assert Path("/root", name).parent == Path("/root")
        assert os.path.normpath(f"/root/{name}") == f"/root/{name}"
        assert not name.endswith(("%draft", "%old"))  # those of a folder that is being filled


@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_an_odd_id_or_run_ends_its_own_sandbox_and_nothing_beside_it(tmp_path, name):
    provider = BubblewrapProvider(SandboxSettings(directory=str(tmp_path / "a" / "sandboxes")))
    (tmp_path / "a" / "beside").mkdir(parents=True)
    (tmp_path / "beside").mkdir()
    one, other = await provider.create(name, {"run": name}), await provider.create("other", {"run": "r"})
    for sandbox in (one, other):
        await sandbox.write("file", b"x")
    provider.forget(name)  # as a process that is dead leaves it
    assert await provider.end(name, {"run": name})
    assert await provider.reap(name) == 0
    assert await other.read("file") == b"x"
    assert sorted(os.listdir(tmp_path)) == ["a", "beside"]
    assert sorted(os.listdir(tmp_path / "a")) == ["beside", "sandboxes"]
    await other.terminate()


def test_a_run_folder_that_others_remove_in_between_is_made_again(tmp_path, monkeypatch):
    """Another worker ends the run's last sandbox after this one has seen the run's folder."""
    folder, mkdir, left = tmp_path / "root" / "run" / "s", os.mkdir, 5

    def interrupted(path, *args, **kwargs):
        nonlocal left
        mkdir(path, *args, **kwargs)
        if path == folder.parent and left:
            left -= 1
            os.rmdir(path)

    monkeypatch.setattr(os, "mkdir", interrupted)
    make_folder(folder)
    assert (folder.is_dir(), left, folder.stat().st_mode & 0o777) == (True, 0, 0o700)
    with pytest.raises(FileExistsError):
        make_folder(folder)


@pytest.mark.parametrize("with_image", [False, True])
async def test_sandboxes_of_one_run_come_and_go_in_each_others_way(tmp_path, with_image):
    image = tmp_path / "image"
    image.mkdir()
    settings = SandboxSettings(directory=str(tmp_path / "sandboxes"), image=str(image) if with_image else "")
    providers = [BubblewrapProvider(settings) for _ in range(2)]

    async def user(provider, name):
        for number in range(40):
            sandbox = await provider.create(f"{name}{number}", {"run": "r"})
            await sandbox.write("file", b"x")
            await sandbox.terminate()

    await asyncio.gather(
        *(user(provider, f"{name}-{id(provider)}-") for provider in providers for name in "ab")
    )
    assert os.listdir(tmp_path / "sandboxes") == []


@pytest.mark.filterwarnings("ignore:sandbox.provider")
@pytest.mark.parametrize("provider", ["bubblewrap", "local", "unsafe-local"])
async def test_several_preflights_at_once_are_in_nobodys_way(tmp_path, monkeypatch, provider):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # of the leases too
    settings = SandboxSettings(provider=provider, allow_unsafe=True, directory=str(tmp_path / "sandboxes"))
    pools = [make_pool(settings, name, warm=0) for name in "ab"]
    try:
        found = await asyncio.gather(*(pool.preflight() for pool in pools for _ in range(3)))
        assert all(found[0] == one for one in found)
        assert len({pool.inner.probe[0] for pool in pools}) == 2
        assert list((tmp_path / f"headway-leases-{os.geteuid()}").iterdir()) == []
    finally:
        for pool in pools:
            getattr(pool.inner, "close", lambda: None)()
