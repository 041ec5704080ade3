"""Tables and figures, made from JSON files alone: no torch here, no checkpoint is opened."""
