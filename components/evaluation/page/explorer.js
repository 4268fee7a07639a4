// Explorer: filter, search, order; twenty at a time; a record opens to its terms, its group and its text in parts.
const source = document.getElementById("records");
if (source) {
  const records = JSON.parse(source.textContent);
  const form = document.querySelector(".filters");
  const fields = form.elements;
  const found = document.querySelector(".found");
  const count = document.querySelector(".count");
  const more = document.querySelector(".next");
  const names = { stage: new Set(), family: new Set(), level: new Set() };
  const tasks = new Set();
  for (const record of records) {
    record.origin = record.source === "training" ? `${record.stage} (training)` : record.stage;
    record.haystack = `${record.prompt}\n${record.response}`.toLowerCase();
    names.stage.add(record.origin);
    names.family.add(record.family);
    names.level.add(record.level);
    tasks.add(record.task);
  }
  for (const [key, values] of Object.entries(names)) {
    const sorted = key === "stage" ? [...values] : [...values].sort((a, b) => (a > b ? 1 : a < b ? -1 : 0));
    for (const value of sorted) fields[key].append(new Option(value, value));
  }
  for (const task of [...tasks].sort()) document.getElementById("tasks").append(new Option(task, task));

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

  const parts = (response) => {
    // The response at its tags, an inner one interrupting the outer: [kind, text], nothing lost but the tags.
    const kinds = new Set(["think", "tool", "result", "answer"]);
    const pieces = [];
    const open = [];
    let at = 0;
    let start = 0;
    const cut = (end) => {
      const text = response.slice(start, end).replace(/^\n+|\n+$/g, "");
      if (text) pieces.push([open.at(-1) ?? "plain", text]);
    };
    while ((at = response.indexOf("<", at)) >= 0) {
      const end = response.indexOf(">", at);
      const tag = end > 0 && end - at <= 12 ? response.slice(at + 1, end) : "";
      const closes = tag[0] === "/" && open.length > 0 && tag.slice(1) === open.at(-1);
      if (!kinds.has(tag) && !closes) { at += 1; continue; }
      cut(at);
      if (closes) open.pop(); else open.push(tag);
      at = start = end + 1;
    }
    cut(response.length);
    return pieces;
  };

  const cell = (tag, text) => make(tag, "", text);
  const terms = (record) => {
    // Every term with its weight and what it adds; the sum where the weights explain the reward.
    const table = make("table", "terms");
    const head = table.createTHead().insertRow();
    for (const text of ["term", "value", "weight", "adds"]) head.append(cell("th", text));
    const body = table.createTBody();
    let sum = 0;
    for (const [name, value] of Object.entries(record.terms)) {
      const weight = record.weights?.[name];
      sum += weight === undefined ? NaN : weight * value;
      const row = body.insertRow();
      const adds = weight === undefined ? "–" : (weight * value).toFixed(3);
      row.append(cell("th", name), cell("td", String(value)), cell("td", weight === undefined ? "–" : String(weight)), cell("td", adds));
    }
    const last = body.insertRow();
    last.append(cell("th", "reward"), cell("td", ""), cell("td", ""), cell("td", record.reward.toFixed(3)));
    const wrapped = make("div");
    wrapped.append(table);
    if (!Number.isNaN(sum) && Math.abs(sum - record.reward) > 0.005)
      wrapped.append(make("p", "foot", "The terms do not add up to the reward: a schedule, a gate or a penalty changed it."));
    return wrapped;
  };

  const group = (record) => {
    // Where this rollout stands among those of its prompt: what its advantage is made of.
    const rewards = record.group;
    const mean = rewards.reduce((a, b) => a + b, 0) / rewards.length;
    const box = make("div", "group");
    const low = Math.min(...rewards);
    const span = Math.max(...rewards) - low;
    const track = make("span", "track");
    for (const reward of rewards) {
      const dot = make("span", "dot b7");
      dot.style.left = `${span ? (100 * (reward - low)) / span : 50}%`;
      track.append(dot);
    }
    const own = make("span", "dot own b1");
    own.style.left = `${span ? (100 * (record.reward - low)) / span : 50}%`;
    track.append(own);
    const above = record.reward - mean;
    const text = span
      ? `${above >= 0 ? "+" : ""}${above.toFixed(3)} against the mean ${mean.toFixed(3)} of its ${rewards.length} rollouts`
      : `all ${rewards.length} rollouts of the group earned the same: no signal`;
    box.append(make("p", "gold", text), track);
    return box;
  };

  const only = (label, values) => {
    const button = make("button", "link", label);
    button.type = "button";
    button.addEventListener("click", () => {
      form.reset();
      for (const [name, value] of Object.entries(values)) fields[name].value = value;
      update();
      count.scrollIntoView({ block: "center" });
    });
    return button;
  };

  const detail = (record, words) => {
    const body = make("div", "body");
    body.append(marked(make("p", "prompt"), record.prompt, words));
    const facts = [`${record.length} tokens`, `finish: ${record.finish}`];
    if (record.gold) facts.unshift(`expected ${record.gold}`);
    if (record.outcome) facts.push(record.outcome);
    body.append(make("p", "gold", facts.join(" · ")));
    const text = make("pre");
    for (const [kind, piece] of parts(record.response)) text.append(marked(make("span", kind), piece, words));
    if (record.terms) {
      const pair = make("div", "pair");
      const side = make("div");
      side.append(terms(record), group(record));
      pair.append(text, side);
      body.append(pair);
    } else body.append(text);
    const links = make("p", "links");
    links.append(only("this task everywhere", { task: record.task }));
    if (record.terms)
      links.append(only("its group", { task: record.task, stage: record.origin, step_from: record.step, step_to: record.step }));
    body.append(links);
    return body;
  };

  const show = (record, words) => {
    const details = make("details", "record");
    const summary = make("summary");
    const verdict = record.right === null ? ["meta", "·"] : record.right ? ["ok", "✓"] : ["no", "✗"];
    summary.append(make("span", ...verdict), make("b", "", record.origin), make("span", "cellname", `${record.family} · level ${record.level}`));
    summary.append(marked(make("span", "text"), record.prompt.replaceAll("\n", " "), words));
    const size = record.reward === undefined ? `${record.length} tok` : `step ${record.step} · ${record.reward}`;
    summary.append(make("span", "meta", size));
    details.append(summary);
    details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(detail(record, words)); });
    return details;
  };

  let shown = 0;
  let list = [];
  const words = () => fields.text.value.toLowerCase().split(/\s+/).filter(Boolean);
  const extend = () => {
    for (const record of list.slice(shown, shown + 20)) found.append(show(record, words()));
    shown = Math.min(list.length, shown + 20);
    more.hidden = shown >= list.length;
  };
  const within = (value, name) => {
    const from = fields[`${name}_from`].value;
    const to = fields[`${name}_to`].value;
    return (from === "" && to === "") || (value !== undefined && (from === "" || value >= Number(from)) && (to === "" || value <= Number(to)));
  };
  const update = () => {
    const want = Object.fromEntries(["stage", "family", "level", "right", "task", "order"].map((key) => [key, fields[key].value]));
    const search = words();
    list = records.filter((record) =>
      (!want.stage || record.origin === want.stage) && (!want.family || record.family === want.family) &&
      (!want.level || String(record.level) === want.level) && (!want.right || record.right === (want.right === "yes")) &&
      (!want.task || record.task.includes(want.task)) && within(record.step, "step") && within(record.reward, "reward") &&
      search.every((word) => record.haystack.includes(word)));
    const by = { "reward-up": (r) => r.reward ?? Infinity, "reward-down": (r) => -(r.reward ?? -Infinity), long: (r) => -r.length, step: (r) => r.step ?? Infinity }[want.order];
    if (by) list.sort((a, b) => { const x = by(a), y = by(b); return x < y ? -1 : x > y ? 1 : 0; });
    shown = 0;
    found.replaceChildren();
    count.textContent = list.length ? `${list.length} of ${records.length}` : "Nothing matches. Try fewer words or another filter.";
    extend();
  };
  form.addEventListener("input", update);
  form.addEventListener("reset", () => setTimeout(update));
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", extend);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    fields.text.focus();
  });
  found.addEventListener("keydown", (event) => {
    const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const record = event.target.closest("summary") && event.target.closest("details.record");
    if (!next || !record) return;
    event.preventDefault();
    record[next]?.querySelector("summary").focus();
  });
  update();
}
