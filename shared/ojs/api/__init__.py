"""The operations: one module for each resource."""
