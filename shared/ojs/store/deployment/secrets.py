"""Secrets of a deployment in AWS Secrets Manager.

They are the bootstrap key, for principals of the AWS account that can read it, and the secret
header that a distribution in front of the API sends.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from ojs.domain.errors import BackendUnavailable

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient


class Secret:
    """A `SecretStore` in AWS Secrets Manager, which the deployment creates without a value."""

    def __init__(self, client: SecretsManagerClient, arn: str) -> None:
        self._client = client
        self._arn = arn

    def read(self) -> str | None:
        try:
            answer = self._client.get_secret_value(SecretId=self._arn)
        except self._client.exceptions.ResourceNotFoundException:
            return None
        return answer.get("SecretString") or None

    def write_once(self, text: str, token: str) -> str:
        # Race: the same deployment step runs twice. Secrets Manager accepts one value for a token.
        # The loser continues with that value.
        try:
            self._client.put_secret_value(
                SecretId=self._arn, SecretString=text, ClientRequestToken=token
            )
        except self._client.exceptions.ResourceExistsException:
            return self.read() or text
        return text

    def values(self) -> list[str]:
        """Return the value of the secret, and its value before the last rotation. Makes two calls.

        Raises:
            BackendUnavailable: The secret can't be read.
        """
        read = self._client.get_secret_value
        try:
            found = [read(SecretId=self._arn)["SecretString"]]
            with suppress(self._client.exceptions.ResourceNotFoundException):
                found.append(read(SecretId=self._arn, VersionStage="AWSPREVIOUS")["SecretString"])
        except (BotoCoreError, ClientError, KeyError) as error:
            raise BackendUnavailable("A secret of this deployment can't be read.") from error
        return found
