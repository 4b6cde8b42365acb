"""Targets of push delivery: Lambda's Invoke operation, HTTPS, and SQS queues."""
