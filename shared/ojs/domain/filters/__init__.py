"""What requests ask for of jobs: each field is a row."""
