"""`sglang-sm120 bench`."""
