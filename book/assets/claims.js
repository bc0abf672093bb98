// Above the claims: a choice for each of verdict, paper and how sure, and a field for words. Without a script all claims are listed.
document.addEventListener("DOMContentLoaded", () => {
  const list = document.querySelector("div.claims");
  if (!list) return;
  const rows = [...list.children];
  const box = document.createElement("div");
  box.className = "claims-filter";
  const labelled = (name, field) => {
    const label = document.createElement("label");
    label.append(`${name} `, field);
    box.append(label);
    return field;
  };
  const choices = [["Verdict", "verdict"], ["Paper", "paper"], ["How sure", "sure"]].map(([name, key]) => {
    const select = labelled(name, document.createElement("select"));
    const counts = new Map();
    for (const row of rows) counts.set(row.dataset[key], (counts.get(row.dataset[key]) || 0) + 1);
    select.append(new Option("all", ""), ...[...counts].map(([value, count]) => new Option(`${value} (${count})`, value)));
    return [key, select];
  });
  const words = labelled("Words", Object.assign(document.createElement("input"), { type: "search", name: "words" }));
  const count = document.createElement("output");
  box.append(count);
  list.before(box);
  const update = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(choices.every(([key, select]) => !select.value || row.dataset[key] === select.value)
        && wanted.every((word) => text.includes(word)));
    }
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  // A link to one claim unfolds it, whatever was filtered.
  const show = () => {
    const row = document.getElementById(location.hash.slice(1));
    if (!rows.includes(row)) return;
    words.value = "";
    for (const [, select] of choices) select.value = "";
    update();
    row.open = true;
    row.scrollIntoView();
  };
  box.addEventListener("input", update);
  window.addEventListener("hashchange", show);
  update();
  show();
});
