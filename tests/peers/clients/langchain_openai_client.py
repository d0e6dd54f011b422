"""LangChain: ChatOpenAI over chat completions, and over Responses."""

from checks import KEY, LONG, MODEL, URL, check_cost, run
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

model = ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key=KEY, max_tokens=60, temperature=0)
HELLO = [SystemMessage("Be brief."), HumanMessage("Say hello.")]
WEATHER = [HumanMessage("What is the weather in Paris?")]


class City(BaseModel):
    """A city."""

    city: str


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def chat():
    answer = model.invoke(HELLO)
    assert answer.content
    return answer.content


def stream():
    whole = None
    for chunk in model.stream(HELLO, stream_usage=True):
        whole = chunk if whole is None else whole + chunk
    assert whole.content == model.invoke(HELLO).content and whole.usage_metadata["output_tokens"] > 0
    return whole.content


def tools():
    bound = model.bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
    answer = bound.invoke(WEATHER)
    (call,) = answer.tool_calls
    assert call["name"] == "get_weather" and isinstance(call["args"]["city"], str)
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    final = model.bind_tools([get_weather]).invoke([*WEATHER, answer, result])
    assert final.response_metadata["finish_reason"]
    return call["args"]


def structured():
    found = {}
    for method in ("json_schema", "function_calling"):
        city = model.with_structured_output(City, method=method).invoke(WEATHER)
        assert isinstance(city, City), (method, city)
        found[method] = city.city
    return found


def usage_and_cost():
    model.invoke([HumanMessage(LONG)])
    answer = model.invoke([HumanMessage(LONG)])
    assert answer.usage_metadata["input_token_details"]["cache_read"] > 0
    return check_cost(answer.response_metadata["token_usage"]["cost"])


def responses():
    over = ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key=KEY, use_responses_api=True, temperature=0)
    bound = over.bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
    answer = bound.invoke(WEATHER)
    (call,) = answer.tool_calls
    final = over.invoke([*WEATHER, answer, get_weather.invoke(call)], max_output_tokens=40)
    assert final.usage_metadata["output_tokens"] > 0
    return call["args"]


run(
    ["langchain-openai", "langchain-core"],
    {
        "chat": chat,
        "stream": stream,
        "tools": tools,
        "structured": structured,
        "usage_and_cost": usage_and_cost,
        "responses": responses,
    },
)
