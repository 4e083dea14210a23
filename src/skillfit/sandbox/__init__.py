"""Run untrusted code and programs: isolation, limits, and processes that end with the run."""
