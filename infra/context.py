"""Reads the settings of the app from the command line and from a file.

You set a setting on the command line (`cdk deploy -c name=value`) or in a file of settings
(`-c settings=prod.toml`, or .json). The command line overrides the file. A setting in neither of
them has its default. CDK passes the `context` of cdk.json like the command line. A setting in both
cdk.json and the file is therefore rejected, so that it doesn't silently override the file.
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
# CDK's own context keys have a colon or start with @.
_OURS = re.compile(r"[^@:]+")


def from_context(context: Mapping[str, Any], *, cdk_json: Path = _CDK_JSON) -> DeploymentSettings:
    """Merge the settings of CDK's context and of the file that its key `settings` names.

    Raises pydantic.ValidationError for an invalid value, and ValueError for an unknown name or an
    unreadable file.
    """
    chosen = {name: value for name, value in context.items() if _OURS.fullmatch(name)}
    file = chosen.pop("settings", None)
    _check_names(chosen, "the context (-c, or cdk.json)")
    if file is None:
        return DeploymentSettings.model_validate(chosen)
    # Relative to the folder in which cdk runs, which has cdk.json.
    from_file = _read(cdk_json.parent / str(file))
    _check_names(from_file, str(file))
    fixed = json.loads(cdk_json.read_text("utf-8")).get("context", {})
    if twice := sorted(set(fixed) & set(from_file)):
        raise ValueError(
            f"{', '.join(twice)}: set in cdk.json and in {file}. Remove it from one of them"
        )
    return DeploymentSettings.model_validate({**from_file, **chosen})


def _check_names(chosen: Mapping[str, Any], where: str) -> None:
    # CDK accepts a misspelled name and deploys without it.
    if unknown := sorted(set(chosen) - set(DeploymentSettings.model_fields)):
        raise ValueError(f"unknown setting in {where}: {', '.join(unknown)}")


def _read(file: Path) -> dict[str, Any]:
    """Return the settings of a file. Raises ValueError if it can't be read."""
    try:
        text = file.read_text("utf-8")
        return dict(tomllib.loads(text) if file.suffix == ".toml" else json.loads(text))
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"can't read the settings in {file.name}: {error}") from error
