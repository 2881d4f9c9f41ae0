"""Look it up: questions about towns that no model has read of, answered with a search tool.

The corpus (corpus.jsonl, invented) is beside this file; SQLite's full-text index ranks it by BM25. From the
root of the repository:

    headway env check examples/search/search.py
    headway env try examples/search/search.py --model smollm2
    headway train examples/search/search.toml
"""

import json
import random
import re
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path

from headway.core.records import Reward
from headway.core.settings import setting
from headway.environments.own import OwnEnvironment

CORPUS = Path(__file__).with_name("corpus.jsonl")


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """What `[environment.args]` may set."""

    num_found: int = setting(2, "Passages that a search finds at most.", ge=1, le=10)


class Index:
    """Passages by BM25, in memory. Tools run in threads, so one search has the index at a time."""

    def __init__(self, rows: list[dict]) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute("CREATE VIRTUAL TABLE passages USING fts5(title, text, tokenize=porter)")
        self._database.executemany("INSERT INTO passages VALUES (:title, :text)", rows)

    def search(self, query: str, num_found: int) -> list[str]:
        """Return the passages that share words with a query, best first."""
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query)[:32])
        if not words:
            return []
        ask = "SELECT text FROM passages WHERE passages MATCH ? ORDER BY bm25(passages), rowid LIMIT ?"
        with self._lock:
            return [text for (text,) in self._database.execute(ask, (words, num_found))]


class Search(OwnEnvironment):
    """Answer questions about unknown towns with a search tool."""

    settings_type = SearchSettings
    system_prompt = "Search, then answer with a name or a number alone."
    resume = "replay"  # the index finds the same each time
    max_turns = 5
    num_eval = 32

    def __init__(self, settings: SearchSettings, seed: int) -> None:
        super().__init__(settings, seed)
        rows = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
        self._index = Index(rows)
        self._questions = [pair for row in rows for pair in row["questions"]]

    def problem(self, rng: random.Random, level: int) -> dict:
        """Return a question and its answer."""
        question, answer = rng.choice(self._questions)
        return {"question": question, "answer": answer}

    def tools(self, task, state, sandbox):
        """Offer the search."""

        def search(query: str) -> str:
            """Find passages by words."""
            found = self._index.search(query, self.settings.num_found)
            state["found"] = state.get("found", False) or any(
                str(task.payload["answer"]) in each for each in found
            )
            return "\n".join(found) or "Nothing found."

        return [search]

    def reward(self, task, outcome) -> Reward:
        """Reward the answer, and a little that it was on the screen."""
        wanted, answer = str(task.payload["answer"]), outcome["answer"].strip().rstrip(".")
        found = bool(outcome["state"].get("found"))
        right = answer.casefold() == wanted.casefold()
        metrics = {"found": float(found), "num_calls": float(outcome["num_calls"])}
        return Reward(
            0.9 * right + 0.1 * found, (f"{wanted} was expected, the answer was {answer[:40]!r}",), metrics
        )
