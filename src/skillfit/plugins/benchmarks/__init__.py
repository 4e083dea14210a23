"""The built-in benchmarks: `env: {tasks: searchqa}` runs one.

A function of the same name makes items of rows and says how they are run and graded;
`skillfit.extensions.BENCHMARKS` lists these functions with their modules. The folder `NAME/` holds
`NAME.yaml` (config values), `NAME.md` (the skill that training starts from) and `sample/` (a few
items in the benchmark's own format). docs/benchmarks.md says how to add one.
"""
