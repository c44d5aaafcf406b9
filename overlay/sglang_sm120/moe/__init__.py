"""One MoE layer: which runner it gets and why, then the method that loads and runs it."""
