"""Requests to a server: `operations` builds them, `exchange` retries them.

`Client` (blocking) and `AsyncClient` (asyncio) send them.
"""
