"""The secret that the first key is left in, for whoever may read it in the account."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient


class Secret:
    """One secret of AWS Secrets Manager, which the deployment makes without a value."""

    def __init__(self, client: SecretsManagerClient, arn: str) -> None:
        self._client = client
        self._arn = arn

    def read(self) -> str | None:
        """Its value; None as long as it has none."""
        try:
            answer = self._client.get_secret_value(SecretId=self._arn)
        except self._client.exceptions.ResourceNotFoundException:
            return None
        return answer.get("SecretString") or None

    def write_once(self, text: str, token: str) -> str:
        """Give it a value, unless it was given one under this token before; what it is now."""
        # Race: the same deployment step twice at once. Secrets Manager takes one value for a token;
        # the loser goes on with the winner's.
        try:
            self._client.put_secret_value(
                SecretId=self._arn, SecretString=text, ClientRequestToken=token
            )
        except self._client.exceptions.ResourceExistsException:
            return self.read() or text
        return text
