"""What the sweep does with jobs that are due."""
