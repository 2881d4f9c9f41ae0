"""A stand-in for a language model that judges: an OpenAI-compatible endpoint that grades sums by a rule.

It reads the question and the answer out of the prompt, as a model would, and grades how near the answer is;
of two answers it prefers the nearer one. For a real model put its address into judge.toml instead. Standard
library only:

    python examples/judge/server.py --port 8011
"""

import argparse
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def grade(prompt: str) -> tuple[float, str]:
    """Return (score from 0 to 10, reason) for what a prompt shows."""
    wanted = sum(map(int, re.findall(r"\d+", between(prompt, "question"))))
    if "<first>" in prompt:
        first, second = (distance(between(prompt, name), wanted) for name in ("first", "second"))
        return 5.0 + 5.0 * ((first < second) - (first > second)), f"they are {first} and {second} away"
    away = distance(between(prompt, "answer"), wanted)
    return max(0.0, 10.0 - away), f"it is {away} away from {wanted}"


def between(prompt: str, name: str) -> str:
    """Return the text between two marks."""
    found = re.search(rf"<{name}>\n(.*)\n</{name}>", prompt, re.DOTALL)
    return found[1].strip() if found else ""


def distance(answer: str, wanted: int) -> int:
    """Return how far an answer is from the sum; 100 for one that is no number."""
    return min(100, abs(int(answer) - wanted)) if re.fullmatch(r"\d{1,9}", answer) else 100


class Handler(BaseHTTPRequestHandler):
    """Answers chat completions."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Grade the last message."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        score, reason = grade(asked["messages"][-1]["content"])
        said = json.dumps({"reason": reason, "score": score})
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = json.dumps({"model": "rule-1", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of single requests."""


def main() -> None:
    """Serve until it is ended."""
    parser = argparse.ArgumentParser(description="A stand-in for a language model that judges.")
    parser.add_argument("--port", type=int, default=8011, help="0 for any that is free")
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
