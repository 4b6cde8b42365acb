"""Jobs from an SQS queue."""
