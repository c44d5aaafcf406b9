"""The process behind `tune`: one MoE layer on one runner, built by SGLang, checked and timed."""
