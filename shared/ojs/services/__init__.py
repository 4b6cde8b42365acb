"""Use cases: one module per kind of request. They call the store and the domain."""
