"""Requests on jobs (enqueue, fetch, finish, cancel), and time transitions of jobs."""
