"""A real run on a terminal: the frame is there while it goes on, and the terminal is as before at the end."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

import pytest

from tests.integration.conftest import ROOT, wait_for


class OnTerminal:
    """`python -m headway ...` as the leader of a terminal of its own."""

    def __init__(self, folder, arguments, columns=100, lines=30):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color"}
        for name in ("NO_COLOR", "COLUMNS", "LINES", "JPY_PARENT_PID"):
            environ.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", STARTER, *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=environ,
            start_new_session=True,
        )
        self._shown = bytearray()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            try:
                self._shown += os.read(self.master, 65536)
            except OSError:
                return

    @property
    def pid(self):
        return self.process.pid

    def workers(self):
        return []

    @property
    def text(self):
        """What was written, without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self._shown.decode(errors="replace"))

    def until(self, pattern):
        wait_for(
            lambda: re.search(pattern, self.text) or self.process.poll() is not None,
            lambda: f"{pattern!r} in:\n{self.text}",
        )
        assert re.search(pattern, self.text), self.text

    def type(self, keys):
        os.write(self.master, keys)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def ended(self, within_s=120):
        code = self.process.wait(within_s)
        assert termios.tcgetattr(self.slave) == self.before
        assert "\x1b[?" not in self._shown.decode(errors="replace")  # cursor, screen, keys: nothing changed
        return code


# The controlling terminal is what makes a typed Ctrl-C a signal.
STARTER = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from headway.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def terminal(bench):
    def start(*arguments, **size):
        command = OnTerminal(bench.folder, arguments, **size)
        bench.commands.append(command)
        return command

    return start


def test_a_frame_below_the_lines_and_a_terminal_as_it_was(bench, terminal):
    command = terminal("train", bench.config, "stop.steps=200")
    command.until(r"── test ── starting for \S+, \d of 3 processes are ready")
    command.until(r"── test ── training step \d")
    fcntl.ioctl(command.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 15, 40, 0, 0))
    command.until("step reward  eval .*\n *[0-9]+/200 ")  # lines that fit it
    command.type(b"\x03")
    command.until("SIGINT: finishing the step")
    assert command.ended() == 130, command.text
    assert command.text.endswith("\x1b[2K"), command.text  # the frame is gone
    assert re.search(r"finished \(interrupted\) after", command.text)
    assert bench.check()["outcome"] == "interrupted"


@pytest.mark.slow  # how the frame goes is tested above, and what a failed run says in test_faults.py
def test_a_run_that_fails_leaves_its_error_below_its_lines(bench, terminal):
    command = terminal("train", bench.config, *bench.environment("raise ValueError('no luck')"))
    assert command.ended() == 1, command.text
    assert "── test ── starting" in command.text
    assert re.search(r"error: 8 groups in a row left no usable rollouts.*: no luck", command.text)
    assert command.text.endswith("\x1b[2K"), command.text  # the frame is gone
