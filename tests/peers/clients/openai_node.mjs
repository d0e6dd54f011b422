// The `openai` SDK for Node: chat completions and Responses.
import OpenAI from "openai";
import { CITY, KEY, LONG, MODEL, URL_, assert, checkCity, checkCost, run } from "./checks.mjs";

const client = new OpenAI({ baseURL: `${URL_}/v1`, apiKey: KEY });
const model = MODEL;
const HELLO = [
  { role: "system", content: "Be brief." },
  { role: "user", content: "Say hello." },
];
const WEATHER = [{ role: "user", content: "What is the weather in Paris?" }];
const FUNCTION = { name: "get_weather", description: "The weather of a city", parameters: CITY };
const TOOL = { type: "function", function: FUNCTION };
const schema = { name: "city", schema: CITY, strict: true };

await run(["openai"], {
  async chat() {
    const answer = await client.chat.completions.create({ model, messages: HELLO, max_tokens: 20 });
    assert(answer.choices[0].message.content, "there is a text");
    return answer.choices[0].message.content;
  },
  async stream() {
    let text = "";
    const events = client.chat.completions.stream({ model, messages: HELLO, max_tokens: 20, temperature: 0 });
    for await (const chunk of events) text += chunk.choices[0]?.delta.content ?? "";
    assert(text && text === (await events.finalContent()), "the deltas are the final text");
    return text;
  },
  async tools() {
    const fields = { model, tools: [TOOL], temperature: 0, max_tokens: 100 };
    const choice = { tool_choice: "required", parallel_tool_calls: false };
    const answer = await client.chat.completions.create({ ...fields, ...choice, messages: WEATHER });
    const message = answer.choices[0].message;
    assert(message.tool_calls.length === 1, message);
    const call = message.tool_calls[0];
    const streamed = await client.chat.completions.stream({ ...fields, ...choice, messages: WEATHER }).finalMessage();
    assert(streamed.tool_calls[0].function.arguments === call.function.arguments, streamed);
    const result = { role: "tool", tool_call_id: call.id, content: "sunny" };
    const last = await client.chat.completions.create({ ...fields, messages: [...WEATHER, message, result] });
    assert(last.choices[0].finish_reason, last);
    return checkCity(JSON.parse(call.function.arguments));
  },
  async structured() {
    const response_format = { type: "json_schema", json_schema: schema };
    const answer = await client.chat.completions.create({ model, messages: WEATHER, response_format, max_tokens: 60 });
    return checkCity(JSON.parse(answer.choices[0].message.content));
  },
  async usage_and_cost() {
    const fields = { model, messages: [{ role: "user", content: LONG }], max_tokens: 4 };
    await client.chat.completions.create(fields);
    const { usage } = await client.chat.completions.create(fields);
    assert(usage.prompt_tokens_details.cached_tokens > 0 && usage.completion_tokens <= 4, usage);
    return checkCost(usage.cost);
  },
  async responses() {
    const events = client.responses.stream({ model, input: "Say hello.", max_output_tokens: 200, temperature: 0 });
    let text = "";
    for await (const event of events) if (event.type === "response.output_text.delta") text += event.delta;
    const final = await events.finalResponse();
    assert(text && final.output_text === text, final);
    const tools = [{ type: "function", strict: true, ...FUNCTION }];
    const fields = { model, tools, temperature: 0, max_output_tokens: 100 };
    const first = await client.responses.create({ ...fields, input: WEATHER, tool_choice: "required" });
    const calls = first.output.filter((item) => item.type === "function_call");
    assert(calls.length > 0, first);
    const input = calls.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: "sunny" }));
    const second = await client.responses.create({ ...fields, input, previous_response_id: first.id });
    assert(second.usage.output_tokens > 0, second);
    return checkCost(final.usage.cost);
  },
});
