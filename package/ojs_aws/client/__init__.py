"""Requests to a server: what is asked (`operations`), how it is asked again (`exchange`), and two
clients, one that blocks and one for coroutines, which add nothing but the waiting.
"""
