"""Storage of workflows."""
