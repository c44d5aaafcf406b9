"""Device code, and nothing else."""
