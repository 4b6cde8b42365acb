"""Worker pools: their queues, dispatch order, workers, and statistics."""
