// Tables that sort and filter; rows beyond the first hundred are shown on request.

const PAGE = 100;

function makeTable(place, table) {
  if (!place || !table) return;
  const columns = table.columns.slice(0, table.note); // a note, the last one, has a row of its own below
  const state = { sort: -1, down: false, filter: "", limit: PAGE };
  const texts = table.rows.map((row) => row.map((cell) => (cell === null ? "" : String(cell))).join("\n").toLowerCase());
  const filter = element("input", { type: "search", "aria-label": "Filter: " + table.caption, placeholder: "filter",
    autocomplete: "off" });
  const count = element("span", { role: "status" });
  const more = element("button", { type: "button" }, "show more");
  const body = element("tbody");
  const heads = columns.map(([title, type], index) => {
    const button = element("button", { type: "button" }, title);
    const head = element("th", { scope: "col", "aria-sort": "none", class: type === "number" ? "number" : "" }, button);
    button.addEventListener("click", () => {
      state.down = state.sort === index ? !state.down : type === "number";
      state.sort = index;
      draw();
    });
    return head;
  });
  const caption = element("caption", {}, table.caption);
  const scroll = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.caption },
    element("table", {}, caption, element("thead", {}, element("tr", {}, ...heads)), body));
  place.append(element("div", { class: "below" }, filter, count), scroll, element("div", { class: "below" }, more));

  function order() {
    const found = [];
    for (let i = 0; i < table.rows.length; i++) if (texts[i].includes(state.filter)) found.push(i);
    if (state.sort < 0) return found;
    const sign = state.down ? -1 : 1;
    const number = columns[state.sort][1] === "number";
    const key = (i) => {
      const cell = table.rows[i][state.sort];
      if (!number) return String(cell);
      const v = value(cell);
      // What is not known stands last both ways; NaN is the most conspicuous of all numbers.
      return v === null ? null : Number.isNaN(v) ? Infinity : v;
    };
    return found.map((i) => [key(i), i]).sort((a, b) => {
      if (a[0] === null || b[0] === null) return (a[0] === null) - (b[0] === null) || a[1] - b[1];
      const by = number ? (a[0] === b[0] ? 0 : a[0] < b[0] ? -1 : 1)
        : a[0].localeCompare(b[0], "en", { numeric: true });
      return sign * by || a[1] - b[1];
    }).map((pair) => pair[1]);
  }

  function draw() {
    const rows = order();
    heads.forEach((head, index) => {
      head.setAttribute("aria-sort", index !== state.sort ? "none" : state.down ? "descending" : "ascending");
      head.firstChild.textContent = columns[index][0] + (index !== state.sort ? "" : state.down ? " ▾" : " ▴");
    });
    body.replaceChildren(...rows.slice(0, state.limit).flatMap((i) => {
      const row = table.rows[i].slice(0, columns.length), note = table.rows[i][columns.length];
      const shownRow = element("tr", {}, ...row.map((cell, index) => {
        const number = columns[index][1] === "number";
        const text = number ? shown(cell) : cell;
        const odd = number && (text === "NaN" || text.endsWith("∞"));
        const kind = number ? "number" + (odd ? " off" : "") : table.names.includes(index) ? "name" : text.length > 60 ? "long" : "";
        return element("td", kind ? { class: kind } : {}, text);
      }));
      if (!note) return [shownRow];
      return [shownRow, element("tr", { class: "note" },
        element("td", { colspan: String(columns.length) }, element("div", {}, note)))];
    }));
    const visible = Math.min(rows.length, state.limit);
    count.textContent = `${visible.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`
      + (rows.length < table.rows.length ? ` that match (${table.rows.length.toLocaleString("en")} in all)` : "");
    more.hidden = visible === rows.length;
  }

  filter.addEventListener("input", () => {
    state.filter = filter.value.toLowerCase();
    state.limit = PAGE;
    draw();
  });
  more.addEventListener("click", () => {
    state.limit += 4 * PAGE;
    draw();
  });
  draw();
}

function makeTables() {
  const signals = DATA.tables.signals;
  const columns = [];
  for (const item of DATA.initialisations) {
    for (const kind of ["forward_predicted", "forward_measured", "backward_predicted", "backward_measured",
      "alike_predicted", "alike_measured"]) {
      if (item[kind]) columns.push(item[kind]);
    }
  }
  signals.rows = OPERATIONS.name.map((name, i) =>
    [i, name, OPERATIONS.op[i], OPERATIONS.shape[i], OPERATIONS.tag[i], ...columns.map((column) => column[i])]
  ).filter((row) => row.slice(5).some((cell) => cell !== null));
  signals.names = [1];
  DATA.tables.parameters.names = [0];
  DATA.tables.parameters.note = DATA.tables.parameters.columns.findIndex(([title]) => title === "reason");
  DATA.tables.merges.names = [0, 2];
  if (DATA.tables.agreement) DATA.tables.agreement.names = [0];
  for (const [name, table] of Object.entries(DATA.tables)) makeTable(byId("table-" + name), table);
}
