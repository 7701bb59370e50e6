// The graph as nested boxes: a module is one box until it is unfolded, and then holds the boxes of what is in it. Each box's
// inside is laid out by itself, in layers (Sugiyama, Tagawa & Toda 1981), so that unfolding never moves more than it must.

const SVG = "http://www.w3.org/2000/svg";
const BOX = { width: 190, height: 44, gap: 22, row: 30, pad: 14, title: 26, port: 8 };

// A box is an operation (its index), a module (COUNT + its index) or an input of the model (-1 - its index).
const isModule = (key) => key >= COUNT;
const homeOf = (key) => (isModule(key) ? GROUPS[key - COUNT].parent : key < 0 ? 0 : OPERATIONS.group[key]);
const firstOf = (key) => (isModule(key) ? GROUPS[key - COUNT].first : key);

const INSIDE = GROUPS.map(() => ({ edges: new Map(), enters: new Set(), leaves: new Set() }));

function chainOf(key) {
  const chain = [key];
  for (let g = homeOf(key); g >= 0; g = GROUPS[g].parent) chain.push(COUNT + g);
  return chain;
}

// Every edge is drawn once, inside the innermost module that holds both its ends; the modules between that one and an end
// show where it enters or leaves them.
function sortEdges() {
  const outputs = new Set(DATA.outputs);
  for (let i = 0; i < COUNT; i++) {
    if (!OPERATIONS.signal[i]) continue;
    const to = chainOf(i);
    for (const source of OPERATIONS.inputs[i]) {
      if (source >= 0 && !OPERATIONS.signal[source]) continue;
      const from = chainOf(source);
      let a = from.length - 1, b = to.length - 1;
      while (from[a - 1] === to[b - 1] && a > 1 && b > 1) { a--; b--; }
      const inside = INSIDE[from[a] - COUNT];
      inside.edges.set(from[a - 1] + ">" + to[b - 1], [from[a - 1], to[b - 1]]);
      for (let k = a - 1; k >= 1; k--) INSIDE[from[k] - COUNT].leaves.add(from[k - 1]);
      for (let k = b - 1; k >= 1; k--) INSIDE[to[k] - COUNT].enters.add(to[k - 1]);
    }
    if (outputs.has(i)) for (let k = 1; k < to.length; k++) INSIDE[to[k] - COUNT].leaves.add(to[k - 1]);
  }
}

function childrenOf(group) {
  const inner = GROUPS[group];
  const keys = [...inner.operations, ...inner.groups.filter((g) => g.size).map((g) => COUNT + g.index)];
  keys.sort((x, y) => firstOf(x) - firstOf(y));
  if (group === 0) keys.unshift(...DATA.inputs.map((_, k) => -1 - k));
  return keys;
}

const unfolded = new Set([0]);
let column = null; // what the colours show: second moments by operation
let reference = 1;
let boxes = new Map(); // key -> its SVG group, in the order of drawing
let view = { x: 0, y: 0, scale: 1 };
let extent = { width: 1, height: 1 };
let surface = null;

// ---- layout ----

function measure(key) {
  if (isModule(key) && unfolded.has(key - COUNT)) return place(key - COUNT);
  return { key, width: BOX.width, height: BOX.height };
}

function place(group) {
  const inside = INSIDE[group];
  const nodes = new Map(childrenOf(group).map((key) => [key, { ...measure(key), rank: 0 }]));
  const IN = "in", OUT = "out";
  const edges = [...inside.edges.values()].filter(([a, b]) => nodes.has(a) && nodes.has(b));
  if (group && inside.enters.size) {
    nodes.set(IN, { key: IN, width: BOX.port, height: BOX.port, rank: 0, port: true });
    for (const key of inside.enters) edges.push([IN, key]);
  }
  if (inside.leaves.size) {
    nodes.set(OUT, { key: OUT, width: BOX.port, height: BOX.port, rank: 0, port: true });
    for (const key of inside.leaves) edges.push([key, OUT]);
  }
  const order = new Map([...nodes.keys()].map((key) => [key, key === IN ? -Infinity : key === OUT ? Infinity : firstOf(key)]));
  const forward = [], backward = [];
  for (const edge of edges) (order.get(edge[0]) < order.get(edge[1]) ? forward : backward).push(edge);
  const after = new Map([...nodes.keys()].map((key) => [key, []]));
  for (const [a, b] of forward) after.get(a).push(b);
  for (const key of [...nodes.keys()].sort((x, y) => order.get(x) - order.get(y) || 0)) {
    for (const next of after.get(key)) nodes.get(next).rank = Math.max(nodes.get(next).rank, nodes.get(key).rank + 1);
  }
  const rows = [];
  const put = (node) => { (rows[node.rank] = rows[node.rank] || []).push(node); };
  for (const node of nodes.values()) put(node);
  if (nodes.has(OUT)) { // what nothing reads inside ends beside the port, not above it
    const out = nodes.get(OUT);
    rows[out.rank] = rows[out.rank].filter((node) => node !== out);
    out.rank = Math.max(out.rank, rows.length - (rows[rows.length - 1].length ? 0 : 1));
    put(out);
  }
  // Long edges pass through a point in every row between their ends.
  const routes = [];
  for (const [a, b] of forward) {
    const from = nodes.get(a), to = nodes.get(b);
    const stops = [from];
    for (let rank = from.rank + 1; rank < to.rank; rank++) {
      const stop = { width: 6, height: 0, rank, stop: true };
      put(stop);
      stops.push(stop);
    }
    stops.push(to);
    routes.push({ stops });
  }
  for (let rank = 0; rank < rows.length; rank++) rows[rank] = rows[rank] || [];
  const above = new Map(), below = new Map();
  const link = (map, from, to) => map.has(from) ? map.get(from).push(to) : map.set(from, [to]);
  for (const { stops } of routes) for (let k = 1; k < stops.length; k++) {
    link(below, stops[k - 1], stops[k]);
    link(above, stops[k], stops[k - 1]);
  }
  arrange(rows, above, below);
  straighten(rows, routes);
  // Coordinates: y by rows, x from arrange.
  let y = BOX.pad + (group ? BOX.title : 0);
  let left = Infinity, right = -Infinity;
  for (const row of rows) {
    const height = Math.max(0, ...row.map((node) => node.height));
    for (const node of row) {
      node.y = y + (height - node.height) / 2;
      if (node.stop) { node.y = y; node.height = height; }
      left = Math.min(left, node.x);
      right = Math.max(right, node.x + node.width);
    }
    y += height + BOX.row;
  }
  if (!(right > left)) { left = 0; right = BOX.width; }
  const width = Math.max(right - left, group ? BOX.width : 0) + 2 * BOX.pad;
  const shift = (width - (right - left)) / 2 - left;
  for (const row of rows) for (const node of row) node.x += shift;
  const height = y - BOX.row + BOX.pad;
  return { key: COUNT + group, width, height, nodes: [...nodes.values()], routes,
    backward: backward.map(([a, b]) => [nodes.get(a), nodes.get(b)]) };
}

function arrange(rows, above, below) {
  const centre = (node) => node.x + node.width / 2;
  const spread = (row) => {
    let x = 0;
    for (const node of row) { node.x = x; x += node.width + BOX.gap; }
    for (const node of row) node.x -= (x - BOX.gap) / 2;
  };
  rows.forEach(spread);
  const mean = (list) => list.reduce((sum, node) => sum + centre(node), 0) / list.length;
  const many = rows.reduce((sum, row) => sum + row.length, 0);
  for (let sweep = 0; sweep < (many > 2000 ? 2 : 6); sweep++) {
    const down = sweep % 2 === 0;
    for (const row of down ? rows : [...rows].reverse()) {
      const wish = new Map(row.map((node) => {
        const near = (down ? above : below).get(node);
        return [node, near ? mean(near) : centre(node)];
      }));
      row.sort((p, q) => wish.get(p) - wish.get(q));
      spread(row);
    }
  }
  for (let sweep = 0; sweep < (many > 500 ? 8 : 40); sweep++) {
    for (const row of sweep % 2 ? [...rows].reverse() : rows) {
      const wish = row.map((node) => {
        const near = [...(above.get(node) || []), ...(below.get(node) || [])];
        return (near.length ? mean(near) : centre(node)) - node.width / 2;
      });
      const left = [], right = [];
      row.forEach((node, k) => {
        left[k] = k ? Math.max(wish[k], left[k - 1] + row[k - 1].width + BOX.gap) : wish[k];
      });
      for (let k = row.length - 1; k >= 0; k--) {
        right[k] = k < row.length - 1 ? Math.min(wish[k], right[k + 1] - row[k].width - BOX.gap) : wish[k];
      }
      row.forEach((node, k) => { node.x = (left[k] + right[k]) / 2; });
    }
  }
}

// A long edge that has nothing but room on one side goes straight down along it.
function straighten(rows, routes) {
  for (const { stops } of routes) {
    const inner = stops.slice(1, -1);
    if (inner.length < 2) continue;
    for (const [end, pick] of [[(row) => row[row.length - 1], Math.max], [(row) => row[0], Math.min]]) {
      if (!inner.every((stop) => end(rows[stop.rank]) === stop)) continue;
      const x = pick(...inner.map((stop) => stop.x));
      for (const stop of inner) stop.x = x;
      break;
    }
  }
}

// ---- colours ----

function levelOf(key) {
  if (!column || key < 0) return null;
  if (!isModule(key)) return value(column[key]);
  // A module is coloured by what it hands on: the last of the signals that leave it.
  const leaves = [...INSIDE[key - COUNT].leaves].sort((a, b) => firstOf(a) - firstOf(b));
  if (leaves.length) return levelOf(leaves[leaves.length - 1]);
  const group = GROUPS[key - COUNT];
  return value(column[group.last]);
}

function broken(key) {
  if (!column || key < 0) return false;
  const odd = (i) => { const v = value(column[i]); return v !== null && !Number.isFinite(v); };
  if (!isModule(key)) return odd(key);
  const group = GROUPS[key - COUNT];
  for (const i of group.operations) if (odd(i)) return true;
  return group.groups.some((inner) => broken(COUNT + inner.index));
}

function mix(a, b, share) {
  const part = (text) => [1, 3, 5].map((k) => parseInt(text.slice(k, k + 2), 16));
  const from = part(a), to = part(b);
  return "#" + from.map((c, k) => Math.round(c + (to[k] - c) * share).toString(16).padStart(2, "0")).join("");
}

const ENDS = { light: ["#6ba1e6", "#ee8a6c"], dark: ["#2a62ad", "#b4472b"] };
const OCTAVES = 10;

function fillOf(level) {
  const neutral = colour("--neutral");
  if (level === null || level === undefined) return colour("--ground");
  const [cold, hot] = ENDS[darkQuery.matches ? "dark" : "light"];
  if (Number.isNaN(level) || level === Infinity) return hot;
  if (level === 0) return cold;
  const octaves = Math.log2(level / reference);
  return mix(neutral, octaves < 0 ? cold : hot, Math.min(1, Math.abs(octaves) / OCTAVES));
}

function legend() {
  const [cold, hot] = ENDS[darkQuery.matches ? "dark" : "light"];
  const ramp = element("span", { class: "ramp", "aria-hidden": "true" });
  ramp.style.background = `linear-gradient(90deg, ${cold}, ${colour("--neutral")}, ${hot})`;
  const key = element("span", { class: "key", "aria-hidden": "true" });
  byId("graph-legend").replaceChildren(
    element("span", {}, `${shown(reference / 2 ** OCTAVES)} and less`), ramp,
    element("span", {}, `${shown(reference * 2 ** OCTAVES)} and more; in the middle ${shown(reference)}`),
    element("span", {}, key, "infinite or NaN inside"));
}

// ---- drawing ----

function make(tag, attributes, parent) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, text] of Object.entries(attributes)) made.setAttribute(name, text);
  if (parent) parent.append(made);
  return made;
}

function labelOf(key) {
  if (key < 0) return /^\d*$/.test(DATA.inputs[-1 - key]) ? "input " + DATA.inputs[-1 - key] : DATA.inputs[-1 - key];
  if (isModule(key)) return GROUPS[key - COUNT].label;
  return OPERATIONS.name[key].split(/[.:]/).pop();
}

function told(key) {
  if (key < 0) return labelOf(key);
  const level = shown(levelOf(key));
  if (isModule(key)) {
    const group = GROUPS[key - COUNT];
    return `module ${pathOf(group.index)}${group.kind ? ", " + group.kind : ""}, ${group.size} operations, E = ${level}`
      + (broken(key) ? ", infinite or NaN inside" : "");
  }
  return `operation ${OPERATIONS.name[key]}, ${OPERATIONS.op[key]}, shape ${OPERATIONS.shape[key]}, E = ${level}`;
}

function clipped(text, room) {
  return text.length > room ? text.slice(0, room - 1) + "…" : text;
}

function drawBox(node, parent) {
  const key = node.key;
  if (node.port) {
    make("circle", { class: "port", cx: node.x + node.width / 2, cy: node.y + node.height / 2, r: BOX.port / 2 }, parent);
    return;
  }
  const open = node.nodes !== undefined;
  const classes = ["box", isModule(key) ? "module" : "operation", open ? "open" : "", broken(key) ? "broken" : "",
    key === DATA.fault ? "fault" : ""];
  const box = make("g", { class: classes.join(" ").trim(), tabindex: "0", role: "button", "data-key": key,
    transform: `translate(${node.x} ${node.y})`, "aria-label": told(key) }, parent);
  if (isModule(key)) box.setAttribute("aria-expanded", String(open));
  const rect = make("rect", { width: node.width, height: node.height, rx: isModule(key) ? 8 : 4 }, box);
  if (!open) rect.style.fill = fillOf(levelOf(key));
  make("title", {}, box).textContent = told(key);
  const room = Math.floor((node.width - 60) / 6.6);
  make("text", { x: 9, y: 18 }, box).textContent = (isModule(key) ? (open ? "▾ " : "▸ ") : "") + clipped(labelOf(key), room);
  if (!open) {
    const small = isModule(key)
      ? `${GROUPS[key - COUNT].kind} (${GROUPS[key - COUNT].size})`.trim()
      : key < 0 ? "what the model is given" : `${OPERATIONS.op[key]}  ${OPERATIONS.shape[key]}`;
    make("text", { class: "small", x: 9, y: 35 }, box).textContent = clipped(small, 30);
    if (key >= 0) make("text", { class: "small", x: node.width - 8, y: 18, "text-anchor": "end" }, box).textContent = shown(levelOf(key));
  }
  boxes.set(key, box);
  if (open) drawInside(node, box);
}

function drawInside(placed, parent) {
  const edges = make("g", {}, parent);
  for (const { stops } of placed.routes) make("path", { class: "edge", d: curve(stops), "marker-end": "url(#arrow)" }, edges);
  for (const [from, to] of placed.backward) {
    const y1 = from.y + from.height / 2, y2 = to.y + to.height / 2;
    const x = Math.max(from.x + from.width, to.x + to.width) + BOX.pad;
    make("path", { class: "edge back", d: `M${from.x + from.width} ${y1}C${x} ${y1} ${x} ${y2} ${to.x + to.width} ${y2}`,
      "marker-end": "url(#arrow)" }, edges);
  }
  for (const node of placed.nodes) drawBox(node, parent);
}

function curve(stops) {
  const middle = (node) => node.x + node.width / 2;
  let d = `M${middle(stops[0])} ${stops[0].y + stops[0].height}`;
  for (let k = 1; k < stops.length; k++) {
    const from = stops[k - 1], to = stops[k];
    const y1 = from.y + from.height, y2 = to.y;
    const half = (y1 + y2) / 2;
    d += `C${middle(from)} ${half} ${middle(to)} ${half} ${middle(to)} ${y2}`;
    if (to.stop) d += `L${middle(to)} ${to.y + to.height}`;
  }
  return d;
}

function drawGraph(focus) {
  const picture = byId("graph-picture");
  picture.replaceChildren();
  boxes = new Map();
  const definitions = make("defs", {}, picture);
  const arrow = make("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6,
    orient: "auto" }, definitions);
  make("path", { d: "M0 0L8 4L0 8z", fill: colour("--dim") }, arrow);
  surface = make("g", {}, picture);
  const placed = place(0);
  extent = { width: placed.width, height: placed.height };
  drawInside(placed, surface);
  legend();
  move();
  if (focus !== undefined && boxes.has(focus)) boxes.get(focus).focus({ preventScroll: true });
}

// ---- moving ----

function move() {
  surface.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
}

function zoom(factor, x, y) {
  const picture = byId("graph-picture");
  const cx = x === undefined ? picture.clientWidth / 2 : x, cy = y === undefined ? picture.clientHeight / 2 : y;
  const scale = Math.min(4, Math.max(0.02, view.scale * factor));
  view.x = cx - (cx - view.x) * scale / view.scale;
  view.y = cy - (cy - view.y) * scale / view.scale;
  view.scale = scale;
  move();
}

function fit() {
  const picture = byId("graph-picture");
  const width = picture.clientWidth, height = picture.clientHeight;
  // Never so small that nothing can be read: long graphs begin at their top.
  const all = Math.min(width / extent.width, height / extent.height);
  view.scale = Math.min(1.2, Math.max(all, Math.min(0.8, width / extent.width)));
  view.x = (width - extent.width * view.scale) / 2;
  view.y = extent.height * view.scale > height ? 8 : (height - extent.height * view.scale) / 2;
  move();
}

function keepInSight(key, factor) {
  const box = boxes.get(key);
  if (!box) return;
  const picture = byId("graph-picture").getBoundingClientRect(), at = box.getBoundingClientRect();
  const inside = at.left >= picture.left && at.top >= picture.top && at.right <= picture.right && at.bottom <= picture.bottom;
  if (inside && !factor) return;
  view.x += picture.left + picture.width / 2 - (at.left + Math.min(at.width, picture.width) / 2);
  view.y += picture.top + picture.height / 2 - (at.top + Math.min(at.height, picture.height) / 2);
  move();
}

function toggle(key) {
  const group = key - COUNT;
  const before = boxes.get(key).getBoundingClientRect();
  if (unfolded.has(group)) unfolded.delete(group);
  else unfolded.add(group);
  drawGraph(key);
  const after = boxes.get(key).getBoundingClientRect(); // the box stays where the hand is
  view.x += before.left - after.left;
  view.y += before.top - after.top;
  move();
}

function describe(key) {
  const lines = [];
  if (key >= 0 && !isModule(key)) {
    lines.push(`${OPERATIONS.name[key]}: ${OPERATIONS.op[key]}, shape ${OPERATIONS.shape[key]}`
      + (OPERATIONS.tag[key] ? `, predicted by ${OPERATIONS.tag[key]} rules` : "")
      + (OPERATIONS.source[key] ? `, at ${OPERATIONS.source[key]}` : ""));
    for (const item of DATA.initialisations) {
      const parts = [];
      for (const [kind, name] of [["forward_predicted", "E[x²] predicted"], ["forward_measured", "measured"],
        ["backward_predicted", "E[g²] predicted"], ["backward_measured", "measured"]]) {
        if (item[kind]) parts.push(`${name} ${shown(item[kind][key])}`);
      }
      lines.push(`${item.title}: ${parts.join(", ")}`);
    }
  } else lines.push(told(key));
  byId("graph-details").textContent = lines.join("\n");
}

function seek(text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return;
  const names = OPERATIONS.name;
  let found = -1;
  for (let i = 0; i < COUNT && found < 0; i++) if (OPERATIONS.signal[i] && names[i].toLowerCase() === wanted) found = i;
  for (let i = 0; i < COUNT && found < 0; i++) if (OPERATIONS.signal[i] && names[i].toLowerCase().includes(wanted)) found = i;
  if (found < 0) {
    byId("graph-details").textContent = `No operation is called ${text}.`;
    return;
  }
  reveal(found);
  boxes.get(found).focus({ preventScroll: true });
}

function reveal(operation) {
  for (let g = OPERATIONS.group[operation]; g >= 0; g = GROUPS[g].parent) unfolded.add(g);
  drawGraph();
  view.scale = Math.max(view.scale, 0.8);
  move();
  keepInSight(operation, 1);
}

const MANY = 1500; // boxes that are drawn at once

function unfoldLevel() {
  const closed = [...boxes.keys()].filter((key) => isModule(key) && !unfolded.has(key - COUNT));
  let room = MANY - boxes.size;
  for (const key of closed) {
    room -= childrenOf(key - COUNT).length;
    if (room < 0) break;
    unfolded.add(key - COUNT);
  }
  drawGraph();
  fit();
}

function setColour() {
  const [index, kind] = byId("graph-colour").value.split(" ");
  column = DATA.initialisations[Number(index)][kind];
  const levels = column.map(value).filter((v) => v !== null && Number.isFinite(v) && v > 0).sort((a, b) => a - b);
  reference = kind.startsWith("forward") || !levels.length ? 1 : levels[Math.floor(levels.length / 2)];
}

function makeGraph() {
  sortEdges();
  const select = byId("graph-colour");
  DATA.initialisations.forEach((item, index) => {
    for (const [direction, word] of [["forward", "signals"], ["backward", "gradients"]]) {
      for (const kind of ["measured", "predicted"]) {
        const name = direction + "_" + kind;
        if (!item[name]) continue;
        select.append(element("option", { value: `${index} ${name}` }, `${word}, ${item.title}, ${kind}`));
        break;
      }
    }
  });
  if (select.length) setColour();
  select.addEventListener("change", () => { setColour(); drawGraph(); });
  darkQuery.addEventListener("change", () => drawGraph());
  // A graph with little but one module at its top begins one level further in.
  for (let top = 0; ;) {
    const inside = childrenOf(top), inner = inside.filter(isModule);
    if (inner.length !== 1 || inside.length > 3) break;
    top = inner[0] - COUNT;
    unfolded.add(top);
  }
  drawGraph();
  fit();
  if (DATA.fault !== null && OPERATIONS.signal[DATA.fault]) reveal(DATA.fault);

  const picture = byId("graph-picture");
  picture.addEventListener("focusin", (event) => {
    const box = event.target.closest(".box");
    if (!box) return;
    describe(Number(box.dataset.key));
    keepInSight(Number(box.dataset.key));
  });
  picture.addEventListener("keydown", (event) => {
    const box = event.target.closest(".box");
    const keys = [...boxes.keys()];
    const at = box ? keys.indexOf(Number(box.dataset.key)) : -1;
    const go = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (go) boxes.get(keys[Math.min(keys.length - 1, Math.max(0, at + go))]).focus({ preventScroll: true });
    else if ((event.key === "Enter" || event.key === " ") && box && isModule(Number(box.dataset.key))) toggle(Number(box.dataset.key));
    else if (event.key === "+" || event.key === "=") zoom(1.25);
    else if (event.key === "-") zoom(0.8);
    else if (event.key === "0") fit();
    else return;
    event.preventDefault();
  });

  const pointers = new Map();
  let moved = 0;
  picture.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    moved = 0;
  });
  picture.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const now = { x: event.clientX, y: event.clientY };
    moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    if (moved > 4 && !picture.hasPointerCapture(event.pointerId)) picture.setPointerCapture(event.pointerId);
    if (pointers.size === 1) {
      view.x += now.x - before.x;
      view.y += now.y - before.y;
      move();
    } else if (pointers.size === 2) {
      const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
      const distance = (p) => Math.hypot(p.x - other.x, p.y - other.y);
      const frame = picture.getBoundingClientRect();
      zoom(distance(now) / Math.max(1, distance(before)), (now.x + other.x) / 2 - frame.left, (now.y + other.y) / 2 - frame.top);
    }
    pointers.set(event.pointerId, now);
  });
  for (const name of ["pointerup", "pointercancel", "pointerleave"]) {
    picture.addEventListener(name, (event) => pointers.delete(event.pointerId));
  }
  picture.addEventListener("click", (event) => {
    const box = event.target.closest(".box");
    if (!box || moved > 4) return;
    const key = Number(box.dataset.key);
    describe(key);
    if (isModule(key)) toggle(key);
  });
  // The wheel scrolls the page unless the graph has the focus, or a key says that zooming is meant.
  picture.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !picture.contains(document.activeElement)) return;
    event.preventDefault();
    const frame = picture.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - frame.left, event.clientY - frame.top);
  }, { passive: false });
  byId("graph-in").addEventListener("click", () => zoom(1.25));
  byId("graph-out").addEventListener("click", () => zoom(0.8));
  byId("graph-fit").addEventListener("click", fit);
  byId("graph-unfold").addEventListener("click", unfoldLevel);
  byId("graph-fold").addEventListener("click", () => {
    unfolded.clear();
    unfolded.add(0);
    drawGraph();
    fit();
  });
  byId("graph-find").addEventListener("change", (event) => seek(event.target.value));
}
