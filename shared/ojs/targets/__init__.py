"""What pushes go out by: Lambda's Invoke operation, HTTPS, and queues of SQS."""
