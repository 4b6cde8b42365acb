"""Bulk operations: what they are for, and how far they are."""
