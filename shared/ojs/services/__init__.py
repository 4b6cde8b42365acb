"""Use cases: one module per thing a caller may ask for. They call the store and the domain."""
