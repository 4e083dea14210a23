"""Send the events of a run to an experiment tracker or a file."""
