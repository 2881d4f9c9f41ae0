"""A real MCP server over streamable HTTP: `python mcp_server.py PORT`."""

import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("shelf")


@server.tool()
def look(place: str) -> str:
    """Look at a place."""
    return f"{place}: nothing"


if __name__ == "__main__":
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
