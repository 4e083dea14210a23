"""The practice models: an agent and an optimizer made of rules, behind an HTTP server on loopback.

They are not language models. They are for learning skillfit, for trying a config in CI, and for
tests. Everything around them (HTTP, journal, gate, report) is real, and the agent's answers depend
on the skill.
"""
