"""The built-in benchmarks, one small folder each: `env: {tasks: searchqa}` runs one.

A folder `NAME/` holds `NAME.py` (rows to items, and how they are run and graded), `NAME.yaml`
(config values), `NAME.md` (the skill that training starts from) and `sample/` (a few items in the
benchmark's own format). docs/benchmarks.md says how to add one.
"""
