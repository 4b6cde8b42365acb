"""Job records and related items: payloads, unique locks, positions in a fair queue."""
