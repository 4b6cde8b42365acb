"""Where the app's settings come from: the command line and a file.

A setting is given on the command line (`cdk deploy -c name=value`) or in a file of settings
(`-c settings=prod.toml`, or .json). The command line wins over the file, and what neither names has
its default. The `context` of cdk.json counts as the command line: CDK hands both over as one.
What is in cdk.json and in the file is therefore refused, rather than silently overriding the file.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra import ROOT
from ojs_aws.cdk.settings import DeploymentSettings

_CDK_JSON = ROOT / "cdk.json"
# CDK's own context keys have a colon or begin with an @.
_OURS = re.compile(r"[^@:]+")


def from_context(context: Mapping[str, Any], *, cdk_json: Path = _CDK_JSON) -> DeploymentSettings:
    """The settings of CDK's context, and of the file that its key `settings` names.

    Raises pydantic.ValidationError for a value that is not allowed, and ValueError for an
    unknown name or a file that cannot be read.
    """
    chosen = {name: value for name, value in context.items() if _OURS.fullmatch(name)}
    file = chosen.pop("settings", None)
    _check_names(chosen, "the context (-c, or cdk.json)")
    if file is None:
        return DeploymentSettings.model_validate(chosen)
    # Relative to where cdk is run, which is where cdk.json is.
    from_file = _read(cdk_json.parent / str(file))
    _check_names(from_file, str(file))
    fixed = json.loads(cdk_json.read_text("utf-8")).get("context", {})
    if twice := sorted(set(fixed) & set(from_file)):
        raise ValueError(
            f"{', '.join(twice)}: both in cdk.json and in {file}; keep it in one of them"
        )
    return DeploymentSettings.model_validate({**from_file, **chosen})


def _check_names(chosen: Mapping[str, Any], where: str) -> None:
    # CDK itself says nothing to a name with a typing error, and deploys without it.
    if unknown := sorted(set(chosen) - set(DeploymentSettings.model_fields)):
        raise ValueError(f"no such setting in {where}: {', '.join(unknown)}")


def _read(file: Path) -> dict[str, Any]:
    """Settings of a file; raises ValueError when it cannot be read."""
    try:
        text = file.read_text("utf-8")
        return dict(tomllib.loads(text) if file.suffix == ".toml" else json.loads(text))
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"cannot read the settings in {file.name}: {error}") from error
