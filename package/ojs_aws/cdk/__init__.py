"""A CDK construct: a whole Open Job Spec backend in a stack of your app (docs/construct.md)."""

from __future__ import annotations

from ojs_aws.cdk.construct import OpenJobSpec
from ojs_aws.cdk.parts.domain import Domain
from ojs_aws.cdk.parts.fargate import FargateWorker, TaskNetwork
from ojs_aws.cdk.parts.firewall import Firewall
from ojs_aws.cdk.parts.grants import Granted
from ojs_aws.cdk.parts.network import Network
from ojs_aws.cdk.parts.storage import Storage
from ojs_aws.cdk.settings import DeploymentSettings

__all__ = [
    "DeploymentSettings",
    "Domain",
    "FargateWorker",
    "Firewall",
    "Granted",
    "Network",
    "OpenJobSpec",
    "Place",
    "Storage",
    "TaskNetwork",
]

# The name of TaskNetwork in 0.2. The next version removes it.
Place = TaskNetwork
