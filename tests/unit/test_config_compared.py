"""Settings of a run beside their defaults."""

from headway.config.compared import compared
from headway.config.load import load_config
from headway.core.codec import to_plain


def rows_of(*overrides):
    config = load_config(None, ["model.path=tiny", "environment.name=arithmetic", *overrides])
    return {row.key: row for row in compared(to_plain(config))}


def test_what_differs_is_what_was_set():
    rows = rows_of("queue.bound=4", "environment.args.levels=[2]", "run.usd_per_hour=1.5")
    differing = {key: (row.value, row.default) for key, row in rows.items() if row.differs}
    assert differing == {
        "run.usd_per_hour": ("1.5", "not set"),
        "model.path": ('"tiny"', "required"),
        "environment.name": ('"arithmetic"', "required"),
        "environment.args.levels": ("[2]", "[1, 2]"),
        "queue.bound": ("4", "2"),
    }
    assert rows["queue.bound"].doc.startswith("Staleness bound")
    assert rows["telemetry.peak_flops_per_s"].value == "not set"


def test_named_sections_and_an_environment_that_is_not_here():
    rows = rows_of("source.easy.weight=2.0", "source.easy.levels=[1]")
    assert rows["source.easy.weight"].differs
    plain = {"environment": {"name": "/gone/mine.py", "args": {"size": 3}, "workers": 1}, "old": {"key": 1}}
    rows = {row.key: row for row in compared(plain)}
    assert (rows["environment.args.size"].value, rows["environment.args.size"].differs) == ("3", True)
    assert not rows["environment.workers"].differs
