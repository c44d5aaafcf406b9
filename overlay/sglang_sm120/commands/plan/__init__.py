"""`sglang-sm120 plan`."""
