"""`sglang-sm120 selftest`."""
