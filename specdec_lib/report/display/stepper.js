// Steps through recorded generations. Without it, the static text in the same place stays.
(() => {
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const labelled = (label, control) => make("label", {}, make("span", {}, label), control);
  const choice = (names) => {
    const select = make("select");
    names.forEach((name, place) => select.add(new Option(name, place)));
    return select;
  };
  const count = (number, word) => `${number} ${word}${number === 1 ? "" : word.endsWith("s") ? "es" : "s"}`;
  const visible = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ +| +$/g, (s) => "·".repeat(s.length));

  const start = (root) => {
    const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    const text = (place) => data.texts[place];
    const join = (places) => places.map(text).join("");
    const examples = data.examples.map((example) => ({
      ...example, runs: example.runs.map((run) => ({ ...run, states: replay(run) })),
    }));

    // What was emitted and spent up to each step; place 0 is the pass over the prompt.
    function replay(run) {
      const paid = data.costs.map(() => 0);
      let done = 1;
      const states = [{ emitted: 1, tokens: run.first, paid: [...paid] }];
      for (const step of run.steps) {
        const tokens = [...step.a.map((node) => step.t[node]), ...step.o];
        done += tokens.length;
        paid.forEach((sum, curve) => { paid[curve] = sum + step.c[curve] + (step.d ? step.d[curve] : 0); });
        states.push({ emitted: done, tokens, paid: [...paid], step });
      }
      return states;
    }

    const prompt = choice(examples.map((example) => example.name));
    const method = choice(examples[0].runs.map((run) => run.method));
    const cost = choice(data.costs);
    const slider = make("input", { type: "range", min: 0, step: 1 });
    const button = (sign, label, move) => {
      const own = make("button", { type: "button", "aria-label": label, title: label }, sign);
      own.addEventListener("click", () => show(move(place())));
      return own;
    };
    const back = [button("«", "first step", () => 0), button("‹", "one step back", (n) => n - 1)];
    const on = [button("›", "one step on", (n) => n + 1), button("»", "last step", () => Infinity)];
    const where = make("output", { "aria-hidden": "true" });
    const summary = make("p", { role: "status", "aria-live": "polite", class: "summary" });
    const facts = make("dl");
    const context = make("div", { class: "text", tabindex: 0, role: "region", "aria-label": "Text so far" });
    const draft = make("div", { class: "draft", tabindex: 0, role: "region", "aria-label": "Draft of this step" });
    const race = make("div", { class: "race", "aria-hidden": "true" });
    const live = make("div", { class: "specdec-live", role: "group", tabindex: -1, "aria-label":
      "Step through a generation. Arrow keys left and right move by one step, Home and End to the first and the last." },
      make("div", { class: "bar" }, labelled("Prompt", prompt), labelled("Method", method),
        labelled("Cost of a pass on", cost)),
      make("div", { class: "bar steps" }, ...back, labelled("Step", slider), where, ...on),
      summary, facts,
      make("div", { class: "panels" }, make("div", {}, make("h4", {}, "Text so far"), context),
        make("div", {}, make("h4", {}, "Draft of this step"), draft)),
      race,
      make("p", { class: "legend" }, make("b", { class: "kept" }, "accepted"), " drafted and accepted ",
        make("b", { class: "lost" }, "rejected"), " drafted and rejected ", make("b", { class: "own" }, "own"),
        " the target's own token ", make("b", { class: "source" }, "source"), " copied by the draft of this step. Under a node: the drafter's score and the source, where it has them."));

    const run = () => examples[prompt.value].runs[method.value];
    const place = () => Number(slider.value);

    const chip = (kind, word, token, notes = []) => {
      const own = make("span", { class: `node ${kind}` }, make("span", { class: "said" }, `${word}: `),
        make("code", {}, visible(text(token))));
      if (notes.length) own.append(make("small", {}, notes.join(" ")));
      return own;
    };
    const tree = (step, root) => {
      const below = new Map();
      const parent = (node) => (step.p ? step.p[node] : node - 1);
      const kept = new Set(step.a);
      step.t.forEach((_, node) => below.set(parent(node), [...(below.get(parent(node)) || []), node]));
      for (const nodes of below.values()) nodes.sort((one, two) => kept.has(two) - kept.has(one) || one - two);
      const last = step.a.length ? step.a[step.a.length - 1] : -1;
      if (step.o.length) below.set(last, ["own", ...(below.get(last) || [])]);
      const node = (one) => {
        if (one === "own") return chip("own", "the target's own", step.o[0]);
        const notes = [];
        if (step.s) notes.push(step.s[one].toFixed(2));
        if (step.f) notes.push(step.f[one]);
        return chip(kept.has(one) ? "kept" : "lost", kept.has(one) ? "accepted" : "rejected", step.t[one], notes);
      };
      const branches = (from) => {
        const list = make("ul");
        for (const first of below.get(from) || []) {
          const line = make("li", {}, node(first));
          let end = first, next;
          while ((next = below.get(end) || []).length === 1) {
            [end] = next;
            line.append(node(end));
          }
          if (next.length) line.append(branches(end));
          list.append(line);
        }
        return list;
      };
      const box = [make("p", {}, chip("root", "last token", root)), branches(-1)];
      if (step.h) box.push(make("p", { class: "left" }, `${count(step.h, "more node")} of this draft, all rejected, not shown`));
      return box;
    };

    const cells = (sizes, whole) => make("div", { class: "cells" },
      ...sizes.map((size) => make("i", { style: `width:${(100 * size) / whole}%` })));

    // The text before a step as places of tokens, and where the draft of the step was copied from in it.
    const before = (number) => [...examples[prompt.value].prompt,
      ...run().states.slice(0, number).flatMap((state) => state.tokens)];
    const source = (step) => step.k - examples[prompt.value].cut;
    const copied = (number) => {
      const { step } = run().states[number];
      if (step.k === undefined) return "";
      const told = before(number), from = source(step), back = told.length - from;
      const after = join(told.slice(Math.max(0, from - 3), Math.max(0, from)));
      return `, copied from ${count(back, "token")} back${after ? `, after “${visible(after)}”` : ""}`;
    };

    const describe = (number, states, curve) => {
      const name = run().method, { step, emitted, tokens, paid } = states[number];
      if (!step) return "Step 0. The pass over the prompt gives the first token. Passes are counted from here.";
      const plain = emitted - 1, drafted = step.t.length + (step.h || 0);
      const own = step.o.length ? `wrote “${visible(text(step.o[0]))}” itself` : "the output ended inside the draft";
      const said = drafted === 0
        ? (name === "plain" ? `The target ${own}.` : `${name} drafted nothing; the target ${own}.`)
        : `${name} drafted ${count(drafted, "token")}${copied(number)}; the target accepted ${step.a.length} and ${own}.`;
      return `Step ${number} of ${states.length - 1}. ${said} ${count(tokens.length, "token")} from a pass over `
        + `${step.w}. So far ${(plain / number).toFixed(2)} tokens per pass, and ${(plain / paid[curve]).toFixed(2)} `
        + `times as fast as plain decoding on ${data.costs[curve]}.`;
    };

    let reached = 1;
    const show = (wanted) => {
      const { states, color } = run(), curve = Number(cost.value);
      const number = Math.max(0, Math.min(states.length - 1, wanted));
      slider.max = states.length - 1;
      slider.value = number;
      slider.setAttribute("aria-valuetext", `step ${number} of ${states.length - 1}`);
      where.textContent = `${number} / ${states.length - 1}`;
      live.style.setProperty("--c", color);
      back.forEach((own) => { own.setAttribute("aria-disabled", number === 0); });
      on.forEach((own) => { own.setAttribute("aria-disabled", number === states.length - 1); });

      const { step, emitted, paid } = states[number];
      reached = emitted;
      const said = describe(number, states, curve);
      if (summary.textContent !== said) summary.textContent = said;

      const example = examples[prompt.value];
      const from = step && step.k !== undefined ? source(step) : Infinity;
      const framed = (at) => at >= from && at < from + step.t.length;
      const told = make("span", { class: "prompt" }, example.cut ? `(${count(example.cut, "token")} before) ` : "");
      example.prompt.forEach((token, at) => {
        told.append(framed(at) ? make("span", { class: "source" }, text(token)) : text(token));
      });
      context.replaceChildren(told);
      let at = example.prompt.length;
      states.slice(0, number + 1).forEach((state, one) => {
        const drafted = state.step ? state.step.a.length : 0;
        state.tokens.forEach((token, n) => {
          const kind = `${n < drafted ? "kept" : "own"}${one === number ? " now" : ""}`;
          const copy = framed(at) && one < number ? " source" : "";
          context.append(make("span", { class: kind + copy }, text(token).replace(/\n/g, "↵\n")));
          at += 1;
        });
      });
      context.scrollTop = context.scrollHeight;

      if (step) {
        draft.replaceChildren(...tree(step, states[number - 1].tokens.at(-1)));
        if (!step.t.length) draft.append(make("p", { class: "left" }, "no draft"));
      } else draft.replaceChildren(make("p", { class: "left" }, "nothing is drafted before the first token"));

      const rows = step ? [
        ["Width of the pass", count(step.w, "token")],
        ["Cost of the pass (one token = 1)", step.c[curve].toFixed(2)],
        ["Cost of drafting", step.d ? step.d[curve].toFixed(2) : "0.00"],
        ["Tokens per pass so far", ((emitted - 1) / number).toFixed(2)],
        ["Speed-up so far", ((emitted - 1) / paid[curve]).toFixed(2)],
      ] : [];
      facts.replaceChildren(...rows.map(([term, value]) => make("div", {}, make("dt", {}, term), make("dd", {}, value))));

      const end = states[states.length - 1];
      const whole = Math.max(end.emitted - 1, end.paid[curve]);
      const sizes = states.slice(1, number + 1).map((state, at) => state.paid[curve] - states[at].paid[curve]);
      const row = (name, own, kind, spentOf) => make("div", { class: kind }, make("span", {}, name), own,
        make("span", {}, spentOf));
      race.replaceChildren(
        row(run().method, cells(sizes, whole), "ours", paid[curve].toFixed(1)),
        row("plain decoding", cells(Array(emitted - 1).fill(1), whole), "theirs", (emitted - 1).toFixed(1)),
        make("p", { class: "left" }, "Time so far for the same tokens, in passes over one token; each cell is a pass."));
    };

    method.addEventListener("change", () => {
      const kept = reached; // methods are compared at the same place of the text
      const found = run().states.findIndex((state) => state.emitted >= kept);
      show(found < 0 ? Infinity : found);
      reached = kept;
    });
    // What is shown first has a draft, where there is one.
    const opening = () => Math.max(1, run().states.findIndex((state) => state.step && state.step.t.length));
    method.value = Math.max(0, examples[0].runs.findIndex((one) => one.method !== "plain"));
    prompt.addEventListener("change", () => show(opening()));
    cost.addEventListener("change", () => show(place()));
    slider.addEventListener("input", () => show(place()));
    live.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: place() - 1, ArrowRight: place() + 1, Home: 0, End: Infinity };
      if (!(event.key in moves) || event.target.tagName === "SELECT" || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      event.stopPropagation(); // some themes turn the page with these keys
      show(moves[event.key]);
    });

    root.specdecMove = (steps) => show(place() + steps);
    show(opening());
    root.prepend(live);
    root.classList.add("is-live");
    context.scrollTop = context.scrollHeight; // before, the box was not on the page and had no height
  };

  // While nothing has the focus, the arrows move the viewer that is nearest to the middle of the window, if one is there.
  document.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!steps || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    if (document.activeElement && document.activeElement !== document.body) return;
    const middle = window.innerHeight / 2;
    const away = (root) => {
      const { top, bottom } = root.getBoundingClientRect();
      return Math.max(top - middle, middle - bottom, 0);
    };
    const [nearest] = [...document.querySelectorAll(".specdec-stepper.is-live")].sort((one, two) => away(one) - away(two));
    if (!nearest || away(nearest) > middle / 2) return;
    event.preventDefault();
    event.stopImmediatePropagation(); // a theme turns the page with these keys, and each viewer brings this script
    nearest.specdecMove(steps);
  }, true);

  for (const root of document.querySelectorAll(".specdec-stepper:not([data-ready])")) {
    root.dataset.ready = "yes";
    start(root);
  }
})();
