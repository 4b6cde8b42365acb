"""Storage of schemas of job arguments."""
