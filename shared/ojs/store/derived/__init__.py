"""Data derived from the stream: counters, the event log, and their dedup records."""
