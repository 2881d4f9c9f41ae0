"""What the system refuses of a path that somebody named is bad input, and everything else is a fault."""

import errno
import os

import pytest

from headway.core.storage import refused


def test_a_path_without_the_right_to_it_is_bad_input():
    said = str(refused(PermissionError(errno.EACCES, "x", "/root/secret")))
    assert said == (
        "the system refuses a path: Permission denied (got '/root/secret'). "
        "Give yourself the right to it, or name another place"
    )


@pytest.mark.parametrize("name", ["x" * 400, "loop/inner", "file/inner"])
def test_a_path_that_can_be_none_is_bad_input(tmp_path, name):
    os.symlink("loop", tmp_path / "loop")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"\[Errno") as caught:
        (tmp_path / name).stat()
    found = refused(caught.value)
    assert found is not None
    assert found.remedy
    assert len(str(found)) < 500


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "x", "a"),
        OSError(errno.EIO, "x", "a"),
        PermissionError(errno.EPERM, "not a path"),
        ValueError("x"),
    ],
)
def test_other_errors_stay_faults(error):
    assert refused(error) is None
