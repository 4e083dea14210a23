"""Does a skill fire? Measure and train its description: `skillfit trigger`."""
