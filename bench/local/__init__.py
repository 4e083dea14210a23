"""Real small models on this machine, through `skillfit demo --model local/PATH.gguf`."""
