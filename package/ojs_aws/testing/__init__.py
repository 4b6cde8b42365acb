"""Test support: `plugin` has the pytest fixtures, `server` has the classes they return.

Workers and producers don't import it.
"""
