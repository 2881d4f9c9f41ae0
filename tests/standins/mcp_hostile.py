"""An MCP server over standard input and output that misbehaves in one way: `python mcp_hostile.py WAY`."""

import json
import os
import sys
import time

WAY = sys.argv[1]
KEY = os.environ.get("SHELF_KEY", "no key")
OBJECT = {"type": "object"}


def tools(params):
    if WAY == "many":
        return {"tools": [{"name": f"t{at}", "inputSchema": OBJECT} for at in range(5000)]}
    if WAY == "pages":  # without end
        return {"tools": [], "nextCursor": "again"}
    if WAY == "twice":
        return {"tools": [{"name": "look", "inputSchema": OBJECT}] * 2}
    if WAY == "tells":
        described = {"type": "object", "properties": {"a": {"type": "string", "description": f"not {KEY}"}}}
        return {"tools": [{"name": "look", "description": f"With {KEY}.", "inputSchema": described}]}
    if WAY == "schema":
        return {"tools": [{"name": "look", "inputSchema": "any"}]}
    if WAY == "tools-error":
        return None
    return {"tools": [{"name": "look", "inputSchema": OBJECT}]}


def called(params):
    text = "fine"
    if WAY == "huge":
        text = "x" * (64 << 20)
    if WAY == "escaped":
        text = json.dumps({"key": KEY, "half": "\ud800"})
    if WAY == "half":
        text = "half \ud800"
    if WAY == "dies":
        os._exit(0)
    if WAY == "silent":
        time.sleep(600)
    if WAY == "content":
        return {"content": 5}
    return {"content": [{"type": "text", "text": text}]}


def told(request, **what):
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"]} | what), flush=True)


if WAY == "hangs":
    time.sleep(600)
if WAY == "garbage-first":
    print("Starting shelf v1 ...\n\x00\xff{[", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    params = request.get("params") or {}
    match request["method"]:
        case "initialize":
            if WAY == "version":
                told(request, result={"protocolVersion": "1066-10-14", "capabilities": {}})
                continue
            known = {"capabilities": {"tools": {}}, "serverInfo": {"name": "shelf", "version": "1"}}
            told(request, result={"protocolVersion": params["protocolVersion"]} | known)
        case "tools/list":
            found = tools(params)
            if found is None:
                told(request, error={"code": -32603, "message": f"no tools for {KEY}"})
            else:
                told(request, result=found)
        case _:
            if WAY == "garbage":
                print("{ this is no JSON", flush=True)
            if WAY == "ids":
                told({"id": 4711}, result={"content": [{"type": "text", "text": "of another call"}]})
                told({"id": None}, error={"code": 1, "message": "nobody"})
            if WAY == "error":
                told(request, error={"code": -32603, "message": f"bad key {KEY}"})
            elif WAY == "no-result":
                told(request)
            else:
                told(request, result=called(params))
