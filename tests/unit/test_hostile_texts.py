"""What models, tasks and environments write reaches no terminal as a command, and no page as markup."""

import json
import re

import pytest

from headway.cli.main import main
from headway.matching.roles import SimSettings
from headway.telemetry.visible import harmless
from tests.simulation.journals import simulated_journal

EVIL = "\x1b[2J\x1b]0;p\x07\r\u202ez\x00</script>[/x]\x9b\u2028"
SHOWN = r"\x1b[2J\x1b]0;p\x07"  # how its beginning appears
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
OURS = {"GroupSettled": {"reason"}}  # words of the scheduler's own
TEXTS = {"reason", "message", "text", "task_id", "code", "cause", "metric", "detail"}


def hostile(value):
    """Put EVIL into every text of a record that is not an id or a word of the scheduler."""
    if isinstance(value, list):
        return [hostile(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, item in value.items():
        if key in TEXTS - OURS.get(value.get("kind"), set()) and isinstance(item, str):
            found[key] = EVIL + item
        elif key == "metrics":
            found[key] = {EVIL + name: measured for name, measured in item.items()} | {EVIL: 1.0}
        elif key == "reasons":
            found[key] = [EVIL, *item]
        else:
            found[key] = hostile(item)
    return found


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / f"a{EVIL.replace('/', '').replace(chr(0), '')}"
    path.mkdir()
    simulated_journal(path, "stop.steps=3", sim=SimSettings(p_sandbox_lost=0.05))
    header, *lines = (path / "journal.jsonl").read_text().splitlines()
    records = [hostile(json.loads(line)) for line in lines]
    for record in records[:: len(records) // 5]:
        record["notes"] += [
            {"kind": "Warned", "code": EVIL, "text": f"{EVIL}\n{'漢字' * 80}"},
            {"kind": "GuardAlarm", "metric": EVIL, "value": 1.0, "limit": 2.0, "action": "warn", "step": 2},
        ]
    (path / "journal.jsonl").write_text("\n".join([header, *map(json.dumps, records), ""]))
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("report",),
        ("report", "--json"),
        ("watch", "--once"),
        ("watch", "--lines"),
        ("rollouts", "--limit", "0"),
        ("rollouts", "--limit", "0", "--show", "--full"),
        ("rollouts", "--jsonl", "-"),
    ],
    ids=" ".join,
)
def test_nothing_that_a_terminal_obeys_is_printed(run_dir, capsys, arguments):
    command, *options = arguments
    assert main([command, str(run_dir), *options]) == 0
    out, err = capsys.readouterr()
    assert HARMFUL.findall(out + err) == []
    if "--json" in arguments:
        assert f"rl.reward.{EVIL}" in json.loads(out)
    elif "--jsonl" in arguments:
        assert all(json.loads(line)["task_id"].startswith(EVIL) for line in out.splitlines())
    else:
        assert "\\x1b" in out


def test_an_error_that_names_a_task_is_harmless(run_dir, capsys):
    assert main(["rollouts", str(run_dir), "--task", "nowhere"]) == 2
    err = capsys.readouterr().err
    assert HARMFUL.findall(err) == []
    assert f"The nearest is {SHOWN}" in err


def test_a_fault_is_harmless(run_dir, capsys, monkeypatch):
    def fail(path):
        raise ValueError(EVIL)

    monkeypatch.setattr("headway.telemetry.journal.read_journal", fail)
    assert main(["report", str(run_dir)]) == 1
    err = capsys.readouterr().err
    assert HARMFUL.findall(err) == []
    assert SHOWN in err
    assert err.startswith("Traceback")


def test_a_frame_is_no_wider_than_the_terminal_where_letters_take_two_columns(run_dir):
    from rich.cells import cell_len

    from headway.runtime.watch import _Watched
    from headway.telemetry.follow import Follower

    follower = Follower(run_dir)
    follower.poll()
    watched = _Watched(run_dir, follower, follower.header)
    watched.all_lines()
    for width in (20, 40, 80, 99, 100, 120, 160):
        lines = ["".join(span.text for span in line) for line in watched.frame(width, None, False)]
        assert max(map(cell_len, lines)) <= width
        assert HARMFUL.findall("".join(lines)) == []


def test_a_page_shows_it_as_text(run_dir, tmp_path):
    pytest.importorskip("plotly")
    page = tmp_path / "report.html"
    assert main(["report", str(run_dir), "--html", str(page)]) == 0
    text = re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.DOTALL)
    assert HARMFUL.findall(text) == []
    assert f"{SHOWN}\\r\\u202ez\\0&lt;/script&gt;[/x]\\x9b\\u2028" in text


def test_harmless_escapes_keys_and_texts_of_plain_data():
    assert harmless({EVIL: [1, None, ("a\n \tb\x1b",)], 2: True}) == {
        rf"{SHOWN}\r\u202ez\0</script>[/x]\x9b\u2028": [1, None, ["a b\\x1b"]],
        2: True,
    }
