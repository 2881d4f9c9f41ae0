"""An MCP server over standard input and output, as little of it as tests need: it starts at once."""

import json
import os
import sys

STRING = {"type": "string"}
TOOLS = [
    {
        "name": "look",
        "description": "Look at a place.",
        "inputSchema": {"type": "object", "properties": {"place": STRING}, "required": ["place"]},
        "annotations": {"readOnlyHint": True},
    },
    {"name": "put", "description": "Put a thing down.", "inputSchema": {"type": "object"}},
]
calls = []


def called(name, arguments):
    thing = arguments.get("thing", arguments.get("place"))
    if thing is None:
        return None
    if thing == "crash":
        os._exit(3)
    if thing == "fire":
        return {"content": [{"type": "text", "text": "no fire here"}], "isError": True}
    calls.append(thing)
    text = f"{thing}: call {len(calls)} with {os.environ.get('SHELF_KEY', 'no key')}"
    image = {"type": "image", "data": "", "mimeType": "image/png"}
    return {"content": [{"type": "text", "text": text}] + [image] * (name == "put")}


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "shelf", "version": "1"},
        }
    if method == "tools/list":  # one a page
        at = int(params.get("cursor", 0))
        return {"tools": TOOLS[at : at + 1]} | ({"nextCursor": "1"} if at == 0 else {})
    return called(params["name"], params.get("arguments", {}))


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request["method"], request.get("params") or {})
        error = {"code": -32602, "message": "a thing is needed"}
        told = {"result": result} if result is not None else {"error": error}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"]} | told), flush=True)
