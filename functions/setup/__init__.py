"""A step of each deployment: check the table, leave the first key."""
