"""The store of the bounds of queues."""
