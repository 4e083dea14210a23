"""skillfit trains agent skills: the markdown that tells a frozen LLM agent how to do a kind of work."""

__version__ = "0.1.0"
