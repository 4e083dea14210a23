"""Compare ways to get a skill at equal rollouts: `skillfit compare`."""
