"""What follows from the stream: counters, the event log, and the dedup records of both."""
