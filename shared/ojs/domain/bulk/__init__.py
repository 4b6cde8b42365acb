"""Bulk operations: their jobs, their action, and their progress."""
