"""One file a vendor. Each turns a request into one attempt over its own SDK; nothing here retries, limits or counts money."""
