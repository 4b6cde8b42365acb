"""For tests of one's own jobs: `plugin` has the fixtures, `server` what they give.

It is no part of what a worker or a producer loads.
"""
