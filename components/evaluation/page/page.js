"use strict";
// Model text is only ever set as text, never as HTML.
const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

// Charts: a line at the nearest point and what it says.
for (const chart of document.querySelectorAll("figure.chart[data-hover]")) {
  const data = JSON.parse(chart.dataset.hover);
  const svg = chart.querySelector("svg");
  const cross = svg.querySelector(".cross");
  const tip = make("div", "tip");
  tip.hidden = true;
  chart.append(tip);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    const x = (event.clientX - box.left) / scale;
    let at = 0;
    data.x.forEach((value, i) => { if (Math.abs(value - x) < Math.abs(data.x[at] - x)) at = i; });
    cross.setAttribute("x1", data.x[at]);
    cross.setAttribute("x2", data.x[at]);
    tip.replaceChildren(make("div", "", data.label[at]));
    for (const series of data.series) {
      const row = make("div");
      row.append(make("i", "b" + series.c), `${series.name} ${series.y[at]}`);
      tip.append(row);
    }
    tip.hidden = false;
    chart.classList.add("hovered");
    const left = data.x[at] * scale;
    tip.style.left = `${left + 12 + tip.offsetWidth > box.width ? Math.max(0, left - tip.offsetWidth - 12) : left + 12}px`;
    tip.style.top = `${box.top - chart.getBoundingClientRect().top + 14}px`;
  });
  svg.addEventListener("pointerleave", () => {
    tip.hidden = true;
    chart.classList.remove("hovered");
  });
}

// Families: their levels open and close.
for (const button of document.querySelectorAll(".heat-table button")) {
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    for (const row of button.closest("tbody").querySelectorAll(".level")) row.hidden = !open;
  });
}

// Explorer: filter, search, order; twenty at a time.
const source = document.getElementById("records");
if (source) {
  const records = JSON.parse(source.textContent);
  const form = document.querySelector(".filters");
  const found = document.querySelector(".found");
  const count = document.querySelector(".count");
  const more = document.querySelector(".more");
  const names = { stage: new Set(), family: new Set(), level: new Set() };
  for (const record of records) {
    record.origin = record.source === "training" ? `${record.stage} (training)` : record.stage;
    record.haystack = `${record.prompt}\n${record.response}`.toLowerCase();
    names.stage.add(record.origin);
    names.family.add(record.family);
    names.level.add(record.level);
  }
  for (const [key, values] of Object.entries(names)) {
    const sorted = key === "stage" ? [...values] : [...values].sort((a, b) => (a > b ? 1 : a < b ? -1 : 0));
    for (const value of sorted) form.elements[key].append(new Option(value, value));
  }

  const marked = (element, text, words) => {
    // Split at every occurrence of a search word; the pieces stay text nodes.
    const lower = text.toLowerCase();
    let at = 0;
    while (words.length && lower.length === text.length) {
      const hits = words.map((word) => [lower.indexOf(word, at), word]).filter(([i]) => i >= 0).sort((a, b) => a[0] - b[0]);
      if (!hits.length) break;
      const [start, word] = hits[0];
      element.append(text.slice(at, start), make("mark", "", text.slice(start, start + word.length)));
      at = start + word.length;
    }
    element.append(text.slice(at));
    return element;
  };

  const show = (record, words) => {
    const details = make("details", "record");
    const summary = make("summary");
    const verdict = record.right === null ? ["meta", "·"] : record.right ? ["ok", "✓"] : ["no", "✗"];
    summary.append(make("span", ...verdict), make("b", "", record.origin), make("span", "cellname", `${record.family} · level ${record.level}`));
    summary.append(marked(make("span", "text"), record.prompt.replaceAll("\n", " "), words));
    const size = record.reward === undefined ? `${record.length} tok` : `step ${record.step + 1} · ${record.reward}`;
    summary.append(make("span", "meta", size));
    const body = make("div", "body");
    body.append(marked(make("p", "prompt"), record.prompt, words));
    const facts = [`${record.length} tokens`, `finish: ${record.finish}`];
    if (record.gold) facts.unshift(`expected ${record.gold}`);
    for (const [name, value] of Object.entries(record.terms || {})) facts.push(`${name} ${value}`);
    body.append(make("p", "gold", facts.join(" · ")), marked(make("pre"), record.response, words));
    details.append(summary, body);
    return details;
  };

  let shown = 0;
  let list = [];
  const words = () => form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
  const extend = () => {
    for (const record of list.slice(shown, shown + 20)) found.append(show(record, words()));
    shown = Math.min(list.length, shown + 20);
    more.hidden = shown >= list.length;
  };
  const update = () => {
    const want = Object.fromEntries(["stage", "family", "level", "right", "order"].map((key) => [key, form.elements[key].value]));
    const search = words();
    list = records.filter((record) =>
      (!want.stage || record.origin === want.stage) && (!want.family || record.family === want.family) &&
      (!want.level || String(record.level) === want.level) && (!want.right || record.right === (want.right === "yes")) &&
      search.every((word) => record.haystack.includes(word)));
    const by = { "reward-up": (r) => r.reward ?? Infinity, "reward-down": (r) => -(r.reward ?? -Infinity), long: (r) => -r.length, step: (r) => r.step ?? Infinity }[want.order];
    if (by) list.sort((a, b) => { const x = by(a), y = by(b); return x < y ? -1 : x > y ? 1 : 0; });
    shown = 0;
    found.replaceChildren();
    count.textContent = list.length ? `${list.length} of ${records.length}` : "Nothing matches. Try fewer words or another filter.";
    extend();
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", extend);
  update();
}
