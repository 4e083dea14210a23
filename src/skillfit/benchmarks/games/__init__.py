"""Text games played by a model: one process per game, and the loop that plays it."""
