"""The strict schema of the envelopes, for checking whatever is emitted."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema

from tests.support.paths import SCHEMA

PATH = SCHEMA


@cache
def _validator(name: str) -> Any:
    schema = json.loads(PATH.read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})


def validate(name: str, body: bytes | str) -> dict[str, Any]:
    """Check one encoded envelope (`SampleEnvelope`, ...) and give it decoded."""
    envelope: dict[str, Any] = json.loads(body)
    _validator(name).validate(envelope)
    return envelope


def validate_part(name: str, body: bytes) -> None:
    """Check an encoded part of an envelope (`SlurmJob`, ...)."""
    _validator(name).validate(json.loads(body))
