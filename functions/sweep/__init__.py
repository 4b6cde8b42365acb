"""The minute sweep."""
