"""`sglang-sm120 report`."""
