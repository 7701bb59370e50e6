// Second moments over depth, branch by branch, and the agreement of gradients.

// Points of one trace at most; of more, the extremes of each stretch are drawn.
const MOST = { predicted: 3000, measured: 400 };

const branchOf = new Int32Array(COUNT).fill(-1);
const placeIn = new Int32Array(COUNT);
const BRANCHES = DATA.branches.map(([path, leaves, joins]) => ({ path, leaves, joins }));
BRANCHES.forEach((branch, b) => branch.path.forEach((i, k) => { branchOf[i] = b; placeIn[i] = k; }));

function chosen() {
  const all = byId("plot-which").value === "all";
  const group = Number(byId("plot-module").value);
  const wanted = new Uint8Array(COUNT);
  const mark = (i) => { if (OPERATIONS.signal[i] && (group === 0 || within(i, group))) wanted[i] = 1; };
  if (all) for (let i = 0; i < COUNT; i++) mark(i);
  else [...OPERATIONS.weighted, ...DATA.merges, ...DATA.outputs].forEach(mark);
  return wanted;
}

// The nearest chosen operation on the branch of another, before it or after it.
function nearest(i, step, wanted) {
  const path = BRANCHES[branchOf[i]].path;
  for (let k = placeIn[i]; k >= 0 && k < path.length; k += step) if (wanted[path[k]]) return path[k];
  return -1;
}

function lines(wanted) {
  const found = [];
  for (const branch of BRANCHES) {
    const path = branch.path.filter((i) => wanted[i]);
    if (!path.length) continue;
    if (branch.leaves !== null) path.unshift(nearest(branch.leaves, -1, wanted));
    if (branch.joins !== null) path.push(nearest(branch.joins, 1, wanted));
    found.push(path.filter((i) => i >= 0));
  }
  return found;
}

function thinned(indices, levels, most) {
  if (indices.length <= most) return indices;
  const kept = new Set();
  const bins = most / 2;
  for (let bin = 0; bin < bins; bin++) {
    let low = -1, high = -1;
    const until = Math.floor((bin + 1) * indices.length / bins);
    for (let k = Math.floor(bin * indices.length / bins); k < until; k++) {
      const i = indices[k], v = levels(i);
      if (v === null) continue;
      if (!(Number.isFinite(v) && v > 0)) { kept.add(i); continue; }
      if (low < 0 || v < levels(low)) low = i;
      if (high < 0 || v > levels(high)) high = i;
    }
    if (low >= 0) kept.add(low).add(high);
  }
  return indices.filter((i) => kept.has(i));
}

function depthTraces(direction, wanted) {
  const scale = direction === "backward" ? byId("plot-scale").value : "element";
  const order = [];
  for (let i = 0; i < COUNT; i++) if (wanted[i]) order.push(i);
  const paths = lines(wanted);
  const traces = [];
  const odd = { high: [], zero: [] };
  const finite = [];
  for (const item of DATA.initialisations) {
    const hue = colour(item.label === "own" ? "--own" : "--plan");
    for (const kind of ["predicted", "measured"]) {
      const column = item[direction + "_" + kind];
      if (!column) continue;
      const signal = item["forward_" + kind];
      const level = (i) => {
        const v = value(column[i]);
        if (v === null || scale === "element") return v;
        if (scale === "tensor") return v * OPERATIONS.numel[i];
        const x = signal && value(signal[i]);
        return x === null ? null : v * x * OPERATIONS.numel[i] ** 2;
      };
      const proper = (i) => { const v = level(i); return v !== null && Number.isFinite(v) && v > 0; };
      const name = `${item.title}, ${kind}`;
      const kept = new Set(thinned(order, level, MOST[kind]));
      for (const i of order) {
        const v = level(i);
        if (v === null) continue;
        if (Number.isNaN(v) || v === Infinity) odd.high.push([i, `${OPERATIONS.name[i]}<br>${name}: ${shown(v)}`, hue]);
        else if (v === 0) odd.zero.push([i, `${OPERATIONS.name[i]}<br>${name}: 0`, hue]);
        else finite.push(v);
      }
      const x = [], y = [], text = [];
      const push = (i) => { x.push(i); y.push(i === null ? null : level(i)); text.push(i === null ? "" : OPERATIONS.name[i]); };
      if (kind === "predicted") {
        for (const path of paths) {
          for (const i of path) {
            if (!proper(i)) push(null);
            else if (kept.has(i)) push(i);
          }
          push(null);
        }
      } else {
        for (const i of order) if (kept.has(i) && proper(i)) push(i);
      }
      traces.push({
        type: "scatter", x, y, text, name, legendgroup: name,
        hovertemplate: "%{text}<br>" + name + ": %{y:.3g}<extra></extra>",
        ...(kind === "predicted"
          ? { mode: order.length > 150 ? "lines" : "lines+markers", line: { color: hue, width: 1.6 }, marker: { color: hue, size: 4 } }
          : { mode: "markers", marker: { color: hue, size: 9, symbol: "circle-open", line: { width: 1.4 } } }),
      });
    }
  }
  let low = Infinity, high = -Infinity;
  for (const v of finite) { low = Math.min(low, v); high = Math.max(high, v); }
  if (!finite.length) [low, high] = [0.1, 10];
  // A flat line should look flat: the axis spans two decades at least.
  const middle = (Math.log10(low) + Math.log10(high)) / 2;
  const bottom = Math.min(Math.log10(low), middle - 1), top = Math.max(Math.log10(high), middle + 1);
  const margin = 0.08 * (top - bottom);
  const range = [bottom - margin * (odd.zero.length ? 2.2 : 1), top + margin * (odd.high.length ? 2.2 : 1)];
  const edge = (points, log, name, symbol) => points.length && traces.push({
    type: "scatter", mode: "markers", name, x: points.map((p) => p[0]), y: points.map(() => 10 ** log),
    text: points.map((p) => p[1]), hovertemplate: "%{text}<extra></extra>",
    marker: { symbol, size: 10, color: points.map((p) => p[2]), line: { width: 2, color: points.map((p) => p[2]) } },
  });
  edge(odd.high, range[1] - margin, "∞ or NaN", "x-thin");
  edge(odd.zero, range[0] + margin, "exactly 0", "triangle-down");
  return { traces, range };
}

function layout(more) {
  const narrow = window.innerWidth < 640;
  const axis = { gridcolor: colour("--grid"), zerolinecolor: colour("--grid"), linecolor: colour("--line") };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--text"), family: "system-ui, sans-serif", size: 12 },
    // The bar of buttons stands above the drawing, whose first points it would hide.
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--dim"), activecolor: colour("--text") },
    margin: { l: narrow ? 52 : 78, r: 12, t: 36, b: 44 }, hovermode: "closest", showlegend: false,
    hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: { color: colour("--text") } },
    ...more,
    xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis },
  };
}

// A legend of the page's own: with plotly's, whose room it must measure first, everything would be drawn twice.
function plotLegend(name, entries) {
  byId("legend-" + name).replaceChildren(...entries.map(([text, sign, hue]) => {
    const mark = element("span", { "aria-hidden": "true", class: "sign" }, sign);
    mark.style.color = hue;
    return element("span", {}, mark, " " + text);
  }));
}

const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };

const SIGNS = { "circle-open": "○", "x-thin": "✕", "triangle-down": "▼" };

function drawDepth(direction) {
  const { traces, range } = depthTraces(direction, chosen());
  plotLegend(direction, traces.map((trace) => [trace.name, SIGNS[trace.marker.symbol] || "—",
    typeof trace.marker.color === "string" ? trace.marker.color : colour("--text")]));
  const titles = { relative: "gradient times signal, (‖x‖ ‖g‖)²", element: "second moment E[g²]", tensor: "squared norm ‖g‖²" };
  const title = { forward: "second moment E[x²]", alike: "differs between inputs, of E[x²]" }[direction] || titles[byId("plot-scale").value];
  const fault = DATA.fault === null ? {} : {
    shapes: [{ type: "line", x0: DATA.fault, x1: DATA.fault, yref: "paper", y0: 0, y1: 1,
      line: { color: colour("--bad"), width: 1.5, dash: "dot" } }],
    annotations: [{ x: DATA.fault, yref: "paper", y: 1, yanchor: "bottom", showarrow: false, font: { color: colour("--bad") },
      text: "first at fault: " + OPERATIONS.name[DATA.fault].slice(-40).replaceAll("<", "‹") }],
  };
  Plotly.react("plot-" + direction, traces, layout({
    ...fault,
    xaxis: { title: { text: "operation, in the order of the forward pass" }, zeroline: false },
    yaxis: { type: "log", title: { text: window.innerWidth < 640 ? "" : title }, range, exponentformat: "power",
      dtick: range[1] - range[0] > 3 ? Math.ceil((range[1] - range[0]) / 9) : "D2" },
  }), CONFIG);
}

function drawAgreement() {
  const table = DATA.tables.agreement;
  if (!table) return;
  const layers = table.rows.map((row) => row[0]);
  const traces = [];
  DATA.initialisations.forEach((item) => {
    const column = table.columns.findIndex((entry) => entry[0] === `GradCosine, ${item.title}`);
    if (column < 0) return;
    const numbers = table.rows.map((row) => { const v = value(row[column]); return Number.isFinite(v) ? v : null; });
    traces.push({ type: "bar", orientation: "h", name: item.title, y: layers, x: numbers,
      marker: { color: colour(item.label === "own" ? "--own" : "--plan") },
      hovertemplate: "%{y}<br>" + item.title + ": %{x:.3g}<extra></extra>" });
  });
  plotLegend("agreement", traces.map((trace) => [trace.name, "■", trace.marker.color]));
  const place = byId("plot-agreement");
  const longest = layers.reduce((most, layer) => Math.max(most, layer.length), 0);
  place.style.height = Math.max(260, Math.min(1000, 90 + 22 * layers.length)) + "px";
  Plotly.react(place, traces, layout({
    barmode: "group", xaxis: { title: { text: "GradCosine" }, range: [0, 1.02] },
    yaxis: { autorange: "reversed", type: "category", ticklabeloverflow: "hide past div" },
    margin: { l: Math.min(window.innerWidth / 3, 20 + 7 * longest), r: 12, t: 12, b: 44 },
  }), CONFIG);
}

function makePlots() {
  const modules = byId("plot-module");
  for (const group of GROUPS) {
    if (group.index && group.depth <= 3 && group.size > 1 && modules.length < 400) {
      modules.append(element("option", { value: group.index }, pathOf(group.index)));
    }
  }
  const parts = [...["forward", "backward", "alike"].map((name) => () => drawDepth(name)), drawAgreement];
  const draw = () => parts.forEach((part) => part());
  for (const id of ["plot-which", "plot-module"]) byId(id).addEventListener("change", draw);
  byId("plot-scale").addEventListener("change", parts[1]);
  darkQuery.addEventListener("change", draw);
  // One after the other, so that the page answers in between.
  const next = () => {
    if (parts.length > drawn) {
      parts[drawn++]();
      setTimeout(next);
    } else document.documentElement.dataset.ready = "true";
  };
  let drawn = 0;
  next();
}
