"""What a deployment gets when it is asked for: keys, a name, a firewall of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aws_cdk import App, Environment, Stack, assertions
from aws_cdk import aws_certificatemanager as acm

from ojs.services.operations.origin import HEADER
from ojs_aws.cdk.functions import deployed
from ojs_aws.cdk.parts import firewall
from ojs_aws.cdk.parts.domain import Domain
from ojs_aws.cdk.settings import DeploymentSettings

NAME = "jobs.example.com"
API = "AWS::ApiGatewayV2::Api"
DISTRIBUTION = "AWS::CloudFront::Distribution"
WEB_ACL = "AWS::WAFv2::WebACL"
SECRET = "AWS::SecretsManager::Secret"
AUTHORIZER = "AWS::ApiGatewayV2::Authorizer"
ASKS = "OJS_ORIGIN_SECRET"


# --- encryption ----------------------------------------------------------------------------------


@pytest.mark.parametrize("made", ["with_jwt", "with_waf"])
def test_everything_is_encrypted_with_the_key(request: pytest.FixtureRequest, made: str) -> None:
    deployment = request.getfixturevalue(made)
    key = deployment.one("AWS::KMS::Key")
    assert key["EnableKeyRotation"] is True
    (name,) = deployment.resources("AWS::KMS::Key")
    arn = {"Fn::GetAtt": [name, "Arn"]}
    table = deployment.one("AWS::DynamoDB::Table")["SSESpecification"]
    assert table == {"KMSMasterKeyId": arn, "SSEEnabled": True, "SSEType": "KMS"}
    (rule,) = deployment.one("AWS::S3::Bucket")["BucketEncryption"][
        "ServerSideEncryptionConfiguration"
    ]
    assert rule == {
        "BucketKeyEnabled": True,
        "ServerSideEncryptionByDefault": {"KMSMasterKeyID": arn, "SSEAlgorithm": "aws:kms"},
    }
    for secret in deployment.data.find_resources(SECRET).values():
        assert secret["Properties"]["KmsKeyId"] == arn
    # In another stack: by what that one exports.
    for secret in deployment.service.find_resources(SECRET).values():
        assert name in json.dumps(secret["Properties"]["KmsKeyId"])
    for queue in deployment.resources("AWS::SQS::Queue").values():
        assert name in json.dumps(queue["KmsMasterKeyId"])
        assert "SqsManagedSseEnabled" not in queue
    groups = deployment.service.find_resources("AWS::Logs::LogGroup").values()
    assert all(name in json.dumps(group["Properties"]["KmsKeyId"]) for group in groups)
    deployment.data.has_output("EncryptionKeyArn", {})


def test_logs_of_this_deployment_alone_may_use_the_key(with_jwt: Any) -> None:
    statements = with_jwt.one("AWS::KMS::Key")["KeyPolicy"]["Statement"]
    account, logs = statements
    assert "root" in json.dumps(account["Principal"])
    assert "logs." in json.dumps(logs["Principal"])
    (context,) = logs["Condition"]["ArnLike"].values()
    assert context["Fn::Join"][1][-1].endswith(":log-group:*ojs-dev*")


def test_without_being_asked_there_is_no_key(synthesis: Any) -> None:
    assert not synthesis.resources("AWS::KMS::Key")
    assert "KmsKeyId" not in synthesis.one("AWS::SecretsManager::Secret")
    assert not any(
        "KmsKeyId" in each for each in synthesis.resources("AWS::Logs::LogGroup").values()
    )


# --- a name --------------------------------------------------------------------------------------


def test_a_name_replaces_the_one_api_gateway_gives(synthesis: Any, with_iam: Any) -> None:
    assert with_iam.one(API)["DisableExecuteApiEndpoint"] is True
    assert not synthesis.one(API).get("DisableExecuteApiEndpoint")
    with_iam.service.has_output("ApiUrl", {"Value": f"https://{NAME}"})
    with_iam.service.has_output("DomainTarget", {})
    domain = with_iam.one("AWS::ApiGatewayV2::DomainName")
    (configured,) = domain["DomainNameConfigurations"]
    assert domain["DomainName"] == NAME
    assert configured["SecurityPolicy"] == "TLS_1_2"
    assert configured["EndpointType"] == "REGIONAL"
    assert configured["CertificateArn"].startswith("arn:aws:acm:eu-central-1:")
    mapping = with_iam.one("AWS::ApiGatewayV2::ApiMapping")
    (stage,) = with_iam.resources("AWS::ApiGatewayV2::Stage")
    assert mapping["Stage"] == "$default"
    # The name of a stage does not say that it is there already.
    (found,) = with_iam.service.find_resources("AWS::ApiGatewayV2::ApiMapping").values()
    assert stage in found["DependsOn"]


@pytest.mark.parametrize("made", ["with_iam", "with_waf"])
def test_the_name_is_entered_in_its_zone(request: pytest.FixtureRequest, made: str) -> None:
    records = request.getfixturevalue(made).resources("AWS::Route53::RecordSet").values()
    assert {(each["Type"], each["Name"]) for each in records} == {
        ("A", f"{NAME}."),
        ("AAAA", f"{NAME}."),
    }
    assert {each["HostedZoneId"] for each in records} == {"Z123"}


def test_a_name_without_a_zone_is_entered_by_hand(synthesise: Any) -> None:
    made = synthesise(
        DeploymentSettings(
            domain_name=NAME,
            certificate_arn="arn:aws:acm:eu-central-1:123456789012:certificate/abc",
        )
    )
    assert not made.resources("AWS::Route53::RecordSet")
    made.service.has_output("DomainTarget", {})


# --- a firewall ----------------------------------------------------------------------------------


def test_the_firewall_hands_on_what_it_lets_through(with_waf: Any) -> None:
    found = with_waf.edge.find_resources(DISTRIBUTION)
    (distribution,) = (each["Properties"]["DistributionConfig"] for each in found.values())
    assert distribution["Aliases"] == [NAME]
    assert distribution["ViewerCertificate"]["MinimumProtocolVersion"] == "TLSv1.2_2021"
    behavior = distribution["DefaultCacheBehavior"]
    assert behavior["ViewerProtocolPolicy"] == "https-only"
    assert set(behavior["AllowedMethods"]) >= {"GET", "POST", "PUT", "DELETE", "OPTIONS"}
    # AWS's own policies, known by these ids: CachingDisabled, AllViewerExceptHostHeader.
    assert behavior["CachePolicyId"] == "4135ea2d-6df8-44a3-9df3-4b5a84be39ad"
    assert behavior["OriginRequestPolicyId"] == "b689b0a8-53d0-40ab-baf2-68738e2966ac"
    origin, _ = distribution["Origins"]
    assert origin["CustomOriginConfig"]["OriginProtocolPolicy"] == "https-only"
    assert origin["CustomOriginConfig"]["OriginSSLProtocols"] == ["TLSv1.2"]
    assert ".execute-api.eu-central-1." in json.dumps(origin["DomainName"])
    assert not with_waf.one(API).get("DisableExecuteApiEndpoint")
    (acl,) = with_waf.edge.find_resources(WEB_ACL)
    assert distribution["WebACLId"] == {"Fn::GetAtt": [acl, "Arn"]}
    with_waf.service.has_output("ApiUrl", {"Value": f"https://{NAME}"})


def test_the_firewall_shows_a_secret_that_it_reads_in_its_own_region(with_waf: Any) -> None:
    ((name, made),) = with_waf.service.find_resources(
        SECRET, {"Properties": {"ReplicaRegions": assertions.Match.any_value()}}
    ).items()
    secret = made["Properties"]
    assert secret["ReplicaRegions"] == [{"Region": "us-east-1"}]
    assert "StorageEncryptionKey" in secret["KmsKeyId"]["Fn::ImportValue"]
    # Of letters and digits, which a header may hold; not given, and no name that could be taken.
    assert secret["GenerateSecretString"] == {"ExcludePunctuation": True, "PasswordLength": 64}
    assert not {"SecretString", "Name"} & set(secret)
    origin, _ = with_waf.one(DISTRIBUTION)["DistributionConfig"]["Origins"]
    (header,) = origin["OriginCustomHeaders"]
    assert header["HeaderName"].lower() == HEADER
    start, partition, middle, suffix, end = header["HeaderValue"]["Fn::Join"][1]
    assert (start, partition) == ("{{resolve:secretsmanager:arn:", {"Ref": "AWS::Partition"})
    assert middle == ":secretsmanager:us-east-1:123456789012:secret:"
    index, split = suffix["Fn::Select"]
    assert index == 6  # of arn:aws:secretsmanager:region:account:secret:name
    assert name in json.dumps(split["Fn::Split"])
    # Of no version: what is current whenever the distribution is changed.
    assert end == ":SecretString:::}}"
    wanted = {"Fn::GetAtt": [name, "Id"]}
    functions = with_waf.service.find_resources("AWS::Lambda::Function").values()
    asking = {
        each["Properties"]["Handler"].split(".")[1]
        for each in functions
        if each["Properties"].get("Environment", {}).get("Variables", {}).get(ASKS) == wanted
    }
    assert '"Origin"' in json.dumps(with_waf.resources("AWS::IAM::Policy"))
    assert asking == {spec.name for spec in deployed("keys") if spec.routes}


def test_requests_that_went_round_it_run_no_authorizer(with_waf: Any, synthesis: Any) -> None:
    needed = ["$request.header.Authorization", "$request.header.X-Origin-Verify"]
    assert with_waf.one(AUTHORIZER)["IdentitySource"] == needed
    assert synthesis.one(AUTHORIZER)["IdentitySource"] == needed[:1]


def test_the_secret_can_be_shown_before_it_is_asked_for(synthesise: Any) -> None:
    """A distribution that is there goes on working while it gets the secret; in one region."""
    settings = DeploymentSettings(
        domain_name=NAME,
        certificate_arn="arn:aws:acm:us-east-1:123456789012:certificate/abc",
        waf=True,
        waf_only=False,
        waf_rotation=2,
    )
    made = synthesise(settings)
    distribution = made.one(DISTRIBUTION)["DistributionConfig"]
    origin, _ = distribution["Origins"]
    assert "{{resolve:secretsmanager:" in json.dumps(origin["OriginCustomHeaders"])
    assert distribution["Comment"] == "Open Job Spec HTTP binding of ojs-dev, secret 2"
    assert ASKS not in json.dumps(made.service.to_json())
    assert made.one(AUTHORIZER)["IdentitySource"] == ["$request.header.Authorization"]
    assert '"Origin"' not in json.dumps(made.resources("AWS::IAM::Policy"))


def test_without_a_firewall_there_is_no_secret_for_it(synthesis: Any) -> None:
    assert len(synthesis.resources(SECRET)) == 1
    assert ASKS not in json.dumps(synthesis.service.to_json())


def test_a_firewall_needs_the_secret() -> None:
    stack = Stack(App(), "Edge", env=Environment(region="us-east-1"))
    certificate = acm.Certificate.from_certificate_arn(stack, "Certificate", "arn:aws:acm:::c/a")
    with pytest.raises(ValueError, match="origin_secret"):
        firewall.Firewall(
            stack,
            "Firewall",
            api_domain="abc.execute-api.eu-central-1.amazonaws.com",
            domain=Domain(NAME, certificate),
            origin_secret=None,
            realtime=None,
            settings=DeploymentSettings(),
        )


def test_the_firewall_is_where_cloudfront_looks_for_it(with_waf: Any, synthesis: Any) -> None:
    assert with_waf.app.node.find_child("ojs-dev-edge").region == "us-east-1"
    assert synthesis.edge is None
    assert not synthesis.resources(WEB_ACL)


def test_the_firewall_takes_no_body_for_an_attack(with_waf: Any) -> None:
    acl = with_waf.one(WEB_ACL)
    assert acl["Scope"] == "CLOUDFRONT"
    rate, *managed = sorted(acl["Rules"], key=lambda rule: rule["Priority"])
    assert rate["Statement"]["RateBasedStatement"]["Limit"] == 5_000
    assert rate["Statement"]["RateBasedStatement"]["AggregateKeyType"] == "IP"
    assert rate["Action"]["Block"]["CustomResponse"]["ResponseCode"] == 429
    counted = {
        rule["Name"]: {
            each["Name"]
            for each in rule["Statement"]["ManagedRuleGroupStatement"].get(
                "RuleActionOverrides", ()
            )
        }
        for rule in managed
    }
    assert counted == {name: set(rules) for name, rules in firewall.COUNTED.items()}
    bodies = {name for name in counted["AWSManagedRulesCommonRuleSet"] if name.endswith("_BODY")}
    # A push may have megabytes, and holds what somebody else wrote.
    assert "SizeRestrictions_BODY" in bodies
    assert len(bodies) == 5


def test_the_firewall_logs_no_key(with_waf: Any) -> None:
    logging = with_waf.one("AWS::WAFv2::LoggingConfiguration")
    assert logging["RedactedFields"] == [
        {"SingleHeader": {"Name": "authorization"}},
        {"QueryString": {}},
    ]
    acl = with_waf.one(WEB_ACL)
    seen = [acl["VisibilityConfig"], *(rule["VisibilityConfig"] for rule in acl["Rules"])]
    assert not any(each["SampledRequestsEnabled"] for each in seen)
    groups = with_waf.edge.find_resources("AWS::Logs::LogGroup").values()
    (group,) = (each["Properties"] for each in groups)
    # WAF takes no group whose name begins otherwise.
    assert group["LogGroupName"]["Fn::Join"][1][0] == "aws-waf-logs-ojs-dev-"
    assert group["RetentionInDays"] == 30


def test_a_web_acl_that_is_there_already_is_used(synthesise: Any) -> None:
    arn = "arn:aws:wafv2:us-east-1:123456789012:global/webacl/ours/0123"
    made = synthesise(
        DeploymentSettings(
            domain_name=NAME,
            certificate_arn="arn:aws:acm:us-east-1:123456789012:certificate/abc",
            waf=True,
            waf_acl_arn=arn,
        )
    )
    assert made.one(DISTRIBUTION)["DistributionConfig"]["WebACLId"] == arn
    assert not made.resources(WEB_ACL)
    assert not made.resources("AWS::WAFv2::LoggingConfiguration")
