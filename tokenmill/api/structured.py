"""What a request wants its output to look like, in every spelling there is, as one core `Grammar`. Pure.

Not responsible for: whether a schema or an expression makes sense (the worker's compiler says so), tools (tools.py).
"""

from __future__ import annotations

import json
from typing import Any

from tokenmill.api.openai_types import GenerationFields
from tokenmill.core.errors import BadRequestError, CapabilityError
from tokenmill.core.grammar import Grammar, GrammarKind

_FORMATS = "text, json_object, json_schema"
#: Key of `structured_outputs` -> kind; vLLM's `guided_KEY` are the same wishes.
_KINDS = {
    "json": GrammarKind.JSON_SCHEMA,
    "regex": GrammarKind.REGEX,
    "choice": GrammarKind.CHOICE,
    "grammar": GrammarKind.EBNF,
}


def content_grammar(body: GenerationFields) -> Grammar | None:
    """The constraint on the answer's text, None for free text; BadRequestError for two at once."""
    found = [_format(body.response_format)]
    found += [_spelled(key, getattr(body, f"guided_{key}"), f"guided_{key}") for key in _KINDS]
    found += _structured_outputs(body.structured_outputs)
    given = [grammar for grammar in found if grammar is not None]
    if len(given) > 1:
        raise BadRequestError(
            f"{given[0].param} and {given[1].param} both say what the output looks like: give one", param=given[1].param
        )
    for grammar in given:
        grammar.check()
    return given[0] if given else None


def _format(response_format: Any) -> Grammar | None:
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar(kind=GrammarKind.JSON_OBJECT, param="response_format")
    if kind == "json_schema":
        return _json_schema(response_format.get("json_schema"))
    if not isinstance(kind, str):
        raise BadRequestError(
            f"response_format must be an object whose type is one of {_FORMATS}", param="response_format"
        )
    raise CapabilityError(
        f"response_format.type {kind[:60]!r} is not possible: give one of {_FORMATS}", param="response_format.type"
    )


def _json_schema(given: Any) -> Grammar:
    path = "response_format.json_schema"
    if not isinstance(given, dict):
        raise BadRequestError(f"{path} must be an object with name and schema", param=path)
    schema = given.get("schema")
    if schema is None:
        return Grammar(kind=GrammarKind.JSON_OBJECT, param=path)
    return Grammar(kind=GrammarKind.JSON_SCHEMA, source=json_source(schema, f"{path}.schema"), param=f"{path}.schema")


def _structured_outputs(given: dict[str, Any] | None) -> list[Grammar | None]:
    path = "structured_outputs"
    found: list[Grammar | None] = []
    for key, value in (given or {}).items():
        if key == "json_object" and isinstance(value, bool):
            found.append(Grammar(kind=GrammarKind.JSON_OBJECT, param=f"{path}.json_object") if value else None)
        elif key in _KINDS:
            found.append(_spelled(key, value, f"{path}.{key}"))
        elif value not in (None, False):
            raise CapabilityError(
                f"{path}.{key[:60]} is not possible: give one of json_object, {', '.join(_KINDS)}",
                param=f"{path}.{key}",
            )
    return found


def _spelled(key: str, value: Any, param: str) -> Grammar | None:
    if value is None:
        return None
    source = value if isinstance(value, str) and key != "choice" else None
    if source is None and key == "json" and isinstance(value, dict | bool):
        source = json_source(value, param)
    if source is None and key == "choice" and isinstance(value, list) and all(isinstance(one, str) for one in value):
        source = json.dumps(value, ensure_ascii=False) if value else ""
    if source is None:
        wanted = {"json": "a JSON schema", "choice": "a list of texts"}.get(key, "a text")
        raise BadRequestError(f"{param} must be {wanted}", param=param)
    return Grammar(kind=_KINDS[key], source=source, param=param)


def json_source(value: Any, path: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise BadRequestError(f"{path} is nested too deep: make it flatter", param=path) from None
