"""Storage of data about dead letters that is not part of their job records."""
