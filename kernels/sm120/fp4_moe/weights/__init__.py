"""Formats of the experts' weights, their place in memory, and the repack in place."""
