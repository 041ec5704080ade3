"""The loop, and everything that lets it go on after a kill."""
