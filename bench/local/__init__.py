"""Measurements with a real small model on this machine."""
