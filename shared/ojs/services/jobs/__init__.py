"""What callers do with jobs (enqueue, fetch, finish, cancel), and what time does with them."""
