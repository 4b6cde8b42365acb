"""Lambda function that posts events to the endpoints of webhooks."""
