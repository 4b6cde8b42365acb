"""What is kept about dead letters beside their records."""
