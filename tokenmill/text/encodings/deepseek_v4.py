"""DeepSeek V4's chat encoding: a conversation as the prompt that the checkpoints were trained on.

No template exists for it; the rules follow the vendor's reference encoder (see deepseek_v4_format.py). Reasoning of
turns before the last user turn is left out, unless tools are declared. Not responsible for reading answers (parsers/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenmill.core.errors import BadRequestError, CheckpointError
from tokenmill.text.encodings import deepseek_v4_format as fmt
from tokenmill.text.encodings.deepseek_v4_messages import Call, Turn, read_functions, read_schema, read_turns
from tokenmill.text.encodings.prompt_pieces import PromptPieces
from tokenmill.text.encodings.replay import ReplayStore, part_key
from tokenmill.text.parsers.deepseek_v4 import tool_parser
from tokenmill.text.parsers.events import collect
from tokenmill.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _Style:
    """How this conversation is written. `keeps_reasoning`: of every turn, not only after the last user turn."""

    is_thinking: bool
    keeps_reasoning: bool
    effort_text: str
    last_user: int


class DeepseekV4Encoding:
    """The release of April 2026; `DeepseekV4Encoding0731` writes the effort paragraphs of the later releases."""

    efforts: Mapping[str, str] = fmt.EFFORTS_APRIL

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._think_id, self._end_think_id, self._assistant_id = (
            _token_id(tokenizer, token) for token in (fmt.THINK, fmt.END_THINK, fmt.ASSISTANT)
        )

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Any = None, **template_kwargs: Any) -> str:
        """The prompt as text. For the keywords see `_pieces`."""
        return self._pieces(messages, tools, **template_kwargs).text()

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Any = None,
        *,
        replay: ReplayStore | None = None,
        replay_scope: str = "",
        **template_kwargs: Any,
    ) -> list[int]:
        """The prompt as ids; turns found in `replay` (under the same scope) are the very ids that were sampled."""
        pieces = self._pieces(messages, tools, replay=replay, replay_scope=replay_scope, **template_kwargs)
        return pieces.encode(self._tokenizer)

    def _pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Any = None,
        *,
        thinking: Any = None,
        enable_thinking: bool | None = None,
        thinking_mode: str | None = None,
        reasoning_effort: str | None = None,
        drop_thinking: bool = True,
        response_format: Any = None,
        developer_is_system: bool = True,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        replay: ReplayStore | None = None,
        replay_scope: str = "",
        **unknown: Any,
    ) -> PromptPieces:
        """
        thinking, enable_thinking, thinking_mode
                              three spellings of one switch; nothing said: on
        reasoning_effort      "none" turns thinking off; nothing said: "high"
        drop_thinking         leave out the reasoning of earlier turns where no tools are declared
        developer_is_system   the role as OpenAI's clients mean it; False: the vendor's internal kind of user turn
        """
        _refuse_unknown(unknown)
        turns = _with_developer(read_turns(messages), developer_is_system)
        turns = _with_declarations(turns, read_functions(tools), read_schema(response_format))
        if continue_final_message:
            turns = [*turns[:-1], _opened(turns[-1])]
        if add_generation_prompt is not False:
            _check_end(turns[-1])
        is_thinking = self._is_thinking(thinking, enable_thinking, thinking_mode, reasoning_effort)
        keeps_reasoning = not drop_thinking or any(turn.functions for turn in turns)
        if is_thinking and not keeps_reasoning:
            turns = _without_old_developers(turns)
        style = _Style(is_thinking, keeps_reasoning, self._effort_text(reasoning_effort), _last_user(turns))
        writer = _Writer(style, turns, replay, replay_scope)
        return writer.write(has_generation_prompt=add_generation_prompt is not False)

    def _is_thinking(self, thinking: Any, enable_thinking: Any, mode: str | None, effort: str | None) -> bool:
        if effort == "none":
            return False
        if isinstance(thinking, Mapping):  # {"type": "enabled"}, as the vendor's API spells it
            thinking = thinking.get("type") != "disabled"
        if mode not in (None, "thinking", "chat"):
            raise BadRequestError(
                f'thinking_mode={mode!r} is not possible: give "thinking" or "chat"', param="thinking_mode"
            )
        said = (thinking, enable_thinking, None if mode is None else mode == "thinking")
        return next((bool(value) for value in said if value is not None), True)

    def _effort_text(self, effort: str | None) -> str:
        if effort in (None, "none"):
            effort = fmt.DEFAULT_EFFORT
        if effort not in self.efforts:
            raise BadRequestError(
                f"reasoning_effort={effort!r} is not possible: give one of none, {', '.join(self.efforts)}",
                param="reasoning_effort",
            )
        return self.efforts[effort]

    def opens_reasoning(self, prompt_token_ids: Sequence[int]) -> bool:
        """Whether the answer to this prompt begins inside the reasoning."""
        for token_id in reversed(prompt_token_ids):
            if token_id in (self._think_id, self._end_think_id, self._assistant_id):
                return token_id == self._think_id
        return False

    def remember(
        self,
        replay: ReplayStore,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
        message: Mapping[str, Any],
        *,
        scope: str = "",
    ) -> bool:
        """Keep an answer for `encode`: the ids that were sampled, and the assistant message the client was sent.

        False, and nothing is kept, when the message is not what these ids say (it was cut at a stop string, say).
        """
        ids = list(output_token_ids)
        if ids and ids[-1] in self._tokenizer.eos_token_ids:
            ids.pop()
        is_thinking = self.opens_reasoning(prompt_token_ids)
        end = ids.index(self._end_think_id) if is_thinking and self._end_think_id in ids else len(ids)
        thought, answer = (ids[:end], ids[end + 1 :]) if is_thinking else ([], ids)
        (turn,) = read_turns([{**message, "role": "assistant"}])
        if self._text(thought) != (turn.reasoning or "") or not _says(self._text(answer), turn):
            return False
        if thought:
            replay.put(_reasoning_key(turn, scope), thought)
        if turn.calls and all(call.id for call in turn.calls):
            replay.put(_calls_key(turn.calls, scope), thought)
        if answer:
            replay.put(_answer_key(turn, scope), answer)
        return True

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


class DeepseekV4Encoding0731(DeepseekV4Encoding):
    """Releases 0731 (Flash) and 0813 (Pro): three efforts instead of two."""

    efforts = fmt.EFFORTS_0731


class _Writer:
    """Writes the turns of one conversation, one after the other."""

    def __init__(self, style: _Style, turns: Sequence[Turn], replay: ReplayStore | None, scope: str) -> None:
        self._style = style
        self._turns = turns
        self._replay = replay
        self._scope = scope
        self._pieces = PromptPieces(fmt.BOUNDARIES)

    def write(self, *, has_generation_prompt: bool) -> PromptPieces:
        self._pieces.text_piece(fmt.BOS)
        if self._style.is_thinking:
            self._pieces.text_piece(self._style.effort_text)
        for index, turn in enumerate(self._turns):
            self._turn(index, turn)
            following = self._turns[index + 1].role if index + 1 < len(self._turns) else None
            if following in ("assistant", "latest_reminder") or (following is None and has_generation_prompt):
                self._transition(index, turn)
        return self._pieces

    def _turn(self, index: int, turn: Turn) -> None:
        if turn.role == "assistant":
            self._assistant(index, turn)
            return
        declared = fmt.tools_section(turn.functions) if turn.functions else ""
        if turn.schema is not None:
            declared += fmt.response_format_section(turn.schema)
        if turn.role == "system":
            self._pieces.text_piece(turn.text + declared)
        elif turn.role == "developer":
            self._pieces.text_piece(fmt.USER + turn.text + declared)
        elif turn.role == "latest_reminder":
            self._pieces.text_piece(fmt.LATEST_REMINDER + turn.text)
        else:
            self._pieces.text_piece(fmt.USER + "\n\n".join(block.render() for block in turn.blocks))

    def _transition(self, index: int, turn: Turn) -> None:
        """What stands between a turn and the answer to it."""
        think = fmt.THINK if self._style.is_thinking else fmt.END_THINK
        if turn.task == "action":
            self._pieces.text_piece(fmt.ASSISTANT + think + fmt.TASKS[turn.task])
        elif turn.task is not None:
            self._pieces.text_piece(fmt.TASKS[turn.task])
        elif turn.role in ("user", "developer"):
            is_old = not self._style.keeps_reasoning and index < self._style.last_user
            self._pieces.text_piece(fmt.ASSISTANT + (fmt.END_THINK if is_old else think))

    def _assistant(self, index: int, turn: Turn) -> None:
        follows_task = index > 0 and self._turns[index - 1].task is not None
        is_kept = self._style.keeps_reasoning or index > self._style.last_user
        if self._style.is_thinking and not follows_task and is_kept:
            self._reasoning(turn)
            self._pieces.text_piece(fmt.END_THINK)
        answer = turn.text + fmt.call_block([(call.name, call.arguments) for call in turn.calls])
        self._part(answer, None if turn.is_open else _answer_key(turn, self._scope))
        if not turn.is_open:
            self._pieces.text_piece(fmt.EOS)

    def _reasoning(self, turn: Turn) -> None:
        """Clients that leave out the reasoning before their calls get it back, as the format wants it there."""
        if turn.reasoning:
            self._part(turn.reasoning, _reasoning_key(turn, self._scope))
        elif turn.calls and all(call.id for call in turn.calls):
            self._part("", _calls_key(turn.calls, self._scope))

    def _part(self, text: str, key: bytes | None) -> None:
        ids = self._replay.get(key) if self._replay is not None and key is not None else None
        if ids is None or not self._pieces.is_at_boundary:
            self._pieces.text_piece(text)
        else:
            self._pieces.id_piece(ids, text)


def _token_id(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        raise CheckpointError(f"chat encoding deepseek_v4 needs the token {token!r}, which the tokenizer lacks")
    return token_id


def _refuse_unknown(unknown: Mapping[str, Any]) -> None:
    names = [name for name, value in unknown.items() if value is not None]
    if names:
        raise BadRequestError(
            f"{names[0]} means nothing to this model's chat encoding: possible are thinking, reasoning_effort, "
            "drop_thinking, response_format, developer_is_system, add_generation_prompt, continue_final_message",
            param=f"chat_template_kwargs.{names[0]}",
        )


def _with_developer(turns: list[Turn], is_system: bool) -> list[Turn]:
    for turn in turns:
        if turn.role == "developer" and not is_system and not turn.text:
            raise BadRequestError(f"{turn.path} is a developer message without content", param=turn.path)
    if not is_system:
        return turns
    return [replace(turn, role="system") if turn.role == "developer" else turn for turn in turns]


def _with_declarations(turns: list[Turn], functions: tuple[Mapping[str, Any], ...], schema: Any) -> list[Turn]:
    """Tools and response format of the request belong to a leading system turn, which is made if there is none."""
    if not functions and schema is None:
        return turns
    head = turns[0] if turns[0].role in ("system", "developer") else Turn("system", "messages[0]")
    rest = turns[1:] if head is turns[0] else turns
    schema = head.schema if schema is None else schema
    return [replace(head, functions=functions or head.functions, schema=schema), *rest]


def _opened(turn: Turn) -> Turn:
    if turn.role != "assistant":
        raise BadRequestError(
            f"continue_final_message needs an assistant message at the end; {turn.path} is of role {turn.role!r}",
            param="continue_final_message",
        )
    return replace(turn, is_open=True)


def _check_end(turn: Turn) -> None:
    """An answer can follow only where the format has a place for one."""
    if turn.role in ("user", "developer", "latest_reminder") or turn.is_open or turn.task is not None:
        return
    raise BadRequestError(
        f"{turn.path} is of role {turn.role!r} and stands last, where nothing can be answered: end with a user or "
        "tool message, or set continue_final_message for an assistant message to go on from",
        param=turn.path,
    )


def _last_user(turns: Sequence[Turn]) -> int:
    return max((i for i, turn in enumerate(turns) if turn.role in ("user", "developer")), default=-1)


def _without_old_developers(turns: list[Turn]) -> list[Turn]:
    last_user = _last_user(turns)
    return [turn for i, turn in enumerate(turns) if turn.role != "developer" or i >= last_user]


def _says(text: str, turn: Turn) -> bool:
    """Whether the text of an answer means the turn's content and calls."""
    parser = tool_parser()
    parsed = collect([*parser.feed(text), *parser.finish()]) if turn.calls else None
    if parsed is None:
        return text == turn.text
    calls = [(call.name, call.arguments) for call in parsed.tool_calls]
    return parsed.content == turn.text and calls == [(call.name, call.arguments) for call in turn.calls]


def _reasoning_key(turn: Turn, scope: str) -> bytes:
    return part_key("reasoning", scope, turn.reasoning)


def _calls_key(calls: Sequence[Call], scope: str) -> bytes:
    return part_key("reasoning before calls", scope, [call.id for call in calls])


def _answer_key(turn: Turn, scope: str) -> bytes:
    return part_key("answer", scope, turn.text, [(call.id, call.name, call.arguments) for call in turn.calls])
