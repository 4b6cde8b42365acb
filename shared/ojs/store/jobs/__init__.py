"""Storage of job records and related items: payloads, unique locks, fairness tags."""
