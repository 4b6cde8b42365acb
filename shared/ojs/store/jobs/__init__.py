"""Job records and what belongs to them: payloads, unique locks, places in a fair line."""
