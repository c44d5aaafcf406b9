"""A checkpoint's files on disk, read by header alone. Imports nothing else of the overlay."""
