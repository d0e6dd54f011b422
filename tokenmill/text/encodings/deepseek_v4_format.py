"""The literal text of DeepSeek V4 prompts: tokens, effort paragraphs, tools, calls. Not responsible for turns.

Every string here is part of the format that the checkpoints were trained on: hub repository
deepseek-ai/DeepSeek-V4-Flash, encoding/encoding_dsv4.py and README, 2026 (April release and release 0731).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tokenmill.text.parsers.typed_values import parse_json

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
LATEST_REMINDER = "<｜latest_reminder｜>"
THINK = "<think>"
END_THINK = "</think>"
_DSML = "｜DSML｜"

TASKS = MappingProxyType(
    {name: f"<｜{name}｜>" for name in ("action", "query", "authority", "domain", "title", "read_url")}
)
#: Texts that the tokenizer never joins with what follows them.
BOUNDARIES = (BOS, EOS, USER, ASSISTANT, LATEST_REMINDER, THINK, END_THINK, *TASKS.values())

_THOROUGH = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
_RELENTLESS = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose "
    "the problem into its most fundamental components, trace every causal chain to its root, and resolve the "
    "underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n"
)


def _levels(**levels: str) -> Mapping[str, str]:
    return MappingProxyType(levels)


#: Effort asked for -> paragraph, by release. Names that a release does not know are mapped as the vendor's own API
#: maps them (guides/thinking_mode, as of the release). Both APIs think, with effort "high", when nothing is said.
EFFORTS_APRIL = _levels(minimal="", low="", medium="", high="", xhigh=_THOROUGH, max=_THOROUGH, ultra=_THOROUGH)
EFFORTS_0731 = _levels(
    minimal="", low="", medium=_THOROUGH, high=_THOROUGH, xhigh=_THOROUGH, max=_RELENTLESS, ultra=_RELENTLESS
)
DEFAULT_EFFORT = "high"

_TOOLS = f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<{_DSML}tool_calls>" block like the following:

<{_DSML}tool_calls>
<{_DSML}invoke name="$TOOL_NAME">
<{_DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{_DSML}parameter>
...
</{_DSML}invoke>
<{_DSML}invoke name="$TOOL_NAME2">
...
</{_DSML}invoke>
</{_DSML}tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning inside \
{THINK}...{END_THINK} BEFORE any tool calls or final response.

Otherwise, output directly after {END_THINK} with tool calls or final response.

### Available Tool Schemas

"""
_TOOLS_END = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"


def json_text(value: Any) -> str:
    """JSON in the spelling of the format: spaces after separators, characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def tools_section(functions: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n" + _TOOLS + "\n".join(json_text(function) for function in functions) + _TOOLS_END


def response_format_section(schema: Any) -> str:
    return f"\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{json_text(schema)}"


def tool_result(text: str) -> str:
    return f"<tool_result>{text}</tool_result>"


def call_block(calls: Sequence[tuple[str, str]]) -> str:
    """The calls (name, arguments as JSON text) of an assistant turn, "" when there are none."""
    if not calls:
        return ""
    invokes = "\n".join(
        f'<{_DSML}invoke name="{name}">\n{_parameters(arguments)}\n</{_DSML}invoke>' for name, arguments in calls
    )
    return f"\n\n<{_DSML}tool_calls>\n{invokes}\n</{_DSML}tool_calls>"


def _parameters(arguments: str) -> str:
    return "\n".join(
        f'<{_DSML}parameter name="{name}" string="{"true" if isinstance(value, str) else "false"}">'
        f"{value if isinstance(value, str) else json_text(value)}</{_DSML}parameter>"
        for name, value in _argument_values(arguments).items()
    )


def _argument_values(arguments: str) -> Mapping[str, Any]:
    """A call that was cut off has arguments that are no JSON object: they are shown as the text they are."""
    if not arguments.strip():
        return {}
    try:
        values = parse_json(arguments)
    except ValueError:
        return {"arguments": arguments}
    return values if isinstance(values, dict) else {"arguments": arguments}
