from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from aws_cdk import assertions

from ojs.services.jobs.middleware import FAILED
from ojs.settings import MAX_QUEUES
from ojs.store.table.schema import TABLE, create_table_arguments
from ojs_aws.cdk.functions import deployed
from ojs_aws.cdk.settings import DeploymentSettings

if TYPE_CHECKING:
    from collections.abc import Callable


def test_table_is_the_store_schema(synthesis: Any) -> None:
    table = synthesis.one("AWS::DynamoDB::Table")
    wanted = create_table_arguments("any", stream=True)
    assert table["KeySchema"] == wanted["KeySchema"]
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert sorted(table["AttributeDefinitions"], key=str) == sorted(
        wanted["AttributeDefinitions"], key=str
    )
    assert table["GlobalSecondaryIndexes"] == wanted["GlobalSecondaryIndexes"]
    assert table["StreamSpecification"]["StreamViewType"] == TABLE.stream_view_type
    assert table["StreamSpecification"]["StreamViewType"] == "NEW_AND_OLD_IMAGES"


def test_table_is_kept_safe(synthesis: Any) -> None:
    synthesis.data.has_resource(
        "AWS::DynamoDB::Table",
        {
            "DeletionPolicy": "Retain",
            "UpdateReplacePolicy": "Retain",
            "Properties": {
                "DeletionProtectionEnabled": True,
                "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
                "TimeToLiveSpecification": {"AttributeName": "ttl", "Enabled": True},
                # Absent means: encrypted with a key of DynamoDB's own.
                "SSESpecification": assertions.Match.absent(),
            },
        },
    )


def test_what_the_table_takes_may_be_bounded(synthesis: Any, with_waf: Any) -> None:
    """A key that pushes without end costs no more than that."""
    unbounded, bounded = (made.one("AWS::DynamoDB::Table") for made in (synthesis, with_waf))
    for part in (unbounded, *unbounded["GlobalSecondaryIndexes"]):
        assert "OnDemandThroughput" not in part
    assert bounded["OnDemandThroughput"] == {
        "MaxReadRequestUnits": 3_000,
        "MaxWriteRequestUnits": 1_000,
    }
    for index in bounded["GlobalSecondaryIndexes"]:
        assert index["OnDemandThroughput"] == {"MaxReadRequestUnits": 3_000}


def test_the_table_is_backed_up_where_that_is_asked_for(synthesis: Any, with_waf: Any) -> None:
    assert not synthesis.resources("AWS::Backup::BackupPlan")
    plan = with_waf.one("AWS::Backup::BackupPlan")["BackupPlan"]
    (rule,) = plan["BackupPlanRule"]
    (vault,) = with_waf.resources("AWS::Backup::BackupVault")
    assert rule["Lifecycle"] == {"DeleteAfterDays": 30}
    assert rule["TargetBackupVault"] == {"Fn::GetAtt": [vault, "BackupVaultName"]}
    assert rule["ScheduleExpression"] == "cron(0 3 * * ? *)"
    selection = with_waf.one("AWS::Backup::BackupSelection")["BackupSelection"]
    (table,) = with_waf.resources("AWS::DynamoDB::Table")
    assert selection["Resources"] == [{"Fn::GetAtt": [table, "Arn"]}]
    assert plan["BackupPlanName"] == "ojs-dev"
    assert with_waf.one("AWS::Backup::BackupVault")["EncryptionKeyArn"]


def test_payload_bucket_is_private(synthesis: Any) -> None:
    synthesis.data.has_resource(
        "AWS::S3::Bucket",
        {
            "DeletionPolicy": "Retain",
            "Properties": {
                "PublicAccessBlockConfiguration": {
                    "BlockPublicAcls": True,
                    "BlockPublicPolicy": True,
                    "IgnorePublicAcls": True,
                    "RestrictPublicBuckets": True,
                },
                "BucketEncryption": {
                    "ServerSideEncryptionConfiguration": [
                        {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
                    ]
                },
                "LifecycleConfiguration": {
                    "Rules": assertions.Match.array_with(
                        [
                            assertions.Match.object_like(
                                {
                                    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
                                    "Status": "Enabled",
                                }
                            )
                        ]
                    )
                },
            },
        },
    )
    synthesis.data.has_resource_properties("AWS::S3::BucketPolicy", _refuses_plain_http("s3:*"))


@pytest.mark.requirement("DL-20")
def test_nothing_in_the_bucket_expires(synthesis: Any) -> None:
    """The archive of dead letters is there until somebody takes it away."""
    rules = synthesis.one("AWS::S3::Bucket")["LifecycleConfiguration"]["Rules"]
    assert [set(rule) - {"Id", "Status"} for rule in rules] == [
        {"AbortIncompleteMultipartUpload"},
        # What somebody has taken away.
        {"ExpiredObjectDeleteMarker", "NoncurrentVersionExpiration"},
    ]


def test_deleted_payloads_can_be_brought_back_for_a_restored_table(
    synthesis: Any, synthesise: Callable[[DeploymentSettings], Any]
) -> None:
    bucket = synthesis.one("AWS::S3::Bucket")
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    *_, rule = bucket["LifecycleConfiguration"]["Rules"]
    assert rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": 7}
    bucket = synthesise(DeploymentSettings(payload_recovery_days=0)).one("AWS::S3::Bucket")
    assert "VersioningConfiguration" not in bucket
    assert len(bucket["LifecycleConfiguration"]["Rules"]) == 1


def test_failure_queue_is_encrypted_and_reported(synthesis: Any) -> None:
    queue = synthesis.one("AWS::SQS::Queue")
    assert queue["SqsManagedSseEnabled"] is True
    assert queue["MessageRetentionPeriod"] == 14 * 24 * 3600
    synthesis.service.has_resource_properties("AWS::SQS::QueuePolicy", _refuses_plain_http("sqs:*"))
    synthesis.service.has_output("StreamFailureQueueUrl", {})
    synthesis.service.has_output("StreamFailureQueueArn", {})


def _refuses_plain_http(actions: str) -> dict[str, Any]:
    return {
        "PolicyDocument": {
            "Statement": assertions.Match.array_with(
                [
                    assertions.Match.object_like(
                        {
                            "Action": actions,
                            "Effect": "Deny",
                            "Principal": {"AWS": "*"},
                            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
                        }
                    )
                ]
            )
        }
    }


ALARM = "AWS::CloudWatch::Alarm"


@pytest.mark.parametrize("spec", deployed("keys"), ids=lambda spec: spec.name)
def test_function(synthesis: Any, spec: Any) -> None:
    function = _functions(synthesis)[spec.name]
    assert function["Handler"] == f"functions.{spec.name}.handler.handler"
    assert function["Architectures"] == ["arm64"]
    assert function["Runtime"] == "python3.13"
    assert function["Timeout"] == spec.timeout_s
    assert function["MemorySize"] == 1024
    assert "TracingConfig" not in function
    logging = function["LoggingConfig"]
    assert (logging["LogFormat"], logging["SystemLogLevel"]) == ("JSON", "WARN")
    metered = {
        "OJS_METRICS",
        "OJS_QUEUE_METRICS_MAX",
        "OJS_ALARM_OLDEST_JOB_S",
        "OJS_ALARM_CRON_LATE_S",
    }
    more = {
        "stream": {"OJS_BUCKET", "OJS_BUS", "OJS_FAILURE_QUEUE", *metered},
        "sweep": {"OJS_BUCKET", "OJS_BUS", *metered},
        "authorizer": set(),
        "ticket": set(),
        "socket": {"OJS_AUTHORIZER", "OJS_SOCKET_ORIGINS"},
        "dashboard": {"OJS_AUTHORIZER"},
        "setup": {"OJS_FIRST_KEY_SECRET", "OJS_PUSH"},
        "admin": {"OJS_AUTHORIZER", "OJS_BUCKET", "OJS_RECOVERY_DAYS", "OJS_SOCKET_URL"},
    }.get(spec.name, {"OJS_AUTHORIZER", "OJS_BUCKET"})
    if spec.name in {"jobs", "workers", "admin", "sweep"}:
        more |= {"OJS_SCHEMA_MODE"}
    if spec.access.connections:
        more |= {"OJS_REALTIME", "OJS_SOCKET_ENDPOINT"}
    assert set(function["Environment"]["Variables"]) == more | {
        "OJS_TABLE",
        "OJS_VERSION",
        "OJS_STRICT_QUEUES",
        "OJS_MAX_QUEUES",
        "OJS_MAX_CRONS",
        "OJS_MIN_CRON_INTERVAL_S",
        "OJS_SERVICE",
        "POWERTOOLS_SERVICE_NAME",
        "POWERTOOLS_LOG_LEVEL",
        "POWERTOOLS_METRICS_NAMESPACE",
    }


def test_the_dashboard_can_be_left_out(synthesis: Any, synthesise: Any) -> None:
    bare = synthesise(DeploymentSettings(web_dashboard=False))
    assert set(_functions(synthesis)) - set(_functions(bare)) == {"dashboard"}
    keys = {each["RouteKey"] for each in bare.resources("AWS::ApiGatewayV2::Route").values()}
    assert not [key for key in keys if "/ojs/admin" in key]
    with pytest.raises(ValueError, match="the function dashboard requires"):
        DeploymentSettings(web_dashboard=False, memory_mb_by_function={"dashboard": 256})


def test_which_queues_jobs_make_is_what_was_chosen(synthesis: Any, synthesise: Any) -> None:
    strict = synthesise(DeploymentSettings(strict_queues=True, max_queues=7))
    for made, expected in ((synthesis, ("false", f"{MAX_QUEUES}")), (strict, ("true", "7"))):
        for function in _functions(made).values():
            variables = function["Environment"]["Variables"]
            assert (variables["OJS_STRICT_QUEUES"], variables["OJS_MAX_QUEUES"]) == expected


def test_middleware_is_told_to_those_who_push(synthesis: Any, synthesise: Any) -> None:
    settings = DeploymentSettings(
        middleware=("hooks:a", "hooks:b"), middleware_folder="hooks", middleware_timeout_ms=500
    )
    made = synthesise(settings)
    variables = {
        name: function["Environment"]["Variables"] for name, function in _functions(made).items()
    }
    told = {name for name, each in variables.items() if "OJS_MIDDLEWARE" in each}
    assert told == {"jobs", "workers", "admin", "sweep"}
    for name in told:
        assert variables[name]["OJS_MIDDLEWARE"] == "hooks:a,hooks:b"
        assert variables[name]["OJS_MIDDLEWARE_TIMEOUT_MS"] == "500"
    for function in _functions(synthesis).values():
        assert not {"OJS_MIDDLEWARE"} & function["Environment"]["Variables"].keys()
    alarms = {each["AlarmName"]: each for each in made.resources("AWS::CloudWatch::Alarm").values()}
    alarm = alarms["ojs-dev-middleware"]
    assert (alarm["MetricName"], alarm["Threshold"]) == (FAILED, 1)
    assert alarm["Dimensions"] == [{"Name": "service", "Value": "ojs-dev"}]
    names = [each["AlarmName"] for each in synthesis.resources("AWS::CloudWatch::Alarm").values()]
    assert "ojs-dev-middleware" not in names


def test_there_are_no_other_functions(synthesis: Any) -> None:
    # CDK adds functions of its own for some conveniences; each would be code nobody reviewed.
    assert sorted(_functions(synthesis)) == sorted(spec.name for spec in deployed("keys"))


def test_each_function_has_its_own_role_and_log_group(synthesis: Any) -> None:
    functions = _functions(synthesis).values()
    roles = {function["Role"]["Fn::GetAtt"][0] for function in functions}
    groups = {function["LoggingConfig"]["LogGroup"]["Ref"] for function in functions}
    assert len(roles) == len(groups) == len(deployed("keys"))
    assert groups <= set(synthesis.resources("AWS::Logs::LogGroup"))


def test_all_logs_end(synthesis: Any) -> None:
    groups = synthesis.resources("AWS::Logs::LogGroup")
    assert len(groups) == len(deployed("keys")) + 1  # and the API's access log
    assert {group["RetentionInDays"] for group in groups.values()} == {30}


def test_routes(synthesis: Any) -> None:
    integrations = {
        name: properties["IntegrationUri"]["Fn::GetAtt"][0]
        for name, properties in synthesis.resources("AWS::ApiGatewayV2::Integration").items()
    }
    by_function = {
        logical_id: properties["Handler"].split(".")[1]
        for logical_id, properties in synthesis.resources("AWS::Lambda::Function").items()
    }
    routes = {
        properties["RouteKey"]: by_function[
            integrations[properties["Target"]["Fn::Join"][1][1]["Ref"]]
        ]
        for properties in synthesis.resources("AWS::ApiGatewayV2::Route").values()
    }
    assert routes == {
        "ANY /ojs/v1/jobs": "jobs",
        "ANY /ojs/v1/jobs/{proxy+}": "jobs",
        "ANY /ojs/v1/workers": "workers",
        "ANY /ojs/v1/workers/{proxy+}": "workers",
        "ANY /ojs/admin": "dashboard",
        "ANY /ojs/admin/{proxy+}": "dashboard",
        "$default": "admin",
    }


def test_payload_format(synthesis: Any) -> None:
    for integration in synthesis.resources("AWS::ApiGatewayV2::Integration").values():
        assert integration["PayloadFormatVersion"] == "2.0"
        assert integration["IntegrationType"] == "AWS_PROXY"


def test_stage(synthesis: Any) -> None:
    stage = synthesis.one("AWS::ApiGatewayV2::Stage")
    assert stage["StageName"] == "$default"
    assert stage["AutoDeploy"] is True
    assert stage["DefaultRouteSettings"] == {
        "ThrottlingRateLimit": 2000,
        "ThrottlingBurstLimit": 1000,
    }
    access_log = json.loads(stage["AccessLogSettings"]["Format"])
    # Each is paid for with each request.
    assert set(access_log) == {
        "request_id", "method", "path", "status", "latency_ms", "source_ip", "error",
        "authorizer_error", "principal", "key",
    }  # fmt: skip
    assert access_log["request_id"] == "$context.requestId"
    *_, last = stage["AccessLogSettings"]["DestinationArn"]["Fn::Join"][1]
    assert last["Ref"] in synthesis.resources("AWS::Logs::LogGroup")


def test_only_api_and_schedule_may_invoke(synthesis: Any) -> None:
    permissions = list(synthesis.resources("AWS::Lambda::Permission").values())
    assert {permission["Principal"] for permission in permissions} == {
        "apigateway.amazonaws.com",
        "events.amazonaws.com",
    }
    # Without a source, anybody's API or rule could call the function.
    assert all(permission["SourceArn"] for permission in permissions)


def test_sweep_runs_every_minute(synthesis: Any) -> None:
    rule = synthesis.one("AWS::Events::Rule")
    assert rule["ScheduleExpression"] == "rate(1 minute)"
    assert rule["State"] == "ENABLED"
    (target,) = rule["Targets"]
    function = synthesis.resources("AWS::Lambda::Function")[target["Arn"]["Fn::GetAtt"][0]]
    assert function["Handler"] == "functions.sweep.handler.handler"
    assert target["RetryPolicy"]["MaximumRetryAttempts"] == 0
    assert synthesis.one("AWS::Lambda::EventInvokeConfig")["MaximumRetryAttempts"] == 0


def test_outputs(synthesis: Any) -> None:
    synthesis.service.has_output("ApiUrl", {})
    synthesis.data.has_output("TableName", {})
    synthesis.data.has_output("PayloadBucketName", {})


def test_state_and_service_are_apart(synthesis: Any) -> None:
    kinds_ = {resource["Type"] for resource in synthesis.data.to_json()["Resources"].values()}
    assert kinds_ == {
        "AWS::DynamoDB::Table",
        "AWS::S3::Bucket",
        "AWS::S3::BucketPolicy",
        "AWS::SecretsManager::Secret",
    }


# Resources that hold what cannot be made anew.
STATEFUL = {
    "AWS::Backup::BackupVault",
    "AWS::DynamoDB::Table",
    "AWS::DynamoDB::GlobalTable",
    "AWS::KMS::Key",
    "AWS::S3::Bucket",
    "AWS::SSM::Parameter",
    "AWS::SecretsManager::Secret",
}


def test_what_is_kept_is_in_the_data_stack_alone(each_synthesis: Any) -> None:
    for template in each_synthesis.templates:
        # What the firewall adds to requests a new deployment makes anew.
        resources = template.to_json()["Resources"].items()
        found = {each["Type"] for name, each in resources if "OriginSecret" not in name} & STATEFUL
        assert bool(found) is (template is each_synthesis.data)


def logs_kept(made: Any) -> set[tuple[str, str]]:
    """What becomes of each log group of all stacks when its stack is deleted, or it is replaced."""
    found = [
        group
        for template in made.templates
        for group in template.find_resources("AWS::Logs::LogGroup").values()
    ]
    assert len(found) > 1
    return {(group["DeletionPolicy"], group["UpdateReplacePolicy"]) for group in found}


def test_logs_outlive_their_stack(each_synthesis: Any) -> None:
    """The access log too. A deployment whose creation failed leaves no groups."""
    assert logs_kept(each_synthesis) == {("RetainExceptOnCreate", "Retain")}
    for group in each_synthesis.resources("AWS::Logs::LogGroup").values():
        # A fixed name would be taken when a stack of this name is deployed again.
        assert "AWS::StackId" in json.dumps(group.get("LogGroupName", "AWS::StackId"))


def policies(made: Any) -> set[tuple[str, str]]:
    """What becomes of each resource with data when its stack, or it, is replaced or deleted."""
    return {
        (resource["DeletionPolicy"], resource["UpdateReplacePolicy"])
        for resource in made.data.to_json()["Resources"].values()
        if resource["Type"] in STATEFUL
    }


def test_what_is_kept_outlives_its_stack(each_synthesis: Any) -> None:
    assert policies(each_synthesis) == {("Retain", "Retain")}


def test_what_is_to_be_destroyed_goes_with_its_stack(
    synthesise: Callable[[DeploymentSettings], Any],
) -> None:
    made = synthesise(DeploymentSettings(removal_policy="destroy", encryption="own"))
    assert policies(made) == logs_kept(made) == {("Delete", "Delete")}


def test_stacks_with_state_refuse_to_be_deleted(
    synthesis: Any, synthesise: Callable[[DeploymentSettings], Any]
) -> None:
    unprotected = synthesise(DeploymentSettings(deletion_protection=False))
    for made, expected in ((synthesis, True), (unprotected, False)):
        stack = made.app.node.find_child("ojs-dev-data")
        assert stack.termination_protection is expected
        assert made.one("AWS::DynamoDB::Table")["DeletionProtectionEnabled"] is expected


def test_functions_can_have_sizes_of_their_own(
    synthesise: Callable[[DeploymentSettings], Any],
) -> None:
    settings = DeploymentSettings(
        memory_mb_by_function={"sweep": 512}, reserved_concurrency={"authorizer": 20, "sweep": 1}
    )
    functions = _functions(synthesise(settings))
    assert {name for name, each in functions.items() if each["MemorySize"] == 512} == {"sweep"}
    assert {
        name: each["ReservedConcurrentExecutions"]
        for name, each in functions.items()
        if "ReservedConcurrentExecutions" in each
    } == {"authorizer": 20, "sweep": 1}


def test_settings_reach_the_template(synthesise: Callable[[DeploymentSettings], Any]) -> None:
    other = synthesise(
        DeploymentSettings(
            stage="prod-eu",
            removal_policy="destroy",
            deletion_protection=False,
            log_retention_days=365,
            log_level="WARNING",
            tracing=True,
            memory_mb=512,
            architecture="x86_64",
            python="3.14",
            throttle_rate_per_s=10,
            throttle_burst=5,
        )
    )
    other.data.has_resource(
        "AWS::DynamoDB::Table",
        {"DeletionPolicy": "Delete", "Properties": {"DeletionProtectionEnabled": False}},
    )
    assert {
        group["RetentionInDays"] for group in other.resources("AWS::Logs::LogGroup").values()
    } == {365}
    for function in _functions(other).values():
        assert function["MemorySize"] == 512
        assert function["Architectures"] == ["x86_64"]
        assert function["Runtime"] == "python3.14"
        assert function["TracingConfig"] == {"Mode": "Active"}
        assert function["LoggingConfig"]["ApplicationLogLevel"] == "WARN"
        assert function["Environment"]["Variables"]["POWERTOOLS_LOG_LEVEL"] == "WARNING"
    stage = other.one("AWS::ApiGatewayV2::Stage")
    limits = [stage["DefaultRouteSettings"], *stage["RouteSettings"].values()]
    assert limits == [{"ThrottlingRateLimit": 10, "ThrottlingBurstLimit": 5}] * 3


def test_local_target_differs_only_where_the_emulator_must(
    synthesise: Callable[[DeploymentSettings], Any], synthesis: Any
) -> None:
    local = synthesise(DeploymentSettings(bundle="host"))
    # It has no alarms on what is calculated from metrics; it speaks plain HTTP, and would refuse it
    # as the policies of queue and bucket say.
    alarms = local.resources(ALARM).values()
    calculated = [one for one in synthesis.resources(ALARM).values() if "Metrics" in one]
    assert len(calculated) == len(synthesis.resources(ALARM)) - len(alarms) > 0
    missing = [*[ALARM] * len(calculated), "AWS::Logs::MetricFilter", "AWS::SQS::QueuePolicy"]
    # It returns responses to messages without it.
    missing.append("AWS::ApiGatewayV2::RouteResponse")
    # It brings no path that ends with a slash to a route of another path.
    more = [*kinds(synthesis.service), "AWS::ApiGatewayV2::Route"]
    assert sorted(kinds(local.service) + missing) == sorted(more)
    added = local.resources("AWS::ApiGatewayV2::Route").keys() - synthesis.resources(
        "AWS::ApiGatewayV2::Route"
    )
    slash = [local.resources("AWS::ApiGatewayV2::Route")[name]["RouteKey"] for name in added]
    assert slash == ["ANY /ojs/admin/"]
    assert set(kinds(synthesis.data)) - set(kinds(local.data)) == {"AWS::S3::BucketPolicy"}
    host = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert {function["Runtime"] for function in _functions(local).values()} == {host}


def kinds(template: Any) -> list[str]:
    return sorted(resource["Type"] for resource in template.to_json()["Resources"].values())


def _functions(synthesis: Any) -> dict[str, dict[str, Any]]:
    return {
        properties["Handler"].split(".")[1]: properties
        for properties in synthesis.resources("AWS::Lambda::Function").values()
    }
