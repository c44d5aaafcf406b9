"""A plugin of the end-to-end runs: the target's native MXFP4 experts run on `sm120_triton`.

Users ask for that with `--moe-runner-backend sm120_triton`. SGLang before 0.5.19 takes built-in names only, and the
machine of these runs has such a release; so this answers for the flag where the overlay reads it, and nowhere else.
"""

from __future__ import annotations


def register() -> None:
    """Called by SGLang in each of its processes."""
    from sglang_sm120.settings import RUNNER
    from sglang_sm120.upstream import server_flags

    draft = server_flags.layer_runner
    server_flags.layer_runner = lambda prefix: draft(prefix) if server_flags.is_draft_prefix(prefix) else RUNNER
