"""Resources that an app declares: queues, pools, cron jobs, and limits. Others are unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from aws_cdk import CustomResource, Duration, Stack
from constructs import Construct

from ojs_aws.cdk.functions import CUSTOM_RESOURCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aws_cdk import CfnResource
    from aws_cdk import aws_lambda as lambda_
    from aws_cdk import aws_secretsmanager as secretsmanager

QUEUE = "queue"


class Declared(Construct):
    """One custom resource per declared resource, and the function that applies them."""

    def __init__(
        self, scope: Construct, name: str, *, function: lambda_.Function, caller: str
    ) -> None:
        """`caller` is the name of the app in logs and as the producer of jobs."""
        super().__init__(scope, name)
        self.function = function
        self._caller = caller
        self._kinds: dict[str, Construct] = {}
        self._roles: dict[str, tuple[CfnResource, set[str]]] = {}

    def put(
        self,
        kind: str,
        name: str,
        path: str,
        fields: Mapping[str, object],
        more: Mapping[str, object] | None = None,
        *,
        method: str = "PUT",
        secrets: Mapping[str, secretsmanager.ISecret] | None = None,
        removed_with: bool = False,
        after: Sequence[Construct] = (),
    ) -> None:
        """Declare a resource that a request with these fields creates. None omits a field.

        `path` has `{}` for the name. With the method POST the request has no name in its path.
        `secrets` are fields whose values no template may contain. With `removed_with`, removing the
        declaration deletes the resource. The request runs after the resources in `after`.
        """
        given = {field: value for field, value in fields.items() if value is not None}
        if twice := sorted(set(given) & set(more or {})):
            raise ValueError(
                f"{kind}({name}): {', '.join(twice)} is set as an argument and in config. Remove "
                "one"
            )
        item = path.format(quote(name, safe=""))
        made = item if method == "PUT" else path.removesuffix("/{}")
        resource = CustomResource(
            self._of(kind),
            name,
            resource_type="Custom::OjsDeclared",
            service_token=self.function.function_arn,
            service_timeout=Duration.seconds(CUSTOM_RESOURCE_S),
            properties={
                "Name": f"{kind} {name}",
                "Caller": self._caller,
                "Set": {
                    "Method": method,
                    "Path": made,
                    # A string, because CloudFormation converts numbers to strings.
                    "Body": json.dumps({**given, **(more or {})}, sort_keys=True),
                    **({"Secrets": self._readable(secrets)} if secrets else {}),
                },
                **({"TakeBack": {"Method": "DELETE", "Path": item}} if removed_with else {}),
            },
        )
        resource.node.add_dependency(self.function, *after)
        if kind != QUEUE:
            # After all queues, including later declared ones, because cron jobs and pools refer to
            # them.
            resource.node.add_dependency(self._of(QUEUE))

    def _readable(self, secrets: Mapping[str, secretsmanager.ISecret]) -> dict[str, str]:
        for secret in secrets.values():
            secret.grant_read(self.function)
        return {field: secret.secret_arn for field, secret in secrets.items()}

    def role(self, name: str, arn: str, *, scopes: Sequence[str], queues: Sequence[str]) -> None:
        """Declare scopes and queues of a role. A second declaration of the name adds its scopes.

        Removing the declaration revokes them. The record of a role never changes. A change creates
        a new record.
        """
        if name not in self._roles:
            resource = CustomResource(
                self._of("role"),
                name,
                resource_type="Custom::OjsDeclaredRole",
                service_token=self.function.function_arn,
                service_timeout=Duration.seconds(CUSTOM_RESOURCE_S),
                properties={"Name": f"role {name}", "Caller": self._caller},
            )
            resource.node.add_dependency(self.function)
            self._roles[name] = cast("CfnResource", resource.node.default_child), set()
        made, granted = self._roles[name]
        granted.update(scopes)
        body = {"role": arn, "name": name, "scopes": sorted(granted), "queues": list(queues)}
        made.add_property_override("Role", Stack.of(self).to_json_string(body))

    def _of(self, kind: str) -> Construct:
        if kind not in self._kinds:
            self._kinds[kind] = Construct(self, kind)
        return self._kinds[kind]
