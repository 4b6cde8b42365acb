"""Access keys, and the record of the latest deployment."""
