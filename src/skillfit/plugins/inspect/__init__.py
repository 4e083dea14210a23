"""Tasks of Inspect AI as items: their datasets, solvers and scorers."""
