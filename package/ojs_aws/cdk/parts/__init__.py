"""One construct, or one function, per capability."""
