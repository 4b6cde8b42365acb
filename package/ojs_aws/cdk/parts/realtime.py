"""The WebSocket API of API Gateway: idle workers and subscribers connect to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import Aws, Fn, Stack
from aws_cdk import aws_apigatewayv2 as apigatewayv2
from aws_cdk.aws_apigatewayv2_authorizers import WebSocketLambdaAuthorizer
from aws_cdk.aws_apigatewayv2_integrations import WebSocketLambdaIntegration
from constructs import Construct

from ojs_aws.cdk.parts.acknowledgement import acknowledge
from ojs_aws.cdk.parts.domain import Domain, name_api

if TYPE_CHECKING:
    from aws_cdk import aws_lambda as lambda_

    from ojs_aws.cdk.settings import DeploymentSettings

STAGE = "ojs"
# Path of the WebSocket API behind a firewall, where it shares the domain name of the HTTP API.
PATH = "/ojs/v1/ws"
# Messages and connections per second that clients can send or open, and burst.
RATE_PER_S, BURST = 100, 200


class Realtime(Construct):
    """A WebSocket API whose connections require a ticket, which the HTTP API issues.

    `url` is the address for clients, `endpoint` the address of its management API, `connections`
    the resource of permissions to send messages, and `api_domain` the domain name of the API.
    `domain_target` is the target of the DNS record of its domain name.
    """

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        api_domain: Domain | None,
        domain: Domain | None,
        settings: DeploymentSettings,
    ) -> None:
        """Create the API without routes, which need its functions.

        Args:
            scope: Parent construct.
            name: ID of the construct.
            api_domain: Domain name of the HTTP API.
            domain: Domain name of the WebSocket API.
            settings: Settings of the deployment.
        """
        super().__init__(scope, name)
        self._settings, self._domain = settings, domain
        self.api = apigatewayv2.WebSocketApi(
            self,
            "Api",
            api_name=f"ojs-{settings.stage}-realtime",
            description="Open Job Spec WebSocket binding",
        )
        stack, api_id = Stack.of(self), self.api.api_id
        self.api_domain = f"{api_id}.execute-api.{stack.region}.{Aws.URL_SUFFIX}"
        self.endpoint = f"https://{self.api_domain}/{STAGE}"
        self.url = f"wss://{self.api_domain}/{STAGE}"
        self.connections = stack.format_arn(
            service="execute-api", resource=api_id, resource_name=f"{STAGE}/POST/@connections/*"
        )
        if domain is not None:
            self.url = f"wss://{domain.name}"
        elif settings.waf and api_domain is not None:
            self.url = f"wss://{api_domain.name}{PATH}"
        if settings.is_local:
            # The emulator serves it without TLS, and functions may not resolve its name.
            host = Fn.select(1, Fn.split("://", self.api.api_endpoint))
            port = Fn.select(1, Fn.split(":", host))
            self.url = f"ws://{host}/{STAGE}"
            self.endpoint = f"http://127.0.0.1:{port}/_aws/execute-api/{api_id}/{STAGE}"
        self.domain_target: str | None = None

    def route(self, socket: lambda_.IFunction, ticket: lambda_.IFunction) -> None:
        """Add the routes and the stage.

        Args:
            socket: Function that processes connections and messages.
            ticket: Authorizer of connections.
        """
        authorizer = WebSocketLambdaAuthorizer(
            "Tickets",
            ticket,
            authorizer_name=f"{self._settings.service}-tickets",
            # API Gateway rejects a connection without a ticket, and caches nothing.
            identity_source=["route.request.querystring.ticket"],
        )
        integration = WebSocketLambdaIntegration("Socket", socket)
        connect = self.api.add_route("$connect", integration=integration, authorizer=authorizer)
        unasked = [
            self.api.add_route("$disconnect", integration=integration),
            self.api.add_route(
                "$default",
                integration=integration,
                # The emulator returns responses without it, and doesn't know it.
                return_response=not self._settings.is_local,
            ),
        ]
        for route in unasked:
            acknowledge(
                route,
                "AwsSolutions-APIG4",
                "API Gateway authorizes a connection when it is opened, at $connect. Other routes "
                "can't have an authorizer.",
            )
        stage = apigatewayv2.WebSocketStage(
            self,
            "Stage",
            web_socket_api=self.api,
            stage_name=STAGE,
            auto_deploy=True,
            throttle=apigatewayv2.ThrottleSettings(rate_limit=RATE_PER_S, burst_limit=BURST),
        )
        # API Gateway deploys no stage of an API without routes.
        stage.node.add_dependency(connect, *unasked)
        acknowledge(
            stage,
            "AwsSolutions-APIG1",
            "Access logs of WebSocket APIs require a role for the whole account, which belongs to "
            "no single deployment. Metrics of the API count rejected connections. Functions log "
            "failed messages.",
        )
        if self._domain is not None:
            self.domain_target = name_api(self, self.api, stage, self._domain)
