"""Storage of the depth counters of queues with a size limit."""
