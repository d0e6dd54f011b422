"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const AXES = {
    interactivity: { name: "tokens/s per user (1 / TPOT, median)", better: 1 },
    tput_per_gpu: { name: "tokens/s per device, total", better: 1 },
    output_tput_per_gpu: { name: "output tokens/s per device", better: 1 },
    usd_per_mtok_total: { name: "$ per million tokens, total", better: -1 },
    usd_per_mtok_output: { name: "$ per million output tokens", better: -1 },
    joules_per_token: { name: "J per output token", better: -1 },
    ttft_s_p50: { name: "TTFT, median (s)", better: -1 },
  };
  const COLORS = ["#0969da", "#cf222e", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#0a7a86", "#bc4c00", "#57606a"];
  const scenarios = [...new Set(data.points.map((p) => p.scenario))];
  const curves = [...new Set(data.points.map((p) => p.curve))];
  const color = (curve) => COLORS[curves.indexOf(curve) % COLORS.length];
  const hidden = new Set();
  let plot = null, drawn = [];

  const known = (key) => data.points.some((p) => p[key] !== null);
  function fill(select, keys, chosen) {
    for (const key of keys.filter(known)) select.add(new Option(AXES[key].name, key, key === chosen, key === chosen));
  }
  fill(byId("x"), ["interactivity", "ttft_s_p50"], "interactivity");
  fill(byId("y"), Object.keys(AXES).filter((key) => key !== "interactivity" && key !== "ttft_s_p50"), "tput_per_gpu");
  if (data.ttftBoundS !== null) byId("bound").value = data.ttftBoundS * 1000;

  for (const name of scenarios) byId("scenario").add(new Option(name, name));
  byId("scenarioLabel").hidden = scenarios.length < 2;
  const inScenario = (point) => point.scenario === byId("scenario").value;

  function withinBound(point) {
    const bound = parseFloat(byId("bound").value);
    return !(bound >= 0) || point.ttft_s_p50 === null || point.ttft_s_p50 * 1000 <= bound;
  }

  // Points of one curve that none of its others beats on both axes; a point of unknown value is on no frontier.
  function frontier(points, x, y) {
    const able = points.filter((p) => p.is_valid && withinBound(p) && p[x] !== null && p[y] !== null);
    const [bx, by] = [AXES[x].better, AXES[y].better];
    const best = [];
    for (const p of [...able].sort((a, b) => bx * (b[x] - a[x]) || by * (b[y] - a[y])))
      if (!best.length || by * (p[y] - best[best.length - 1][y]) > 0) best.push(p);
    return new Set(best);
  }

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function table(points, x, y) {
    const sorted = [...points].sort((a, b) => a[x] - b[x]);
    const columns = [sorted.map((p) => p[x]), sorted.map((p) => p[y])];
    return [columns, sorted];
  }

  function draw() {
    const x = byId("x").value, y = byId("y").value, isLog = byId("log").checked;
    const shown = curves.filter((curve) => !hidden.has(curve));
    drawn = data.points.filter((p) => inScenario(p) && shown.includes(p.curve) && p[x] !== null && p[y] !== null);
    const tables = [], series = [{ label: AXES[x].name }], best = new Set();
    for (const curve of shown) {
      const points = drawn.filter((p) => p.curve === curve);
      const front = frontier(points, x, y);
      front.forEach((p) => best.add(p));
      const rest = points.filter((p) => !front.has(p));
      const dash = points.some((p) => p.kind === "published") ? [6, 4] : undefined;
      const shared = { stroke: color(curve), spanGaps: true };
      tables.push(table([...front], x, y)[0]);
      series.push({ ...shared, label: curve, width: 2, dash, points: { show: true, size: 8, fill: color(curve) } });
      if (rest.length) {
        tables.push(table(rest, x, y)[0]);
        series.push({ ...shared, label: curve + " (beaten)", width: 0, paths: () => null,
          points: { show: true, size: 7, fill: css("--back") } });
      }
    }
    const width = byId("chart").clientWidth;
    const grid = { stroke: css("--line"), width: 1 };
    const axis = (key) => ({ label: AXES[key].name, stroke: css("--text"), grid, ticks: grid, size: key === x ? 50 : 75 });
    const options = {
      width, height: Math.max(420, Math.min(600, width * 0.55)), series, axes: [axis(x), axis(y)],
      scales: { x: { time: false, distr: isLog ? 3 : 1, range: isLog ? undefined : padded }, y: { distr: isLog ? 3 : 1, range: isLog ? undefined : fromZero } },
      legend: { show: false },
      hooks: { setCursor: [(u) => tellNearest(u, x, y)] },
    };
    if (plot) plot.destroy();
    byId("chart").replaceChildren();
    const joined = tables.length ? uPlot.join(tables.map((t) => dedupe(t))) : [[], []];
    plot = tables.length ? new uPlot(options, joined, byId("chart")) : null;
    rows(shown, best);
    document.body.dataset.drawn = String(tables.length);
  }

  function tellNearest(u, x, y) {
    const { left, top } = u.cursor;
    if (left < 0 || !drawn.length) return;
    const away = (p) => Math.hypot(u.valToPos(p[x], "x") - left, u.valToPos(p[y], "y") - top);
    const p = drawn.reduce((a, b) => (away(b) < away(a) ? b : a));
    byId("near").textContent = `${p.curve}, concurrency ${p.concurrency}: ${figure(p.interactivity)} tok/s/user, `
      + `${figure(p.tput_per_gpu)} tok/s/device, TTFT ${figure(p.ttft_s_p50)} s, $${figure(p.usd_per_mtok_total)}/M total`;
  }

  function padded(u, low, high) {
    const room = ((high - low) || high || 1) * 0.04;
    return [Math.max(0, low - room), high + room];
  }

  const fromZero = (u, low, high) => [0, (high || 1) * 1.05];

  // uPlot needs rising x without repeats; a repeat is moved by a hair so that both points stay visible.
  function dedupe([xs, ys]) {
    const out = [];
    xs.forEach((value, i) => out.push(i && value <= out[i - 1] ? out[i - 1] + Math.abs(out[i - 1]) * 1e-9 + 1e-12 : value));
    return [out, ys];
  }

  const COLUMNS = [["curve", "curve"], ["kind", "kind"], ["concurrency", "conc."], ["interactivity", "tok/s/user"],
    ["tput_per_gpu", "tok/s/device"], ["output_tput_per_gpu", "output"], ["ttft_s_p50", "TTFT p50 (s)"],
    ["usd_per_mtok_total", "$/M total"], ["usd_per_mtok_output", "$/M output"], ["joules_per_token", "J/token"],
    ["num_devices", "devices"], ["source", "source"]];

  function cell(text) { const td = document.createElement("td"); td.textContent = text; return td; }
  const figure = (value) => value === null ? "–" : typeof value === "number" ? Number(value.toPrecision(4)).toString() : value;

  function rows(shown, best) {
    const head = document.createElement("tr");
    for (const [, name] of COLUMNS) { const th = document.createElement("th"); th.scope = "col"; th.textContent = name; head.append(th); }
    byId("table").tHead.replaceChildren(head);
    byId("table").tBodies[0].replaceChildren(...data.points.filter((p) => inScenario(p) && shown.includes(p.curve)).map((p) => {
      const row = document.createElement("tr");
      row.append(...COLUMNS.map(([key]) => cell(figure(p[key]))));
      const swatch = document.createElement("span");
      swatch.className = "swatch";
      swatch.style.background = best.has(p) ? color(p.curve) : "transparent";
      swatch.style.border = "2px solid " + color(p.curve);
      row.firstChild.prepend(swatch);
      if (!best.has(p)) row.className = "dim";
      return row;
    }));
  }

  for (const curve of curves) {
    const label = document.createElement("label"), box = document.createElement("input"), swatch = document.createElement("span");
    label.className = "row"; box.type = "checkbox"; box.checked = true;
    swatch.className = "swatch"; swatch.style.background = color(curve);
    box.addEventListener("change", () => { box.checked ? hidden.delete(curve) : hidden.add(curve); draw(); });
    label.append(box, swatch, curve);
    byId("curves").append(label);
  }
  for (const id of ["scenario", "x", "y", "bound", "log"]) byId(id).addEventListener("input", draw);
  byId("theme").addEventListener("click", () => {
    const isDark = getComputedStyle(document.documentElement).colorScheme === "dark"
      || (document.documentElement.dataset.theme === undefined && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.theme = isDark ? "light" : "dark";
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", draw);
  byId("about").textContent = JSON.stringify(data.about, null, 2);
  draw();
})();
