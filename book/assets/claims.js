// Filter and order of the table of claims, whose rows show one line of each cell until they are opened. Without it the
// table is whole, in the order of the papers.
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("table.claims-ledger");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const text = (row, selector) => row.querySelector(selector).textContent;
  const facts = new Map(rows.map((row, place) => [row, {
    place, paper: text(row, ".claim-paper"), verdict: text(row, ".claim-verdict"), id: text(row, ".claim-id code"),
    words: row.textContent.toLowerCase(), headline: row.querySelector(".claim-headline") !== null,
  }]));
  const distinct = (key) => [...new Set([...facts.values()].map((fact) => fact[key]))];
  const verdicts = [...document.querySelectorAll("table.claims-summary .claim-verdict")].map((e) => e.textContent);

  const open = (row, wanted) => {
    row.classList.toggle("closed", !wanted);
    const button = row.querySelector(".claim-more");
    button.setAttribute("aria-expanded", wanted);
    button.firstChild.data = wanted ? "less" : "more";
  };
  for (const [row, fact] of facts) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "claim-more";
    const about = document.createElement("span");
    about.className = "visually-hidden";
    about.textContent = ` about ${fact.id}`;
    button.append("more", about);
    button.addEventListener("click", () => open(row, row.classList.contains("closed")));
    row.querySelector(".claim-text").append(" ", button);
    open(row, false);
  }

  const field = (label, control) => {
    const box = document.createElement("label");
    box.append(label, control);
    return box;
  };
  const choice = (name, options) => {
    const select = document.createElement("select");
    select.name = name;
    for (const [value, label] of options) select.add(new Option(label, value));
    return select;
  };
  const any = (words, values) => [["", words], ...values.map((value) => [value, value])];
  const paper = choice("paper", any("all papers", distinct("paper")));
  const verdict = choice("verdict", any("all verdicts", verdicts.filter((v) => distinct("verdict").includes(v))));
  const order = choice("order", [["place", "as in the papers"], ["verdict", "by verdict"], ["id", "by name"]]);
  const words = document.createElement("input");
  words.type = "search";
  words.name = "words";
  const details = document.createElement("input");
  details.type = "checkbox";
  details.name = "details";
  details.addEventListener("change", () => rows.forEach((row) => open(row, details.checked)));
  const headlines = document.createElement("input");
  headlines.type = "checkbox";
  headlines.name = "headlines";
  const count = document.createElement("output");
  const form = document.createElement("form");
  form.className = "claims-filter";
  form.setAttribute("role", "search");
  form.setAttribute("aria-label", "Filter the claims");
  form.append(field("Paper", paper), field("Verdict", verdict), field("Text", words), field("Order", order),
    field("Headlines only", headlines), field("Rules and reasons", details), count);

  const compare = {
    place: () => 0,
    verdict: (a, b) => verdicts.indexOf(a.verdict) - verdicts.indexOf(b.verdict),
    id: (a, b) => a.id.localeCompare(b.id),
  };
  const update = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const [row, fact] of facts) {
      row.hidden = (paper.value && fact.paper !== paper.value) || (verdict.value && fact.verdict !== verdict.value)
        || (headlines.checked && !fact.headline) || !wanted.every((word) => fact.words.includes(word));
      left += !row.hidden;
    }
    const sorted = [...rows].sort((one, two) => {
      const [a, b] = [facts.get(one), facts.get(two)];
      return compare[order.value](a, b) || a.place - b.place;
    });
    body.append(...sorted);
    count.textContent = `${left} of ${rows.length} claims`;
  };
  // A link to one claim shows all of it, whatever was filtered.
  const show = () => {
    const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!facts.has(row)) return;
    open(row, true);
    if (row.hidden) {
      form.reset();
      update();
    }
    row.scrollIntoView();
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", show);
  (table.closest(".pst-scrollable-table-container") || table).before(form);
  update();
  show();
});
