"""One file a vendor. Each turns a request into one attempt over HTTP; nothing here retries, limits
or counts money.
"""
