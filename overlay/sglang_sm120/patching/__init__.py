"""How SGLang is changed: records, replacement, import actions, and whether the change still holds."""
