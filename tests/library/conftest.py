"""The fixtures that the library brings, as those who install it have them."""

from __future__ import annotations

from ojs_aws.testing.plugin import (
    ojs_server,
    ojs_server_path,
    ojs_server_processes,
    ojs_server_with_keys,
)

__all__ = ["ojs_server", "ojs_server_path", "ojs_server_processes", "ojs_server_with_keys"]
