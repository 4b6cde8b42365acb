"""Worker pools: which queues they serve in which order, their workers and statistics."""
