// What each method saves at a price curve that the reader drags. Without it, the tables of the page stay.
document.addEventListener("DOMContentLoaded", () => {
  const root = document.querySelector(".price-slider");
  if (!root) return;
  const data = JSON.parse(root.querySelector("script").textContent);
  const TALL = 236;
  const SVG = "http://www.w3.org/2000/svg";
  const make = (tag, attributes = {}, ...children) => {
    const element = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const choice = (names) => {
    const select = make("select");
    names.forEach(([value, label]) => select.add(new Option(label, value)));
    return select;
  };
  const labelled = (label, ...controls) => make("label", {}, make("span", {}, label), ...controls);

  // All tasks together: sums of what the tasks have.
  const all = {};
  for (const task of Object.values(data.tasks)) {
    for (const [name, own] of Object.entries(task)) {
      const sum = all[name] ||= { tokens: 0, units: 0, passes: [] };
      sum.tokens += own.tokens;
      sum.units += own.units;
      sum.passes.push(...own.passes);
    }
  }
  const tasks = { all, ...data.tasks };

  const preset = choice(data.presets.map((one, place) => [place, one.name]));
  const task = choice(Object.keys(tasks).map((name) => [name, name === "all" ? "all tasks" : name]));
  const drafting = make("input", { type: "range", min: 0, max: 4, step: 0.05, value: 1 });
  const factor = make("span", { "aria-hidden": "true" });
  const status = make("p", { role: "status", "aria-live": "polite" });
  const chart = make("svg:svg", { viewBox: `0 0 320 ${TALL}`, role: "group",
    "aria-label": "Price of a pass by its width; each point is a slider" });
  const body = make("tbody");
  const table = make("table", { class: "speeds" },
    make("thead", {}, make("tr", {}, ...["Method", "", "Speed-up"].map((text) => make("th", { scope: "col" }, text)))), body);
  root.append(
    make("div", { class: "controls" }, labelled("Begin with the prices of", preset), labelled("Task", task),
      labelled("Price of drafting with a model, times the preset's", make("span", { class: "range" }, drafting, factor))),
    make("div", { class: "sides" },
      make("figure", {}, make("figcaption", {}, "Drag a point, or focus it and press ↑ and ↓: price of a pass over so many tokens, "
        + "in passes over one token."), chart),
      make("div", {}, table)),
    status);

  let points = [];
  const left = 34, right = 306, top = 12, bottom = 200, HIGH = 16, WIDE = 128;
  const x = (width) => left + (right - left) * Math.log2(width) / Math.log2(WIDE);
  const y = (price) => bottom - (bottom - top) * Math.log2(Math.max(price, 1)) / Math.log2(HIGH);
  const priceAt = (height) => Math.min(HIGH, Math.max(1, HIGH ** ((bottom - height) / (bottom - top))));

  // As PassPrices.curve: on the line between two widths, and along the last line beyond them.
  const price = (width) => {
    const last = points.length - 1;
    if (width >= points[last][0]) {
      if (!last) return points[0][1];
      const [[a, low], [b, high]] = points.slice(-2);
      return high + Math.max(0, (high - low) / (b - a)) * (width - b);
    }
    const end = points.findIndex(([own]) => own > width);
    const [[a, low], [b, high]] = [points[end - 1], points[end]];
    return low + (high - low) * (width - a) / (b - a);
  };
  const speedup = (name, own) => {
    const { drafts } = data.presets[preset.value];
    const unit = (drafts[name] || 0) * (data.methods[name].network ? Number(drafting.value) : 1);
    const passes = own.passes.reduce((sum, [width, count]) => sum + count * price(width), 0);
    return own.tokens / (passes + own.units * unit);
  };

  const rows = new Map(Object.keys(data.methods).map((name) => {
    const bar = make("i", { style: `--c:${data.methods[name].color}` });
    const number = make("td");
    return [name, { bar, number, row: make("tr", {}, make("th", { scope: "row" }, name),
      make("td", { class: "track", "aria-hidden": "true" }, bar), number) }];
  }));
  const results = () => {
    factor.textContent = Number(drafting.value).toFixed(2);
    const speeds = Object.entries(tasks[task.value]).filter(([, own]) => own.tokens)
      .map(([name, own]) => [name, speedup(name, own)]).sort((one, two) => two[1] - one[1]);
    const most = Math.max(1, ...speeds.map(([, value]) => value));
    body.replaceChildren(...speeds.map(([name, value]) => {
      const { bar, number, row } = rows.get(name);
      bar.style.width = `${(100 * value) / most}%`;
      number.textContent = value.toFixed(2);
      row.classList.toggle("slower", value < 1);
      return row;
    }));
    table.style.setProperty("--one", `${100 / most}%`);
    const said = speeds.length ? `At these prices the largest speed-up is ${speeds[0][1].toFixed(2)}, of ${speeds[0][0]}; `
      + `${speeds.filter(([, value]) => value < 1).length} of ${speeds.length} methods are slower than plain decoding.`
      : "No output of this task has a pass after the first token.";
    if (status.textContent !== said) status.textContent = said;
  };

  const line = make("svg:polyline", { class: "curve" });
  const place = () => {
    line.setAttribute("points", points.map(([width, own]) => `${x(width)},${y(own)}`).join(" "));
    chart.querySelectorAll("[role=slider]").forEach((handle) => {
      const [width, own] = points[handle.dataset.point];
      handle.setAttribute("transform", `translate(${x(width)} ${y(own)})`);
      handle.setAttribute("aria-valuenow", own.toFixed(2));
      handle.setAttribute("aria-valuetext", `${own.toFixed(2)} passes`);
    });
    results();
  };
  // No pass gets cheaper by being wider: a point takes those with it that it would pass.
  const set = (number, value) => {
    const own = Math.min(HIGH, Math.max(1, value));
    points.forEach((point, at) => {
      if (at === number) point[1] = own;
      else if (at && at < number) point[1] = Math.min(point[1], own);
      else if (at > number) point[1] = Math.max(point[1], own);
    });
    place();
  };
  const handle = (number) => {
    const own = make("svg:g", { role: "slider", tabindex: 0, "data-point": number, "aria-orientation": "vertical",
      "aria-label": `Price of a pass over ${points[number][0]} tokens`, "aria-valuemin": 1, "aria-valuemax": HIGH },
      make("svg:circle", { r: 15, class: "reach" }), make("svg:circle", { r: 6 }));
    const moved = (event) => {
      const box = chart.getBoundingClientRect();
      set(number, priceAt((event.clientY - box.top) * TALL / box.height));
    };
    own.addEventListener("pointerdown", (event) => {
      own.setPointerCapture(event.pointerId);
      own.addEventListener("pointermove", moved);
    });
    for (const end of ["pointerup", "pointercancel"]) own.addEventListener(end, () => own.removeEventListener("pointermove", moved));
    own.addEventListener("keydown", (event) => {
      const steps = { ArrowUp: 1.05, ArrowRight: 1.05, ArrowDown: 1 / 1.05, ArrowLeft: 1 / 1.05, PageUp: 1.4, PageDown: 1 / 1.4 };
      const ends = { Home: 1, End: HIGH };
      if (!(event.key in steps) && !(event.key in ends)) return;
      event.preventDefault();
      event.stopPropagation();
      set(number, ends[event.key] || points[number][1] * steps[event.key]);
    });
    return own;
  };
  const begin = () => {
    points = data.presets[preset.value].points.map((point) => [...point]);
    drafting.value = 1;
    const grid = [1, 2, 4, 8, 16].flatMap((own) => [make("svg:line", { x1: left, x2: right, y1: y(own), y2: y(own) }),
      make("svg:text", { x: left - 6, y: y(own) + 4, "text-anchor": "end" }, `${own}`)]);
    const ticks = [1, 2, 4, 8, 16, 32, 64, 128].map((own) => make("svg:text", { x: x(own), y: bottom + 15, "text-anchor": "middle" },
      `${own}`));
    const name = make("svg:text", { x: (left + right) / 2, y: bottom + 29, "text-anchor": "middle" }, "tokens in the pass");
    chart.replaceChildren(...grid, ...ticks, name, line, ...points.slice(1).map((_, at) => handle(at + 1)));
    place();
  };
  preset.addEventListener("change", begin);
  task.addEventListener("change", results);
  drafting.addEventListener("input", results);
  begin();
  root.hidden = false;
});
