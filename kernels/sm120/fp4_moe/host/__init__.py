"""Decided before a launch: tiles, regimes, the program of kernels. No device code."""
