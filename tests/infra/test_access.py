"""Who is let in: there is no route without an authorizer, and nothing that gives a key away."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ojs.api import operations as contract
from ojs.http.binding import negotiation
from ojs.store.table.schema import SCHEMA_VERSION
from ojs_aws.cdk import server
from ojs_aws.cdk.functions import FUNCTIONS, Access
from ojs_aws.cdk.settings import DeploymentSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUTE = "AWS::ApiGatewayV2::Route"
AUTHORIZER = "AWS::ApiGatewayV2::Authorizer"
SETUP = "Custom::OjsSetup"
TYPES = {"keys": "CUSTOM", "jwt": "JWT", "iam": "AWS_IAM"}


def routes(made: Any) -> dict[str, dict[str, Any]]:
    return {route["RouteKey"]: route for route in made.resources(ROUTE).values()}


def functions(made: Any) -> dict[str, dict[str, Any]]:
    """By name; those of CDK's own have none of ours."""
    return {
        function["Handler"].split(".")[1]: function
        for function in made.resources("AWS::Lambda::Function").values()
        if function["Handler"].startswith("functions.")
    }


def test_every_setting_is_tried_here() -> None:
    schema = DeploymentSettings.model_json_schema()["properties"]["authorizer"]
    assert set(schema["enum"]) == set(TYPES)
    assert "none" not in schema["enum"]


@pytest.mark.parametrize(
    ("made", "kind"),
    [("synthesis", "keys"), ("with_jwt", "jwt"), ("with_iam", "iam"), ("with_waf", "keys")],
)
def test_no_route_lacks_the_authorizer(
    request: pytest.FixtureRequest, made: str, kind: str
) -> None:
    deployment = request.getfixturevalue(made)
    found = routes(deployment)
    named = set(deployment.resources(AUTHORIZER))
    assert len(named) == (0 if kind == "iam" else 1)
    expected = {
        "$default" if path == "$default" else f"ANY {path}": spec
        for spec in FUNCTIONS
        for path in spec.routes
    }
    # A browser's preflight has no key; there is one where a browser may come from elsewhere.
    preflight = {key for key in found if key.startswith("OPTIONS ")}
    assert set(found) - preflight == set(expected)
    assert bool(preflight) is (made != "synthesis")
    for key, spec in expected.items():
        if spec.open:
            # Files that are the same for everybody, of a function that reaches no data.
            assert found[key]["AuthorizationType"] == "NONE"
            known = Access(origin=spec.access.origin)
            assert (spec.name, spec.access) == ("dashboard", known)
            continue
        assert found[key]["AuthorizationType"] == TYPES[kind]
        if kind != "iam":
            assert found[key]["AuthorizerId"]["Ref"] in named
    for key in preflight:
        assert found[key]["AuthorizationType"] == "NONE"


@pytest.mark.parametrize("made", ["synthesis", "with_jwt", "with_iam", "with_waf"])
def test_each_route_without_a_key_has_a_throttle_of_its_own(
    request: pytest.FixtureRequest, made: str
) -> None:
    synthesis = request.getfixturevalue(made)
    found = routes(synthesis)
    unasked = {key for key, each in found.items() if each["AuthorizationType"] == "NONE"}
    assert {"ANY /ojs/admin", "ANY /ojs/admin/{proxy+}"} <= unasked
    stages = synthesis.service.find_resources("AWS::ApiGatewayV2::Stage")
    (stage,) = (stages[name] for name in synthesis.resources("AWS::ApiGatewayV2::Stage"))
    limits = {"ThrottlingRateLimit": 50, "ThrottlingBurstLimit": 100}
    assert stage["Properties"]["RouteSettings"] == dict.fromkeys(unasked, limits)
    # API Gateway refuses settings of a route that is not there yet.
    named = synthesis.service.find_resources(ROUTE).items()
    there = {name for name, each in named if each["Properties"]["RouteKey"] in unasked}
    assert there <= set(stage["DependsOn"])


def test_a_route_for_each_path_answers_preflights(synthesis: Any, with_iam: Any) -> None:
    assert not [key for key in routes(synthesis) if key.startswith("OPTIONS ")]
    assert {key for key in routes(with_iam) if key.startswith("OPTIONS ")} == {
        "OPTIONS /ojs/v1/jobs",
        "OPTIONS /ojs/v1/jobs/{proxy+}",
        "OPTIONS /ojs/v1/workers",
        "OPTIONS /ojs/v1/workers/{proxy+}",
        "OPTIONS /{proxy+}",
    }


def test_keys_are_looked_up_by_the_function(
    synthesis: Any, synthesise: Callable[[DeploymentSettings], Any]
) -> None:
    authorizer = synthesis.one(AUTHORIZER)
    assert authorizer["AuthorizerType"] == "REQUEST"
    assert authorizer["AuthorizerPayloadFormatVersion"] == "2.0"
    assert authorizer["EnableSimpleResponses"] is True
    assert authorizer["IdentitySource"] == ["$request.header.Authorization"]
    assert authorizer["AuthorizerResultTtlInSeconds"] == 60
    for seconds in (0, 3_600):
        made = synthesise(DeploymentSettings(authorizer_cache_s=seconds))
        assert made.one(AUTHORIZER)["AuthorizerResultTtlInSeconds"] == seconds


def test_tokens_are_looked_at_by_api_gateway(with_jwt: Any) -> None:
    authorizer = with_jwt.one(AUTHORIZER)
    assert authorizer["AuthorizerType"] == "JWT"
    assert authorizer["JwtConfiguration"] == {
        "Issuer": "https://id.example.com/",
        "Audience": ["jobs", "ops"],
    }
    assert authorizer["IdentitySource"] == ["$request.header.Authorization"]


@pytest.mark.parametrize("made", ["with_jwt", "with_iam"])
def test_what_keys_need_is_there_with_keys_alone(
    request: pytest.FixtureRequest, synthesis: Any, made: str
) -> None:
    other = request.getfixturevalue(made)
    assert set(functions(synthesis)) - set(functions(other)) == {"authorizer"}
    assert not other.resources("AWS::SecretsManager::Secret")
    assert "FirstKeySecretArn" not in other.data.to_json()["Outputs"]
    assert "OJS_FIRST_KEY_SECRET" not in functions(other)["setup"]["Environment"]["Variables"]
    assert "FirstKeySecret" not in other.one(SETUP)
    alarms = {alarm["AlarmName"] for alarm in other.resources("AWS::CloudWatch::Alarm").values()}
    assert "ojs-dev-authorizer-errors" not in alarms


def test_functions_know_who_says_who_asks(each_synthesis: Any) -> None:
    (route, *_) = (each for key, each in routes(each_synthesis).items() if key == "$default")
    (kind,) = (kind for kind, type_ in TYPES.items() if type_ == route["AuthorizationType"])
    for spec in FUNCTIONS:
        if spec.name not in functions(each_synthesis):
            continue
        variables = functions(each_synthesis)[spec.name]["Environment"]["Variables"]
        asked = spec.routes or spec.name == "socket"
        assert variables.get("OJS_AUTHORIZER") == (kind if asked else None)
        scopes = [variables.get(f"OJS_JWT_SCOPE_{name}") for name in ("CLAIM", "PREFIX")]
        reads = spec.routes and not spec.open and kind == "jwt"
        assert scopes == (["scp", "ojs/"] if reads else [None, None])
        roles = [variables.get(f"OJS_{name}") for name in ("IAM_OPERATORS", "AUTHORIZER_CACHE_S")]
        reads = spec.routes and not spec.open and kind == "iam"
        operator = "arn:aws:iam::123456789012:role/operator"
        assert roles == ([operator, "60"] if reads else [None, None])


def test_requests_are_logged_with_who_asked_and_never_with_the_key(each_synthesis: Any) -> None:
    stage = each_synthesis.one("AWS::ApiGatewayV2::Stage")
    format_ = json.loads(stage["AccessLogSettings"]["Format"])
    type_ = routes(each_synthesis)["$default"]["AuthorizationType"]
    assert (
        format_["principal"]
        == {
            "CUSTOM": "$context.authorizer.principal",
            "JWT": "$context.authorizer.claims.sub",
            "AWS_IAM": "$context.identity.userArn",
        }[type_]
    )
    assert format_.get("key") == ("$context.authorizer.key" if type_ == "CUSTOM" else None)
    # Every value is one of API Gateway's variables, of which none is a header.
    assert all(value.startswith("$context.") for value in format_.values())
    assert not {"query", "header"} & set(format_)


# --- web pages -----------------------------------------------------------------------------------


def test_web_pages_are_let_in_by_name(synthesis: Any, with_jwt: Any) -> None:
    assert "CorsConfiguration" not in synthesis.one("AWS::ApiGatewayV2::Api")
    cors = with_jwt.one("AWS::ApiGatewayV2::Api")["CorsConfiguration"]
    assert cors["AllowOrigins"] == ["https://jobs.example.com", "http://localhost:3000"]
    assert cors["AllowHeaders"] == list(negotiation.REQUEST_HEADERS)
    assert "Authorization" in cors["AllowHeaders"]
    assert set(cors["AllowMethods"]) == {each.method for each in contract.OPERATIONS}
    # What the functions tell callers of the local server.
    assert cors["ExposeHeaders"] == list(negotiation.EXPOSED_HEADERS)
    assert "AllowCredentials" not in cors


# --- the first key -------------------------------------------------------------------------------


def test_the_first_key_is_not_in_the_template(synthesis: Any) -> None:
    secret = synthesis.one("AWS::SecretsManager::Secret")
    # A value that CloudFormation makes would be no key, one that it is given would be no secret.
    assert not {"SecretString", "GenerateSecretString"} & set(secret)
    synthesis.data.has_output("FirstKeySecretArn", {})


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)
    else:
        yield str(value)


def test_no_environment_holds_a_secret(each_synthesis: Any) -> None:
    for function in functions(each_synthesis).values():
        variables = function["Environment"]["Variables"]
        # Dynamic references put a secret's value in its place when the stack is deployed.
        assert not [text for text in texts(variables) if "{{resolve:" in text]
        for name in variables:
            suspicious = ("KEY", "SECRET", "TOKEN", "PASSWORD")
            if any(word in name for word in suspicious):
                # A name: where the secret is kept.
                assert name in ("OJS_FIRST_KEY_SECRET", "OJS_ORIGIN_SECRET")
                assert set(variables[name]) in ({"Fn::ImportValue"}, {"Fn::GetAtt"})


def test_no_template_holds_a_value_of_a_secret(each_synthesis: Any) -> None:
    """But one refers to what CloudFormation reads for a distribution when it deploys it."""
    for template in each_synthesis.templates:
        found = [text for text in texts(template.to_json()) if "{{resolve:secrets" in text]
        assert len(found) == (template is each_synthesis.edge)


# --- the step before -----------------------------------------------------------------------------


def test_setup_comes_before_all_other_functions(each_synthesis: Any) -> None:
    (step,) = each_synthesis.resources(SETUP)
    found = each_synthesis.service.find_resources("AWS::Lambda::Function")
    ours = {
        resource["Properties"]["Handler"].split(".")[1]: resource
        for resource in found.values()
        if resource["Properties"]["Handler"].startswith("functions.")
    }
    waiting = {name for name, each in ours.items() if step in each.get("DependsOn", ())}
    assert waiting == set(ours) - {"setup"}


def test_setup_is_done_for_each_version(synthesis: Any) -> None:
    step = synthesis.one(SETUP)
    assert step["Version"] == server.VERSION
    assert step["Schema"] == str(SCHEMA_VERSION)
    (setup,) = (
        name
        for name, function in synthesis.resources("AWS::Lambda::Function").items()
        if function["Handler"].split(".")[1] == "setup"
    )
    assert step["ServiceToken"] == {"Fn::GetAtt": [setup, "Arn"]}
    # CloudFormation would wait for an hour.
    assert 60 < int(step["ServiceTimeout"]) <= 600
    # It gets the place of the key, so that it is called again when there is a place for it.
    variables = functions(synthesis)["setup"]["Environment"]["Variables"]
    assert step["FirstKeySecret"] == variables["OJS_FIRST_KEY_SECRET"]
