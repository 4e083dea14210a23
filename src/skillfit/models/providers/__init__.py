"""Providers: each turns a request into one attempt. Retries, limits and budgets are around them, in
the client.
"""
