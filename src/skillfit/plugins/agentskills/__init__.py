"""Files in the formats of agentskills.io."""
