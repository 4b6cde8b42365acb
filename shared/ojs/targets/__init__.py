"""Targets of push delivery: Lambda functions, HTTPS endpoints, and SQS queues."""
