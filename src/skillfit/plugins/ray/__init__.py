"""Run rollouts on the machines of a Ray cluster."""
