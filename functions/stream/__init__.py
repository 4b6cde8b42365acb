"""What follows from the table's stream."""
