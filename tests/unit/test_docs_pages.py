"""The pages of the documentation hold together: links, commands, examples."""

import re
from pathlib import Path

import pytest

from headway.cli.lazy import LazyGroup
from headway.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if target.startswith(("http://", "https://")):
            continue
        path, _, fragment = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (fragment and fragment not in anchors(file)):
            broken.append(target)
    assert broken == []


def command_named(words: list[str]) -> bool:
    group = cli
    for word in words:
        if not isinstance(group, LazyGroup):
            return True  # an argument of a command
        command = group.get_command(None, word)
        if command is None:
            return False
        group = command
    return True


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_exist(page):
    shown = re.findall(
        r"(?:^ {4,}(?:\S+=\S+ )?|`)headway ([a-z][a-z -]*)", page.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [words for words in shown if not command_named(words.split())] == []


def test_the_page_on_environments_shows_the_example_as_it_is():
    example = (ROOT / "examples" / "own_environment" / "reverse.py").read_text(encoding="utf-8")
    assert f"```python\n{example.rstrip()}\n```" in (ROOT / "docs" / "environments.md").read_text(
        encoding="utf-8"
    )


def test_the_hooks_of_that_page_do_what_they_say():
    torch = pytest.importorskip("torch")
    from tests.contract.algorithm_contract import check_advantage, check_loss

    text = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n# my_hooks.py\n(.*?)```", text, re.DOTALL)
    hooks: dict = {}
    exec(block, hooks)
    check_advantage(hooks["best_only"])
    check_loss(hooks["plain_reinforce"])
    assert hooks["best_only"]([0.0, 1.0, 1.0], None) == [0.0, 1.0, 1.0]
    assert hooks["best_only"]([1.0, 1.0], None) == [0.0, 0.0]
    logp = torch.tensor([-1.0, -2.0])
    per_token, clipped = hooks["plain_reinforce"](logp, logp, torch.tensor([1.0, -0.5]), None)
    assert per_token.tolist() == [1.0, -1.0]
    assert clipped.tolist() == [False, False]


def test_the_hooks_page_s_own_algorithms_keep_the_contract():
    pytest.importorskip("torch")
    from tests.contract.algorithm_contract import check_advantage, check_loss

    text = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", text.partition("## Advantage")[2], re.MULTILINE)
    hooks: dict = {}
    for block in blocks[:3]:
        exec("".join(line[4:] or "\n" for line in block.splitlines(keepends=True)), hooks)
    check_advantage(hooks["centred_unit"])
    check_loss(hooks["plain_reinforce"])
    check_loss(hooks["certain"])


def test_the_family_s_page_names_every_member_and_no_other():
    from headway.algorithms.advantages import ADVANTAGES
    from headway.algorithms.corrections import CORRECTIONS
    from headway.algorithms.losses import LOSSES

    text = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    for heading, registry in (("Advantages", ADVANTAGES), ("Losses", LOSSES), ("Corrections", CORRECTIONS)):
        section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)[1:]
        assert sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == list(registry.names)


def test_the_tour_s_simulation_runs(capsys):
    text = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    lines = text.partition("## The simulated driver")[2].splitlines()
    exec("\n".join(line[4:] for line in lines if line.startswith("    ")), {})
    assert "virtual seconds" in capsys.readouterr().out


def test_every_decision_note_is_listed():
    folder = ROOT / "docs" / "decisions"
    notes = [path.name for path in sorted(folder.glob("[0-9]*.md"))]
    listed = re.findall(
        r"^\| \[\d+\]\(([^)]+)\)", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert listed == notes
