"""SGLang overlay that serves DeepSeek-V4 with speculative decoding on SM120 and SM121 GPUs.

Importing this package costs nothing: it pulls neither torch nor sglang, and it patches nothing. SGLang calls
`sglang_sm120.plugin.register` through its plugin entry point.
"""

__version__ = "0.1.0"
