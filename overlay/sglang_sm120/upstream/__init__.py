"""What the installed SGLang is: its source, its releases, its flags, its layers. Imports settings and leaves only."""
