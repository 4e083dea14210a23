"""The optimizer: reflect, aggregate, select, update, and the updates at the end of an epoch."""
