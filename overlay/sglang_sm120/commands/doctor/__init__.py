"""`sglang-sm120 doctor`."""
