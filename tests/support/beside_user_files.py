"""What a user's file imports from its side."""

STEPS = {"n": 0}
