"""What a trained network is worth on rows that it has not been trained on."""
