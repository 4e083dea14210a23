"""Optional parts: Inspect tasks, the Ray executor, the MCP server, trackers. Nothing else imports
them eagerly.
"""
