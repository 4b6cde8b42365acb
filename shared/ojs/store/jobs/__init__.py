"""Job records and what belongs to them: payloads, unique locks, positions in a fair line."""
