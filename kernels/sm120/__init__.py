"""Triton kernels for SM120 and SM121. Importing this package pulls in nothing; import its modules for the kernels."""

KERNELS = ("fp4_moe",)
