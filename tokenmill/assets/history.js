"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const NAMES = { usd_per_mtok_total: "$ per million tokens, total", usd_per_mtok_output: "$ per million output tokens",
    output_tput_per_s: "output tokens/s", ttft_s_p50: "TTFT, median (s)", tpot_s_p50: "TPOT, median (s)" };
  const keys = Object.keys(NAMES).filter((key) => data.releases.some((r) => r[key] !== null));
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const refs = data.releases.map((r) => r.ref);
  let plot = null;
  for (const key of keys) byId("figure").add(new Option(NAMES[key], key));

  function draw() {
    const key = byId("figure").value, grid = { stroke: css("--line"), width: 1 };
    const axis = { stroke: css("--text"), grid, ticks: grid };
    if (plot) plot.destroy();
    plot = new uPlot({
      width: byId("chart").clientWidth, height: 360, legend: { show: false },
      scales: { x: { time: false, range: [-0.5, refs.length - 0.5] }, y: { range: (u, low, high) => [0, (high || 1) * 1.1] } },
      series: [{}, { stroke: css("--accent"), width: 2, points: { show: true, size: 10, fill: css("--accent") } }],
      axes: [{ ...axis, splits: () => refs.map((_, i) => i), values: () => refs }, { ...axis, label: NAMES[key], size: 80 }],
    }, [refs.map((_, i) => i), data.releases.map((r) => r[key])], byId("chart"));
    document.body.dataset.drawn = key;
  }

  function cells(tag, texts) {
    const row = document.createElement("tr");
    for (const text of texts) { const cell = document.createElement(tag); cell.textContent = text; row.append(cell); }
    return row;
  }
  const figure = (value) => value === null ? "–" : Number(value.toPrecision(4)).toString();
  byId("table").tHead.append(cells("th", ["release", "commit", ...keys.map((key) => NAMES[key])]));
  for (const r of data.releases)
    byId("table").tBodies[0].append(cells("td", [r.ref, r.commit.slice(0, 12), ...keys.map((key) => figure(r[key]))]));
  byId("figure").addEventListener("input", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", draw);
  byId("about").textContent = JSON.stringify(data.about, null, 2);
  draw();
})();
