"""Bulk operations: one runner, what one slice does, and acts on one job."""
