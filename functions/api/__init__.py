"""The whole API in one function."""
