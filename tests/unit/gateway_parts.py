"""Parts for tests of the gateway: a client of the standard library, and scripts of answers."""

import asyncio
import json
import urllib.error
import urllib.request

from tests.unit.rollout_parts import ScriptedEngine


def sent(endpoint, path, body=None, *, key=None, method=None, timeout=20):
    """Send one request from this thread; return status, headers and body."""
    base = endpoint.base_url.removesuffix("/v1")
    headers = {"Authorization": f"Bearer {endpoint.key if key is None else key}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


async def asked(endpoint, path, body=None, **options):
    """Do the same while the loop serves; return status and JSON."""
    status, _, data = await asyncio.to_thread(sent, endpoint, path, body, **options)
    return status, json.loads(data)


async def chat(endpoint, *messages, **fields):
    """Ask for a chat completion; messages are (role, content) or whole ones."""
    told = [m if isinstance(m, dict) else {"role": m[0], "content": m[1]} for m in messages]
    return await asked(endpoint, "/v1/chat/completions", {"model": "m", "messages": told} | fields)


def saying(renderer, *texts, close="<|im_end|>", **options):
    """An engine whose answers are these texts, in the order in which they are asked for."""
    said = {}

    def script(request):
        first = request.request_id.partition(".p")[0]
        at = said.setdefault(first, len(said))
        return renderer.encode(texts[min(at, len(texts) - 1)] + close)

    return ScriptedEngine(script, decode=renderer.decode, **options)
