"""The HTTP binding: routing, negotiation, headers, error bodies, paging."""
