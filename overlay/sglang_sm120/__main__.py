"""`python -m sglang_sm120`: the command `sglang-sm120`, where its script is not on PATH."""

import sys

from sglang_sm120 import cli

sys.exit(cli.main())
