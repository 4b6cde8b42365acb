"""Findings of cdk-nag that are as they should be, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import Acknowledgment, Validations

if TYPE_CHECKING:
    from constructs import IConstruct


def acknowledge(scope: IConstruct, rule: str, reason: str) -> None:
    """Accept `rule` on `scope` and everything below it, for the written `reason`.

    A rule that reports several findings is accepted finding by finding: `Rule[Finding]`.
    """
    Validations.of(scope).acknowledge(Acknowledgment(id=rule, reason=reason))
