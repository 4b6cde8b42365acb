"""The CDK app. `cdk deploy --all` runs it: `python -m infra.app`."""

from __future__ import annotations

import os
import sys

from aws_cdk import App, Environment, Tags
from aws_cdk import aws_lambda as lambda_

from infra.context import from_context
from infra.stacks import DataStack, EdgeStack, ServiceStack
from ojs_aws.cdk import bundling
from ojs_aws.cdk.settings import DeploymentSettings


def compose(
    app: App,
    settings: DeploymentSettings,
    code: lambda_.Code,
    environment: Environment | None = None,
) -> None:
    """Add the stacks of one deployment to `app`. All functions use `code`.

    Only a firewall requires `environment`, because it is in another region.
    """
    env = environment if settings.waf else None
    data = DataStack(app, settings, env)
    service = ServiceStack(app, data.storage, code, settings, env)
    if settings.waf:
        EdgeStack(app, service, settings)
    Tags.of(app).add("service", "ojs")
    Tags.of(app).add("stage", settings.stage)


def main() -> int:
    """Bundle the functions and write the cloud assembly. Returns the exit status."""
    app = App()
    try:
        settings = from_context(app.node.get_all_context())
    except ValueError as error:
        # An error in the settings or on this machine: a traceback would hide the message.
        print(f"error: settings: {error}", file=sys.stderr)
        return 1
    code = bundling.code(settings)
    # The CDK command line determines them from the credentials.
    account, region = (os.environ.get(f"CDK_DEFAULT_{each}") for each in ("ACCOUNT", "REGION"))
    compose(app, settings, code, Environment(account=account, region=region))
    app.synth()
    return 0


if __name__ == "__main__":
    sys.exit(main())
