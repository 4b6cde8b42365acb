"""Storage of queues, worker pools, and workers."""
