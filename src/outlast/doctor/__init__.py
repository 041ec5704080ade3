"""`outlast doctor`: on the login node, before the night, what the night would be lost to."""
