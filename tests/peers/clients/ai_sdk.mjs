// Vercel's AI SDK with its provider for OpenAI-compatible servers.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { KEY, LONG, MODEL, URL_, assert, checkCity, checkCost, run } from "./checks.mjs";

const options = { name: "tokenmill", baseURL: `${URL_}/v1`, apiKey: KEY, includeUsage: true, supportsStructuredOutputs: true };
const model = createOpenAICompatible(options)(MODEL);
const schema = z.strictObject({ city: z.string().max(20) });

await run(["ai", "@ai-sdk/openai-compatible", "zod"], {
  async chat() {
    const { text } = await generateText({ model, system: "Be brief.", prompt: "Say hello.", maxOutputTokens: 20 });
    assert(text, "there is a text");
    return text;
  },
  async stream() {
    const result = streamText({ model, prompt: "Say hello.", maxOutputTokens: 20, temperature: 0 });
    let text = "";
    for await (const delta of result.textStream) text += delta;
    assert(text && text === (await result.text) && (await result.usage).outputTokens > 0, text);
    return text;
  },
  async tools() {
    const inputs = [];
    const weather = tool({
      description: "The weather of a city",
      inputSchema: schema,
      execute: async (input) => (inputs.push(input), "sunny"),
    });
    const result = await generateText({
      model,
      prompt: "What is the weather in Paris?",
      tools: { weather },
      maxOutputTokens: 60,
      temperature: 0,
      stopWhen: stepCountIs(2),
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
    });
    assert(inputs.length > 0 && result.steps.length === 2, result.steps.length);
    return checkCity(inputs[0]);
  },
  async structured() {
    const { object } = await generateObject({ model, schema, prompt: "Name a city.", maxOutputTokens: 60 });
    return checkCity(object);
  },
  async usage_and_cost() {
    await generateText({ model, prompt: LONG, maxOutputTokens: 4 });
    const { usage } = await generateText({ model, prompt: LONG, maxOutputTokens: 4 });
    assert(usage.inputTokenDetails.cacheReadTokens > 0 && usage.outputTokens <= 4, usage);
    return checkCost(usage.raw.cost);
  },
});
