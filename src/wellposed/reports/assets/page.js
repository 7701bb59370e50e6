"use strict";
// What every part of the page shares. Texts of the model only ever reach the page through textContent.

const DATA = JSON.parse(document.getElementById("data").textContent);
const OPERATIONS = DATA.operations;
const COUNT = OPERATIONS.name.length;

const byId = (id) => document.getElementById(id);

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Numbers arrive as numbers, or as "inf", "-inf" and "nan"; null is "not known".
function value(cell) {
  if (cell === "inf") return Infinity;
  if (cell === "-inf") return -Infinity;
  if (cell === "nan") return NaN;
  return cell;
}

function shown(cell) {
  const v = value(cell);
  if (v === null || v === undefined) return "–";
  if (Number.isNaN(v)) return "NaN";
  if (!Number.isFinite(v)) return v > 0 ? "∞" : "−∞";
  if (v === 0 || Number.isInteger(v) && Math.abs(v) < 1e6) return v.toLocaleString("en");
  const size = Math.abs(v);
  if (size >= 1e5 || size < 1e-3) return v.toExponential(2).replace("e+", "e").replace("-", "−").replace("-", "−");
  return String(Number(v.toPrecision(3))).replace("-", "−");
}

const darkQuery = window.matchMedia("(prefers-color-scheme: dark)");
const PALETTE = new Map(); // colours by name, as the style sheet has them now
darkQuery.addEventListener("change", () => PALETTE.clear());

function colour(name) {
  if (!PALETTE.has(name)) {
    PALETTE.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  }
  return PALETTE.get(name);
}

// ---- groups of operations: the tree of modules ----

const GROUPS = DATA.groups.label.map((label, index) => ({
  index, label, kind: DATA.groups.class[index], parent: DATA.groups.parent[index], groups: [], operations: [], first: Infinity,
  last: -1, size: 0, depth: 0,
}));
GROUPS.forEach((group) => {
  if (group.parent >= 0) {
    group.depth = GROUPS[group.parent].depth + 1;
    GROUPS[group.parent].groups.push(group);
  }
});
for (let i = 0; i < COUNT; i++) {
  if (!OPERATIONS.signal[i]) continue;
  GROUPS[OPERATIONS.group[i]].operations.push(i);
  for (let g = OPERATIONS.group[i]; g >= 0; g = GROUPS[g].parent) {
    GROUPS[g].first = Math.min(GROUPS[g].first, i);
    GROUPS[g].last = Math.max(GROUPS[g].last, i);
    GROUPS[g].size += 1;
  }
}

function within(operation, group) {
  for (let g = OPERATIONS.group[operation]; g >= 0; g = GROUPS[g].parent) if (g === group) return true;
  return false;
}

function pathOf(group) {
  const parts = [];
  for (let g = group; g > 0; g = GROUPS[g].parent) parts.unshift(GROUPS[g].label);
  return parts.join(" / ");
}
