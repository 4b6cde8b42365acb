"""One construct per capability."""
