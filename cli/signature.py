"""Requests signed with AWS credentials, as a deployment with authorizer=iam asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest

if TYPE_CHECKING:
    from botocore.credentials import Credentials

_OF_API = re.compile(r"[a-z0-9]+\.execute-api\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?")


class Signature:
    """Signs requests with the AWS credentials of the command's user (Signature Version 4)."""

    def __init__(self, credentials: Credentials, region: str | None) -> None:
        self._credentials = credentials
        self._region = region

    @classmethod
    def own(cls) -> Signature:
        """That of the credentials that the SDK finds. Raises LookupError if there are none."""
        session = boto3.Session()
        credentials = session.get_credentials()
        if credentials is None:
            raise LookupError("no AWS credentials were found to sign requests with")
        return cls(credentials, session.region_name)

    def headers(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> dict[str, str]:
        """The headers of a request, with those of the signature. Raises LookupError when neither
        the URL nor the environment says the region.
        """
        found = _OF_API.fullmatch(urlsplit(url).hostname or "")
        region = found[1] if found else self._region
        if region is None:
            raise LookupError("the region of the API is not known: set AWS_DEFAULT_REGION")
        request = AWSRequest(method, url, headers=dict(headers), data=body or b"")
        SigV4Auth(self._credentials, "execute-api", region).add_auth(request)
        return dict(request.headers.items())
