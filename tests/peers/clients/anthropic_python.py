"""The `anthropic` Python SDK: Messages and count_tokens."""

from anthropic import Anthropic, BadRequestError
from checks import CITY, KEY, LONG, MODEL, URL, check_city, check_cost, run
from pydantic import BaseModel

client = Anthropic(base_url=URL, api_key=KEY)
HELLO = [{"role": "user", "content": "Say hello."}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {"name": "get_weather", "description": "The weather of a city", "input_schema": CITY}


class City(BaseModel):
    city: str


def chat():
    message = client.messages.create(model=MODEL, messages=HELLO, system="Be brief.", max_tokens=20)
    assert message.content[0].text and message.stop_reason in ("end_turn", "max_tokens")
    return message.content[0].text


def stream():
    with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=20) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert final.content[0].text == text and final.usage.output_tokens > 0
    return text


def tools():
    fields = {"model": MODEL, "messages": WEATHER, "tools": [TOOL], "max_tokens": 100, "extra_body": {"temperature": 0}}
    fields |= {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    message = client.messages.create(**fields)
    (call,) = message.content
    assert message.stop_reason == "tool_use" and call.name == "get_weather" and isinstance(call.input["city"], str)
    with client.messages.stream(**fields) as events:
        (streamed,) = events.get_final_message().content
    assert streamed.input == call.input
    turns = [*WEATHER, {"role": "assistant", "content": message.content}]
    turns += [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}]
    answer = client.messages.create(model=MODEL, messages=turns, tools=[TOOL], max_tokens=20)
    assert answer.stop_reason
    return call.input


def structured():
    message = client.messages.create(
        model=MODEL,
        messages=WEATHER,
        max_tokens=60,
        output_config={"format": {"type": "json_schema", "schema": CITY}},
    )
    return check_city(message.content[0].text)


def usage_and_cost():
    messages = [{"role": "user", "content": LONG}]
    client.messages.create(model=MODEL, messages=messages, max_tokens=1)
    message = client.messages.create(model=MODEL, messages=messages, max_tokens=4)
    usage = message.usage
    counted = client.messages.count_tokens(model=MODEL, messages=messages)
    assert usage.cache_read_input_tokens > 0
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    return check_cost(usage.model_extra["cost"])


def stop_sequence():
    message = client.messages.create(model=MODEL, messages=HELLO, max_tokens=40, stop_sequences=["e", "a", "o"])
    assert message.stop_reason == "stop_sequence" and message.stop_sequence in ("e", "a", "o")
    return message.stop_sequence


def errors():
    try:
        client.messages.create(model=MODEL, messages=HELLO, max_tokens=20_000)
    except BadRequestError as error:
        assert error.body["error"]["type"] == "invalid_request_error"
        return error.body["error"]["message"]
    raise AssertionError("accepted")


run(
    ["anthropic"],
    {
        "chat": chat,
        "stream": stream,
        "tools": tools,
        "structured": structured,
        "usage_and_cost": usage_and_cost,
        "stop_sequence": stop_sequence,
        "errors": errors,
    },
)
