"""Endpoints of the API. Each has `url`, metrics (`requests`), and `grant` for roles."""

from __future__ import annotations

from ojs_aws.cdk.parts.api import Api
from ojs_aws.cdk.parts.function_url import FunctionUrl
from ojs_aws.cdk.parts.private_api import PrivateApi

Entry = Api | FunctionUrl | PrivateApi
