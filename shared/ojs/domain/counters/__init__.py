"""What is counted of queues, and the metrics made of it."""
