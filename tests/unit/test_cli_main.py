"""The headway command: its listing, its exit codes, what an error looks like."""

import os
import subprocess
import sys

import click
import pytest

from headway import __version__
from headway.cli import main as cli_main
from headway.cli.arguments import naming
from headway.cli.lazy import LazyGroup
from headway.core.errors import ConfigError, SandboxError, UserError


def headway(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "headway", *arguments], capture_output=True, text=True, timeout=60, **options
    )


def loaded_by(program):
    program += "\nimport sys; print(' '.join(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split("\n")[-2].split())


HEAVY = {"torch", "transformers", "pydantic", "numpy", "rich", "asyncio"}


@pytest.mark.parametrize(
    "program",
    [
        "import headway",
        "from headway.cli.main import COMMANDS, main; main(['--help'])",
        "from headway.cli.main import main; main(['--version'])",
        "from headway.cli.main import main; main(['train', '--help'])",
    ],
)
def test_import_and_help_load_nothing_heavy(program):
    assert loaded_by(program) & HEAVY == set()


def test_help_lists_every_command():
    done = headway("--help")
    assert done.returncode == 0
    for name, (_, line) in cli_main.COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert line in done.stdout


def test_examples_keep_their_lines():
    shown = headway("train", "--help").stdout
    assert "\n    headway train examples/quickstart.toml\n" in shown
    assert "\\b" not in shown


def test_version():
    assert headway("--version").stdout == f"headway, version {__version__}\n"


def all_commands(group, path=()):
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield (*path, name), command, group
        if isinstance(command, LazyGroup):
            yield from all_commands(command, (*path, name))


COMMANDS = list(all_commands(cli_main.cli))


@pytest.mark.parametrize(("path", "command", "group"), COMMANDS, ids=[" ".join(row[0]) for row in COMMANDS])
def test_a_command_is_listed_with_its_own_first_line_and_shows_an_example(path, command, group):
    assert command.name == path[-1]
    assert command.help.partition("\n")[0] == group.lazy_commands[path[-1]][1]
    if not isinstance(command, LazyGroup):
        assert (
            f"  headway {' '.join(path)} " in command.help or f"  headway {' '.join(path)}\n" in command.help
        )
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "There is no command 'trian'. Did you mean train?"),
        (
            ["zzzz"],
            f"There is no command 'zzzz'. The commands are {', '.join(cli_main.COMMANDS)}.",
        ),
        (["env", "lst"], "There is no command 'lst'. Did you mean list?"),
        (["train"], "there must be a config file, or data to train on. Give CONFIG"),
        (["replay", "somewhere"], "Add --verify: comparing is all that replay does."),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments, message, capsys):
    assert cli_main.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_wrong_config_shows_every_problem_and_no_traceback(tmp_path):
    (tmp_path / "run.toml").write_text(
        "[model]\npath = 'tiny'\n[queue]\non_failed_rollout = 'shrnk'\n[queu]\n"
    )
    done = headway("train", "run.toml", "queue.bound=x", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "error: run.toml: environment.name: is required: A built-in environment (`headway env list`), "
        "reasoning-gym:NAME, verifiers:NAME, an import path `module:Class`, or a .py file (relative to the "
        "config file). In "
        'section [environment] write, for example, name = "arithmetic"',
        'error: run.toml:4: queue.on_failed_rollout: must be "shrink" or "void" (got \'shrnk\'). '
        'Did you mean "shrink"?',
        "error: run.toml:5: queu: is not a section. Did you mean [queue]?",
        "error: command line: queue.bound: must be an integer (got 'x')",
    ]


@pytest.mark.parametrize("command", [["resume"], ["report"], ["replay", "--verify"]])
def test_a_directory_that_is_no_run(command, tmp_path, capsys):
    assert cli_main.main([*command, str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: must be the directory of a run, with its journal (got {str(tmp_path)!r}). "
        "headway train prints the directory first; by default runs are in runs/\n"
    )
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "journal.jsonl").touch()
    assert cli_main.main([*command, str(tmp_path)]) == 2
    assert f"Did you mean {tmp_path / 'first'}?" in capsys.readouterr().err


@pytest.fixture
def raising(monkeypatch):
    def raising(error):
        def body():
            raise error

        command = click.Command("train", callback=body)
        monkeypatch.setattr(cli_main.cli, "get_command", lambda ctx, name: command)
        return cli_main.main(["train"])

    return raising


def test_bad_input_inside_a_task_group_is_still_bad_input(raising, capsys):
    first, second = UserError("first"), ConfigError([UserError("second"), UserError("third")])
    assert raising(ExceptionGroup("tasks", [first, ExceptionGroup("inner", [second])])) == 2
    assert capsys.readouterr().err == "error: first\nerror: second\nerror: third\n"


def test_bad_input_beside_a_fault_is_a_fault(raising, capsys):
    assert raising(ExceptionGroup("tasks", [UserError("first"), ValueError("second")])) == 1
    assert "ValueError: second" in capsys.readouterr().err


def test_a_fault_keeps_its_traceback_and_names_the_run(raising, tmp_path, capsys):
    def fail():
        with naming(tmp_path):
            raise SandboxError("the sandbox must start", value=3)

    with pytest.raises(SandboxError) as caught:
        fail()
    assert raising(caught.value) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert "in fail" in shown
    assert shown.endswith(
        f"headway.core.errors.SandboxError: the sandbox must start (got 3)\nrun directory: {tmp_path}\n"
    )


def test_an_interrupt_is_exit_code_130(raising, capsys):
    assert raising(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err.strip() == "interrupted"


TOO_LONG = "x" * 400


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", TOO_LONG],
        ["train", TOO_LONG],
        ["sft", TOO_LONG],
        ["resume", TOO_LONG],
        ["export", TOO_LONG, "out"],
        ["eval", TOO_LONG, "--env", "arithmetic"],
        ["eval", f"./{TOO_LONG}"],
        ["report", TOO_LONG],
        ["env", "try", f"{TOO_LONG}.py"],
        ["env", "try", "arithmetic", "--model", f"./{TOO_LONG}"],
    ],
    ids=lambda arguments: " ".join(argument[:9] for argument in arguments),
)
def test_a_path_that_the_system_refuses_is_bad_input(tmp_path, arguments, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli_main.main(arguments) == 2
    said = "".join(capsys.readouterr())
    assert "Traceback" not in said
    assert "File name too long" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_output_is_one_line(unbuffered):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "headway", "completion", "bash"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 2
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


def test_streams_that_are_closed_lead_nowhere(tmp_path):
    """The next file that is opened would take their place, and what is printed would go there."""
    program = (
        "from headway.cli.main import main; main(['--version']); print('printed'); file = open('file', 'w')"
    )
    program += "; import os, sys; file.write(str(file.fileno() > 2)); file.flush(); os.write(1, b'lost')"
    script = f'exec "{sys.executable}" -c "{program}" <&- >&- 2>&-'
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "True"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_lead_nowhere(tmp_path, closed):
    command = f'"{sys.executable}" -m headway env list {closed}; echo $? >code; '
    command += f'"{sys.executable}" -m headway check nope.toml {closed}; echo $? >>code'
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stdout + done.stderr
    assert (tmp_path / "code").read_text().split() == ["0", "2"]
