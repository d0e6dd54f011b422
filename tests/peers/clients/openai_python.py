"""The `openai` Python SDK: chat completions and Responses."""

import json

from checks import CITY, KEY, LONG, MODEL, URL, check_city, check_cost, run
from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=f"{URL}/v1", api_key=KEY)
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
FUNCTION = {"name": "get_weather", "description": "The weather of a city", "parameters": CITY}
TOOL = {"type": "function", "function": FUNCTION}


class City(BaseModel):
    city: str


def chat():
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20)
    assert answer.choices[0].message.content and answer.choices[0].finish_reason in ("stop", "length")
    return answer.choices[0].message.content


def stream():
    fields = {"model": MODEL, "messages": HELLO, "max_tokens": 20, "seed": 1}
    chunks = list(client.chat.completions.create(stream=True, **fields))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == client.chat.completions.create(**fields).choices[0].message.content
    return text


def tools():
    """The call streamed and whole, and its result sent back."""
    fields = {"model": MODEL, "messages": WEATHER, "tools": [TOOL], "temperature": 0, "max_tokens": 100}
    fields |= {"tool_choice": "required", "parallel_tool_calls": False}
    message = client.chat.completions.create(**fields).choices[0].message
    (call,) = message.tool_calls
    with client.chat.completions.stream(**fields) as events:
        (streamed,) = events.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments and call.function.name == "get_weather"
    check_city(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    answer = client.chat.completions.create(
        model=MODEL, messages=[*WEATHER, message, result], tools=[TOOL], max_tokens=20
    )
    assert answer.choices[0].finish_reason
    return call.function.arguments


def structured():
    answer = client.chat.completions.parse(model=MODEL, messages=WEATHER, response_format=City, max_tokens=60)
    assert isinstance(answer.choices[0].message.parsed, City)
    return answer.choices[0].message.content


def usage_and_cost():
    messages = [{"role": "user", "content": LONG}]
    client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    usage = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4).usage
    assert usage.completion_tokens <= 4 and usage.prompt_tokens_details.cached_tokens > 0
    options = {"include_usage": True}
    *_, last = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=4, stream=True, stream_options=options
    )
    assert last.usage.prompt_tokens == usage.prompt_tokens and not last.choices
    check_cost(last.usage.model_extra["cost"])
    return check_cost(usage.model_extra["cost"])


def responses():
    response = client.responses.create(model=MODEL, input="Say hello.", instructions="Be brief.", max_output_tokens=20)
    assert response.output_text
    follow = client.responses.create(
        model=MODEL, input="Again.", previous_response_id=response.id, max_output_tokens=20
    )
    assert follow.usage.input_tokens > response.usage.input_tokens
    return check_cost(response.usage.model_extra["cost"])


def responses_stream():
    with client.responses.stream(model=MODEL, input="Say hello.", max_output_tokens=200, temperature=0) as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        final = events.get_final_response()
    assert final.output_text == text and final.usage.output_tokens > 0
    return text


def responses_tools():
    tool = {"type": "function", "strict": True, **FUNCTION}
    fields = {"model": MODEL, "tools": [tool], "temperature": 0, "max_output_tokens": 100}
    first = client.responses.create(input=WEATHER, tool_choice="required", parallel_tool_calls=False, **fields)
    (call,) = [item for item in first.output if item.type == "function_call"]
    check_city(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps({"sky": "clear"})}
    second = client.responses.create(input=[result], previous_response_id=first.id, **fields)
    assert second.status in ("completed", "incomplete")
    return call.arguments


def responses_structured():
    response = client.responses.parse(model=MODEL, input=WEATHER, text_format=City, max_output_tokens=60)
    assert isinstance(response.output_parsed, City)
    return response.output_text


run(
    ["openai"],
    {
        "chat": chat,
        "stream": stream,
        "tools": tools,
        "structured": structured,
        "usage_and_cost": usage_and_cost,
        "responses": responses,
        "responses_stream": responses_stream,
        "responses_tools": responses_tools,
        "responses_structured": responses_structured,
    },
)
