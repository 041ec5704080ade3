"""`outlast check`: what training would refuse, found without training; and what it would do."""
