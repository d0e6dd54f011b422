"""LiteLLM: the OpenAI way to this server, and the Anthropic way."""

import litellm
from checks import CITY, KEY, LONG, MODEL, URL, check_city, check_cost, run
from pydantic import BaseModel

OPENAI = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY}
ANTHROPIC = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": KEY}
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
FUNCTION = {"name": "get_weather", "description": "The weather of a city", "parameters": CITY}
TOOL = {"type": "function", "function": FUNCTION}


class City(BaseModel):
    city: str


def chat():
    answer = litellm.completion(messages=HELLO, max_tokens=20, **OPENAI)
    assert answer.choices[0].message.content
    return answer.choices[0].message.content


def stream():
    fields = {"messages": HELLO, "max_tokens": 20, "temperature": 0}
    whole = litellm.completion(**fields, **OPENAI).choices[0].message.content
    chunks = list(litellm.completion(stream=True, **fields, **OPENAI))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole
    return text


def tools():
    fields = {"tools": [TOOL], "temperature": 0, "max_tokens": 100}
    answer = litellm.completion(messages=WEATHER, tool_choice="required", parallel_tool_calls=False, **fields, **OPENAI)
    message = answer.choices[0].message
    (call,) = message.tool_calls
    check_city(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    assert litellm.completion(messages=[*WEATHER, message, result], **fields, **OPENAI).choices[0].finish_reason
    return call.function.arguments


def structured():
    answer = litellm.completion(messages=WEATHER, response_format=City, max_tokens=60, **OPENAI)
    return check_city(answer.choices[0].message.content)


def usage_and_cost():
    messages = [{"role": "user", "content": LONG}]
    litellm.completion(messages=messages, max_tokens=1, **OPENAI)
    usage = litellm.completion(messages=messages, max_tokens=4, **OPENAI).usage
    assert usage.prompt_tokens_details.cached_tokens > 0 and usage.completion_tokens <= 4
    return check_cost(usage.cost)


def over_messages():
    answer = litellm.completion(messages=HELLO, max_tokens=20, **ANTHROPIC)
    assert answer.choices[0].message.content and answer.usage.completion_tokens > 0
    chunks = list(litellm.completion(messages=HELLO, max_tokens=20, stream=True, **ANTHROPIC))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    return answer.choices[0].message.content


run(
    ["litellm"],
    {
        "chat": chat,
        "stream": stream,
        "tools": tools,
        "structured": structured,
        "usage_and_cost": usage_and_cost,
        "over_messages": over_messages,
    },
)
