"""Storage of bulk operations."""
