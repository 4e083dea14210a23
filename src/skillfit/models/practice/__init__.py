"""The practice pair: a small rule-following agent and a practice optimizer, served over HTTP on
loopback.

They are no language models and say so. They are for learning skillfit, for trying a config in CI,
and for tests: everything around them (HTTP, journal, gate, report) is real, and what the agent does
really depends on the skill it is given.
"""
