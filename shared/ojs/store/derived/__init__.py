"""Storage of data derived from the DynamoDB stream: counters, the event log, and dedup records."""
