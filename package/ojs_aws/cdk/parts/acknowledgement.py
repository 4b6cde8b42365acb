"""Accepted findings of cdk-nag, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_cdk import Acknowledgment, Stack, Validations

if TYPE_CHECKING:
    from constructs import IConstruct


def acknowledge(scope: IConstruct, rule: str, reason: str) -> None:
    """Accept `rule` on `scope` and everything below it, for the written `reason`.

    A rule with several findings is accepted per finding: `Rule[Finding]`.
    """
    Validations.of(scope).acknowledge(Acknowledgment(id=rule, reason=reason))


def reported(scope: IConstruct, owner: IConstruct, token: str) -> str:
    """Format an attribute of `owner`, or a text that contains it, like a finding on `scope`."""
    here, home = Stack.of(scope), Stack.of(owner)
    if here.node.path == home.node.path or owner.node.default_child is None:
        return _written(here.resolve(token))
    # Findings show the export between the stacks. CDK creates this export anyway.
    export: str = home.resolve(home.export_value(token))["Fn::ImportValue"]
    return export


def _written(value: Any) -> str:
    match value:
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::Join": [_, parts]}:
            return "".join(map(_written, parts))
    return str(value)
