"""An MCP server for tests: `python mcp_server.py stdio`, or `http PORT`."""

import os
import sys

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("shelf")
calls = []


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def look(place: str) -> str:
    """Look at a place."""
    calls.append(place)
    return f"{place}: call {len(calls)} with {os.environ.get('SHELF_KEY', 'no key')}"


@server.tool()
def put(thing: str) -> str:
    """Put a thing down."""
    if thing == "fire":
        raise ValueError("no fire here")
    if thing == "crash":
        os._exit(3)
    calls.append(thing)
    return f"{len(calls)} things"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
