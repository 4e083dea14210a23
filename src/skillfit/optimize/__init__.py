"""How a skill learns: reflect, aggregate, select, update, and what looks back over an epoch."""
