"""Jobs: enqueue, read, cancel, activate, finish, progress."""
