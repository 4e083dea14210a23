"""The built-in benchmarks: `env: {tasks: searchqa}` runs one.

`NAME.py` makes items of rows and says how they are run and graded. The folder `NAME/` beside it
holds `NAME.yaml` (config values), `NAME.md` (the skill that training starts from) and `sample/` (a
few items in the benchmark's own format). docs/benchmarks.md says how to add one.
"""
