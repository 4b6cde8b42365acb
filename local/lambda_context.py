"""The context object that Lambda passes to a handler."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LambdaContext:
    """The part of Lambda's context object that the functions and Powertools use."""

    function_name: str
    aws_request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    memory_limit_in_mb: int = 512
    timeout_s: float = 30.0
    started_s: float = field(default_factory=time.monotonic)
    # Whether the server stops. Then no time remains, and waiting requests respond.
    stopping: Callable[[], bool] = lambda: False

    @property
    def invoked_function_arn(self) -> str:
        """ARN of the function."""
        return f"arn:aws:lambda:us-east-1:000000000000:function:{self.function_name}"

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until the timeout, 0 or more."""
        if self.stopping():
            return 0
        left_s = self.started_s + self.timeout_s - time.monotonic()
        return max(0, int(left_s * 1000))
