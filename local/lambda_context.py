"""What Lambda hands to a handler beside the event."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LambdaContext:
    """As much of Lambda's context object as the functions and Powertools look at."""

    function_name: str
    aws_request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    memory_limit_in_mb: int = 512
    timeout_s: float = 30.0
    started_s: float = field(default_factory=time.monotonic)
    # Whether the server ends: then there is no time left, and what waits answers.
    stopping: Callable[[], bool] = lambda: False

    @property
    def invoked_function_arn(self) -> str:
        """The ARN the function would have."""
        return f"arn:aws:lambda:us-east-1:000000000000:function:{self.function_name}"

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the function would be stopped; never negative."""
        if self.stopping():
            return 0
        left_s = self.started_s + self.timeout_s - time.monotonic()
        return max(0, int(left_s * 1000))
