"""Optional parts: Inspect tasks, the Ray executor, the MCP server. Nothing else imports them
eagerly.
"""
