"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const make = (tag, name, text) => Object.assign(document.createElement(tag), { className: name || "", textContent: text || "" });
  let key = sessionStorage.getItem("key") || "";
  const withKey = (more) => Object.assign({}, more, key ? { authorization: "Bearer " + key } : {});

  // -- server-sent events over fetch, which unlike EventSource can carry the key --
  async function* events(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let held = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (held + value).split("\n\n");
      held = parts.pop();
      for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
    }
  }

  // -- figures --
  const sig = (value, digits = 3) => (value === null || value === undefined ? "–" : Number(value.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits }));
  const usd = (value) => (value === null || value === undefined ? "–" : "$" + (value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential(2) : sig(value)));
  const percent = (value) => (value === null || value === undefined ? "–" : (100 * value).toFixed(0) + " %");
  const ms = (value) => (value < 1 ? sig(1000 * value) + " ms" : sig(value) + " s");
  const pair = (q) => (q ? (q.p99 < 1 ? sig(1000 * q.p50) : ms(q.p50)) + " / " + ms(q.p99) : "–");
  const TILES = {
    usd_per_mtok_now: (p) => usd(p.usd_per_mtok_now), usd_per_mtok: (p) => usd(p.usd_per_mtok), usd: (p) => usd(p.usd),
    generation_tok_per_s: (p) => sig(p.generation_tok_per_s), prompt_tok_per_s: (p) => sig(p.prompt_tok_per_s),
    ttft: (p) => pair(p.ttft_s), tpot: (p) => pair(p.tpot_s), prefix_hit_share: (p) => percent(p.prefix_hit_share),
    kv_usage: (p) => percent(p.kv_usage), running: (p) => p.running + " / " + p.waiting,
  };
  const times = (q) => (q ? 1000 * q.p50 : null);
  const part = (value) => (value === null ? null : 100 * value);
  const PLOTS = {
    speed: [["output tok/s", (p) => p.generation_tok_per_s]],
    price: [["now", (p) => p.usd_per_mtok_now], ["so far", (p) => p.usd_per_mtok]],
    latency: [["TTFT", (p) => times(p.ttft_s)], ["TPOT", (p) => times(p.tpot_s)]],
    cache: [["prefix hits", (p) => part(p.prefix_hit_share)], ["KV", (p) => part(p.kv_usage)], ["busy", (p) => part(p.busy_share)]],
  };
  const COLORS = ["#0969da", "#cf222e", "#1a7f37"];
  // A figure between two moments without one has no line: only these get a dot.
  const alone = (u, i) => u.data[i].flatMap((v, at, all) => (v !== null && (all[at - 1] ?? null) === null && (all[at + 1] ?? null) === null ? [at] : []));
  const plots = {};
  let points = [], kept = 900;

  function drawPlot(name) {
    const box = byId("plot-" + name), lines = PLOTS[name];
    const data = [points.map((p) => p.at), ...lines.map(([, value]) => points.map((p) => value(p) ?? null))];
    if (plots[name]) return void plots[name].setData(data);
    const axis = { stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") }, font: "11px system-ui" };
    plots[name] = new uPlot({
      width: Math.max(200, box.clientWidth), height: 150, legend: { live: true }, cursor: { y: false },
      scales: { x: { range: (u, first, last) => [Math.min(first ?? 0, (last ?? 60) - 60), last ?? 60] }, y: { range: (u, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
      axes: [axis, { ...axis, size: 56 }],
      series: [{}, ...lines.map(([label], i) => ({ label, stroke: COLORS[i], width: 2, spanGaps: false, points: { size: 4, fill: COLORS[i], show: true, filter: alone }, value: (u, v) => sig(v) }))],
    }, data, box);
  }
  function redraw() {
    for (const name of Object.keys(plots)) { plots[name].destroy(); delete plots[name]; }
    show();
  }
  function show() {
    const last = points[points.length - 1];
    if (last) for (const [id, text] of Object.entries(TILES)) byId("tile-" + id).textContent = text(last);
    for (const name of Object.keys(PLOTS)) drawPlot(name);
    document.body.dataset.points = points.length;
  }
  function showWorkers(workers) {
    byId("workers").tBodies[0].replaceChildren(...workers.map((w) => {
      const row = document.createElement("tr");
      for (const text of [w.worker_id, w.model, w.state + (w.reason ? ": " + w.reason : ""), w.running, w.waiting, percent(w.kv_usage), w.restarts]) row.append(make("td", "", String(text)));
      return row;
    }));
  }
  function take(news) {
    if (news.interval_s) points = news.points; else points.push(...news.points);
    points = points.slice(-kept);
    showWorkers(news.workers);
    show();
  }
  async function follow() {
    for (;;) {
      try {
        const response = await fetch("/live/events", { headers: withKey() });
        if (response.status === 401) return void askKey();
        if (!response.ok) throw new Error(response.statusText);
        byId("keyForm").hidden = true;
        byId("link").textContent = "connected";
        loadModels();
        for await (const data of events(response)) take(JSON.parse(data));
      } catch (error) { /* the server went away: try again below */ }
      byId("link").textContent = "not connected: trying again";
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
  function askKey() {
    byId("keyForm").hidden = false;
    byId("keyNote").textContent = key ? "this key is wrong" : "";
    byId("key").focus();
  }
  byId("keyForm").addEventListener("submit", (event) => {
    event.preventDefault();
    key = byId("key").value;
    sessionStorage.setItem("key", key);
    follow();
  });
  async function loadModels() {
    const answer = await fetch("/v1/models", { headers: withKey() });
    if (!answer.ok) return;
    const names = (await answer.json()).data.map((model) => model.id), chosen = byId("model").value;
    byId("model").replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
  }

  // -- chat --
  const session = "page-" + (crypto.randomUUID ? crypto.randomUUID() : String(Math.random()).slice(2));
  let messages = [], running = null;

  function addTurn(who, text) {
    const turn = make("div", "turn " + who);
    turn.append(make("div", "who", who), make("div", "text", text));
    byId("log").append(turn);
    byId("log").scrollTop = byId("log").scrollHeight;
    return turn;
  }
  function settings() {
    const body = { model: byId("model").value, temperature: parseFloat(byId("temperature").value), max_tokens: parseInt(byId("max_tokens").value, 10) };
    if (byId("thinking").value) body.thinking = byId("thinking").value === "true";
    if (byId("tools").value.trim()) body.tools = JSON.parse(byId("tools").value);
    return body;
  }
  function history() {
    const system = byId("system").value.trim();
    return system ? [{ role: "system", content: system }, ...messages] : messages;
  }
  // One growing answer: thinking folded away, text, tool calls, and what it cost.
  class Answer {
    constructor(turn) {
      this.turn = turn; this.text = turn.querySelector(".text"); this.content = ""; this.thinking = ""; this.calls = [];
      this.begun = performance.now(); this.first = null; this.usage = null; this.id = null;
    }
    add(chunk) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.id) this.id = chunk.id;
      if (chunk.usage) this.usage = chunk.usage;
      const choice = (chunk.choices || [])[0];
      if (!choice) return;
      const { content, reasoning_content, tool_calls } = choice.delta || {};
      if ((content || reasoning_content || tool_calls) && this.first === null) this.first = performance.now();
      if (reasoning_content) this.think(reasoning_content);
      if (content) { this.content += content; this.text.textContent = this.content; }
      for (const call of tool_calls || []) this.call(call);
      if (choice.finish_reason) this.reason = choice.finish_reason;
    }
    think(text) {
      if (!this.fold) {
        this.fold = document.createElement("details");
        this.fold.append(make("summary", "", "thinking"), make("div", "text"));
        this.text.before(this.fold);
      }
      this.thinking += text;
      this.fold.lastChild.textContent = this.thinking;
    }
    call(part) {
      const call = this.calls[part.index] = this.calls[part.index] || { id: "", type: "function", function: { name: "", arguments: "" }, box: this.turn.appendChild(make("pre", "call")) };
      if (part.id) call.id = part.id;
      call.function.name += part.function?.name || "";
      call.function.arguments += part.function?.arguments || "";
      call.box.textContent = call.function.name + "(" + call.function.arguments + ")";
    }
    message() {
      const message = { role: "assistant", content: this.content };
      if (this.thinking) message.reasoning_content = this.thinking;
      if (this.calls.length) message.tool_calls = this.calls.map(({ id, type, function: f }) => ({ id, type, function: f }));
      return message;
    }
    note() {
      const seconds = (performance.now() - this.begun) / 1000, parts = [];
      if (this.usage) {
        const n = this.usage.completion_tokens, cached = this.usage.prompt_tokens_details?.cached_tokens || 0, cost = this.usage.cost;
        parts.push(this.usage.prompt_tokens + " + " + n + " tokens" + (cached ? " (" + cached + " cached)" : ""));
        if (cost) parts.push(usd(cost.usd) + ", " + sig(cost.joules) + " J " + cost.energy_source);
        if (this.first !== null && n > 1) parts.push(sig((n - 1) / (seconds - (this.first - this.begun) / 1000)) + " tok/s");
      }
      if (this.first !== null) parts.push("first after " + ms((this.first - this.begun) / 1000));
      if (!this.usage && this.charged) parts.unshift(usd(this.charged.usd));
      if (this.reason === "length") parts.push("cut at the most tokens");
      return parts.join(" · ");
    }
  }
  // An answer that was stopped has no usage: the ledger knows what it cost, once the worker has told its last step.
  async function askCost(answer) {
    for (let tries = 0; answer.id && !answer.usage && tries < 20; tries++) {
      await new Promise((done) => setTimeout(done, 100));
      const reply = await fetch("/v1/cost?request_id=" + encodeURIComponent(answer.id), { headers: withKey() }).catch(() => null);
      const charged = reply?.ok ? await reply.json() : null;
      if (charged?.choices.every((choice) => choice.is_ended)) return void (answer.charged = charged);
    }
  }
  async function generate() {
    const answer = new Answer(addTurn("assistant", ""));
    running = new AbortController();
    buttons();
    try {
      const body = { ...settings(), messages: history(), stream: true, stream_options: { include_usage: true }, session_id: session };
      const response = await fetch("/v1/chat/completions", { method: "POST", headers: withKey({ "content-type": "application/json" }), body: JSON.stringify(body), signal: running.signal });
      if (!response.ok) throw new Error((await response.json()).error?.message || response.statusText);
      for await (const data of events(response)) if (data !== "[DONE]") { answer.add(JSON.parse(data)); byId("log").scrollTop = byId("log").scrollHeight; }
    } catch (error) {
      const stopped = error.name === "AbortError";
      answer.turn.append(make("div", stopped ? "note" : "error", stopped ? "stopped" : String(error.message)));
    }
    running = null;
    const note = answer.turn.appendChild(make("div", "note", answer.note()));
    askCost(answer).then(() => { note.textContent = answer.note(); });
    if (answer.content || answer.calls.length) messages.push(answer.message());
    document.body.dataset.answers = Number(document.body.dataset.answers || 0) + 1;
    buttons();
  }
  function buttons() {
    byId("send").disabled = byId("fresh").disabled = running !== null;
    byId("stop").disabled = running === null;
    byId("again").disabled = running !== null || !messages.some((m) => m.role === "user");
  }
  function send() {
    const text = byId("prompt").value.trim();
    if (!text || running) return;
    byId("prompt").value = "";
    messages.push({ role: "user", content: text });
    addTurn("user", text);
    generate();
  }
  function again() {
    if (running) return;
    if (messages.at(-1)?.role === "assistant") messages.pop();
    const last = byId("log").lastElementChild;
    if (last?.classList.contains("assistant")) last.remove();
    generate();
  }
  byId("ask").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  byId("prompt").addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); } });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && running) running.abort(); });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("again").addEventListener("click", again);
  byId("fresh").addEventListener("click", () => { messages = []; byId("log").replaceChildren(); buttons(); });
  new ResizeObserver(() => { for (const name of Object.keys(plots)) plots[name].setSize({ width: Math.max(200, byId("plot-" + name).clientWidth), height: 150 }); }).observe(byId("figures"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  show();
  follow();
})();
