// A field above the table of claims that leaves the rows with all words typed. Without it the table is whole.
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("table.claims");
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  const box = document.createElement("label");
  const words = Object.assign(document.createElement("input"), { type: "search", name: "words" });
  const count = document.createElement("output");
  box.className = "claims-filter";
  box.append("Show claims with ", words, " ", count);
  table.before(box);
  const update = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word));
    }
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  // A link to one claim shows it, whatever was filtered.
  const show = () => {
    const row = document.getElementById(location.hash.slice(1));
    if (!rows.includes(row)) return;
    words.value = "";
    update();
    row.scrollIntoView();
  };
  words.addEventListener("input", update);
  window.addEventListener("hashchange", show);
  update();
  show();
});
