"""The store of bulk operations."""
