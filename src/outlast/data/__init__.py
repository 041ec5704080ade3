"""From what a user has to batches: readers, splits, arrays on disk, order and transfer."""
