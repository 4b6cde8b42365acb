"""One construct, or one function, for each capability."""
