"""Bulk operations: the runner, the processing of one slice, and the actions on one job."""
