"""An agent: it reads its task, asks the model, and writes the answer to a file.

It knows nothing of Headway. Any program that speaks the OpenAI API can stand in its place, in any language.
"""

import json
import os
import sys
import urllib.request


def ask(messages: list[dict[str, str]]) -> str:
    """Return the model's answer to a conversation."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as task:
        question = task.read()
    with open("answer.txt", "w", encoding="utf-8") as file:
        file.write(ask([{"role": "user", "content": question}]))
