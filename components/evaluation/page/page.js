"use strict";
// Model text is only ever set as text, never as HTML.
const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

// Theme: as the system has it, or what was chosen last.
{
  const button = document.querySelector("button.theme");
  const kept = () => { try { return localStorage.getItem("r1flow-theme") || ""; } catch { return ""; } };
  const keep = (theme) => { try { localStorage.setItem("r1flow-theme", theme); } catch { /* a page without storage */ } };
  const apply = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    button.querySelector("span").textContent = theme || "system";
  };
  let theme = kept();
  button.hidden = false;
  apply(theme);
  button.addEventListener("click", () => {
    theme = { "": "light", light: "dark", dark: "" }[theme] ?? "";
    keep(theme);
    apply(theme);
  });
}

// Charts: a line at the nearest point and what it says, by pointer or arrow keys; the legend switches lines off.
const switches = new Map(); // chart → what switches one of its lines
const press = (key, charts) => {
  const visible = key.getAttribute("aria-pressed") !== "true";
  key.setAttribute("aria-pressed", String(visible));
  for (const chart of charts) switches.get(chart)?.(Number(key.dataset.line), visible);
};
for (const chart of document.querySelectorAll("figure.chart[data-hover]")) {
  const data = JSON.parse(chart.dataset.hover);
  const svg = chart.querySelector("svg");
  const cross = svg.querySelector(".cross");
  const tip = make("div", "tip");
  tip.hidden = true;
  tip.setAttribute("role", "status");
  chart.append(tip);
  let at = -1;
  const off = new Set();
  const show = (index) => {
    at = Math.max(0, Math.min(data.x.length - 1, index));
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    cross.setAttribute("x1", data.x[at]);
    cross.setAttribute("x2", data.x[at]);
    tip.replaceChildren(make("div", "", data.label[at]));
    for (const series of data.series) {
      if (off.has(series.line) || series.y[at] === null) continue;
      const row = make("div");
      row.append(make("i", "b" + series.c), `${series.name} ${series.y[at]}`);
      tip.append(row);
    }
    tip.hidden = false;
    chart.classList.add("hovered");
    const left = data.x[at] * scale;
    tip.style.left = `${left + 12 + tip.offsetWidth > box.width ? Math.max(0, left - tip.offsetWidth - 12) : left + 12}px`;
    tip.style.top = `${box.top - chart.getBoundingClientRect().top + 14}px`;
  };
  const hide = () => {
    tip.hidden = true;
    chart.classList.remove("hovered");
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / (box.width / svg.viewBox.baseVal.width);
    let nearest = 0;
    data.x.forEach((value, i) => { if (Math.abs(value - x) < Math.abs(data.x[nearest] - x)) nearest = i; });
    show(nearest);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const go = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: data.x.length - 1 }[event.key];
    if (event.key === "Escape") hide();
    if (go === undefined) return;
    event.preventDefault();
    show(go);
  });
  switches.set(chart, (line, visible) => {
    if (visible) off.delete(line); else off.add(line);
    const drawn = svg.querySelector(`g[data-line="${line}"]`);
    if (drawn) drawn.style.display = visible ? "" : "none";
  });
  for (const key of chart.querySelectorAll(".legend button")) key.addEventListener("click", () => press(key, [chart]));
}
for (const legend of document.querySelectorAll(".legend.shared")) {
  const charts = legend.closest("section").querySelectorAll("figure.chart");
  for (const key of legend.querySelectorAll("button")) key.addEventListener("click", () => press(key, charts));
}

// Families: their levels open and close.
for (const button of document.querySelectorAll(".heat-table button")) {
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    for (const row of button.closest("tbody").querySelectorAll(".level")) row.hidden = !open;
  });
}

// Tables that sort: by the column whose head is chosen, the other way round when it is chosen again.
for (const table of document.querySelectorAll("table.sortable")) {
  for (const head of table.querySelectorAll("th[data-sort]")) {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const of = (row) => { const value = row.cells[head.cellIndex].dataset.value; return value === "" ? -Infinity : Number(value); };
      const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? of(b) - of(a) : of(a) - of(b)) || 0);
      table.tBodies[0].append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); } });
  }
}

// Navigation: which section is on screen.
{
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const section of document.querySelectorAll("main section[id]")) watch.observe(section);
}
