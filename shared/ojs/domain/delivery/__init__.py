"""Deliveries: where jobs of some queues are pushed."""
