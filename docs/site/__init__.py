"""The documentation site: what it is built from, and its generated pages."""
