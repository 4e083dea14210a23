"""skillfit for agents, over the Model Context Protocol."""

from skillfit.mcp.server import serve

__all__ = ["serve"]
