"""Serve skillfit to agents over the Model Context Protocol."""
