"""Workers: fetch, finish, heartbeat, registration."""
