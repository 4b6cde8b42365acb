"""The stacks that version 0.2.0 deployed: what an upgrade must not make anew.

Written down from a template that 0.2.0 made. CloudFormation takes a resource under another logical
id, or of another type, for a new one, and removes the old one or leaves it behind.
"""

from __future__ import annotations

from typing import Any

import pytest

KEPT = {
    "data": {
        "StorageTableB43FDCE7": "AWS::DynamoDB::Table",
        "StoragePayloadsCE68CCE3": "AWS::S3::Bucket",
        "StorageEncryptionKeyE4F7161F": "AWS::KMS::Key",
        "StorageEncryptionKeyAlias05EFDC36": "AWS::KMS::Alias",
        "StorageFirstKey1DB15F96": "AWS::SecretsManager::Secret",
    },
    "service": {
        # Its address is what clients know.
        "ApiHttp17514DA7": "AWS::ApiGatewayV2::Api",
        "EventsBus45DE4339": "AWS::Events::EventBus",
        "StreamFailuresQueue4F2B15EC": "AWS::SQS::Queue",
    },
    "edge": {"FirewallDistributionB0FBB315": "AWS::CloudFront::Distribution"},
}
# Properties that cannot be changed in place, as 0.2.0 had them; None: it had none.
FIXED: dict[str, dict[str, object]] = {
    "StorageTableB43FDCE7": {
        "KeySchema": [
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
        "TableName": None,
        "LocalSecondaryIndexes": None,
    },
    "StoragePayloadsCE68CCE3": {"BucketName": None},
    "StorageEncryptionKeyAlias05EFDC36": {"AliasName": "alias/ojs-dev"},
    "StorageFirstKey1DB15F96": {"Name": None},
    "ApiHttp17514DA7": {"ProtocolType": "HTTP"},
    "EventsBus45DE4339": {"Name": "ojs-dev"},
    "StreamFailuresQueue4F2B15EC": {"QueueName": None},
}
# What the service stack imports: while it does, the data stack cannot be deployed without it.
EXPORTS = {
    "ojs-dev-data:ExportsOutputFnGetAttStoragePayloadsCE68CCE3Arn322AB3BF",
    "ojs-dev-data:ExportsOutputFnGetAttStorageEncryptionKeyE4F7161FArn5F96C27A",
    "ojs-dev-data:ExportsOutputFnGetAttStorageTableB43FDCE7ArnB71319BA",
    "ojs-dev-data:ExportsOutputRefStorageTableB43FDCE72E358E31",
    "ojs-dev-data:ExportsOutputRefStoragePayloadsCE68CCE3621B6CE6",
    "ojs-dev-data:ExportsOutputFnGetAttStorageTableB43FDCE7StreamArnD3A88461",
    "ojs-dev-data:ExportsOutputFnGetAttStorageFirstKey1DB15F96Id04534200",
}


@pytest.mark.parametrize("part", KEPT)
def test_nothing_that_0_2_0_deployed_is_made_anew(with_waf: Any, part: str) -> None:
    resources = getattr(with_waf, part).to_json()["Resources"]
    assert {name: resources[name]["Type"] for name in KEPT[part]} == KEPT[part]
    for name in KEPT[part]:
        properties = resources[name].get("Properties", {})
        for key, value in FIXED.get(name, {}).items():
            assert properties.get(key) == value, (name, key)


def test_push_delivery_is_added_beside_it(with_jwt: Any) -> None:
    """Switched on in a deployment that is there: nothing of it is made anew."""
    for part in ("data", "service"):
        resources = getattr(with_jwt, part).to_json()["Resources"]
        # Without keys there is no first one.
        kept = {name: kind for name, kind in KEPT[part].items() if "FirstKey" not in name}
        assert {name: resources[name]["Type"] for name in kept} == kept


def test_there_is_one_of_each(with_waf: Any) -> None:
    for part, kept in KEPT.items():
        resources = getattr(with_waf, part).to_json()["Resources"]
        for kind in set(kept.values()):
            # Clients read the address of the WebSocket API anew.
            names = {
                name
                for name, each in resources.items()
                if each["Type"] == kind and not name.startswith("Realtime")
            }
            assert names == {name for name, its in kept.items() if its == kind}


def test_what_other_stacks_import_is_still_there(with_waf: Any) -> None:
    outputs = with_waf.data.to_json()["Outputs"].values()
    assert {each["Export"]["Name"] for each in outputs if "Export" in each} >= EXPORTS
