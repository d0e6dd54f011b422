// Runs the checks of one Node client and prints the result as one JSON line.
import { readFileSync } from "node:fs";
import { resolve } from "node:path";

export const URL_ = process.env.TOKENMILL_URL;
export const MODEL = process.env.TOKENMILL_MODEL;
export const KEY = process.env.TOKENMILL_KEY;
export const CITY = {
  type: "object",
  properties: { city: { type: "string", maxLength: 20 } },
  required: ["city"],
  additionalProperties: false,
};
// Long enough for its beginning to be found in the prefix cache the second time.
export const LONG =
  "Read this list of words and say which comes last. " + Array.from({ length: 60 }, (_, i) => `word${i}`).join(" ");

export function assert(isTrue, what) {
  if (!isTrue) throw new Error(`not so: ${typeof what === "string" ? what : JSON.stringify(what)}`);
}

export function checkCost(cost) {
  assert(cost && cost.usd > 0 && cost.joules > 0 && ["measured", "modelled"].includes(cost.energy_source), cost ?? "no cost");
  return cost;
}

export function checkCity(value) {
  assert(value && typeof value.city === "string" && Object.keys(value).length === 1, value ?? "nothing");
  return value;
}

export async function run(packages, checks) {
  const results = {};
  for (const [name, check] of Object.entries(checks)) {
    const began = performance.now();
    try {
      results[name] = { ok: true, detail: await check() };
    } catch (error) {
      results[name] = { ok: false, detail: String(error), trace: String(error.stack).slice(-1500) };
    }
    results[name].seconds = Math.round(performance.now() - began) / 1000;
  }
  const versions = { node: process.version };
  for (const name of packages) {
    versions[name] = JSON.parse(readFileSync(resolve("node_modules", name, "package.json"))).version;
  }
  console.log(JSON.stringify({ versions, checks: results }));
}
