"""A step of each deployment: checks the table and creates the bootstrap key."""
