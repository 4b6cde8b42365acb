"""Storage of access keys, the audit log, maintenance mode, and the deployment record."""
