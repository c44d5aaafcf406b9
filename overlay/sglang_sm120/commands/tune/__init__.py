"""`sglang-sm120 tune`."""
