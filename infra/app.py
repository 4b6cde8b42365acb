"""The CDK app. `cdk deploy --all` runs it: `python -m infra.app`."""

from __future__ import annotations

from aws_cdk import App, AssetHashType, Tags
from aws_cdk import aws_lambda as lambda_

from infra import bundling
from infra.settings import DeploymentSettings
from infra.stacks import DataStack, ServiceStack


def compose(app: App, settings: DeploymentSettings, code: lambda_.Code) -> None:
    """Add the stacks of one deployment to `app`; all functions run `code`."""
    data = DataStack(app, f"ojs-{settings.stage}-data", settings=settings)
    ServiceStack(
        app, f"ojs-{settings.stage}-service", storage=data.storage, code=code, settings=settings
    )
    Tags.of(app).add("service", "ojs")
    Tags.of(app).add("stage", settings.stage)


def main() -> None:
    """Bundle the functions and write the cloud assembly."""
    app = App()
    settings = DeploymentSettings.from_context(app.node.try_get_context)
    bundle = bundling.build(settings)
    code = lambda_.Code.from_asset(
        str(bundle.path),
        # Of what went in, not of what came out: bytecode need not be the same byte for byte.
        asset_hash=bundle.content_hash,
        asset_hash_type=AssetHashType.CUSTOM,
    )
    compose(app, settings, code)
    app.synth()


if __name__ == "__main__":
    main()
