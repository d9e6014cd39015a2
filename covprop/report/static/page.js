"use strict";
(function () {
  const facts = JSON.parse(document.getElementById("facts").textContent);

  // The table: a click sorts, a second click turns the order round; absent values stay last.
  const body = document.querySelector("#summary tbody");
  const heads = Array.from(document.querySelectorAll("#summary thead th"));
  function sortBy(column) {
    const head = heads[column];
    const numeric = head.classList.contains("num");
    const before = head.getAttribute("aria-sort");
    // Large values first is what one wants of accuracy; names begin at A.
    const down = before === null ? numeric : before === "ascending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => {
      const cell = row.children[column];
      if (numeric) return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
      return cell.textContent.trim();
    };
    const rows = Array.from(body.rows);
    rows.sort((a, b) => {
      const x = key(a), y = key(b);
      if (x === null || y === null) return (x === null) - (y === null);
      const order = numeric ? x - y : x.localeCompare(y, undefined, { numeric: true });
      return down ? -order : order;
    });
    for (const row of rows) body.append(row);
  }
  heads.forEach((head, column) =>
    head.querySelector("button").addEventListener("click", () => sortBy(column)));

  // Runs are switched on and off by the legend.
  const area = document.getElementById("curves");
  if (!area) return; // the figures are on pages of their own
  const groups = Array.from(area.querySelectorAll("g[data-run]"));
  const shown = facts.runs.map(() => true);
  for (const button of document.querySelectorAll("#legend button")) {
    button.addEventListener("click", () => {
      const run = Number(button.dataset.run);
      shown[run] = !shown[run];
      button.setAttribute("aria-pressed", String(shown[run]));
      groups[run].style.display = shown[run] ? "" : "none";
    });
  }
  document.getElementById("bands").addEventListener("change", (event) => {
    for (const band of area.querySelectorAll(".band"))
      band.style.display = event.target.checked ? "" : "none";
  });

  // Hovering reads the curves off: y[k] holds for x[k-1] < r <= x[k], and 0 beyond the last.
  const cross = area.querySelector(".cross");
  const tip = document.getElementById("tip");
  const swatches = Array.from(document.querySelectorAll("#legend button .swatch"));
  function at(run, r) {
    let low = 0, high = run.x.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (run.x[middle] < r) low = middle + 1; else high = middle;
    }
    return low < run.x.length ? [run.y[low], run.lo[low], run.hi[low]] : [0, 0, 0];
  }
  const percent = (v) => (100 * v).toFixed(1);
  let radius = 0;
  function show(r) {
    radius = Math.min(Math.max(r, 0), facts.end);
    const left = 100 * radius / facts.end;
    cross.replaceChildren();
    tip.replaceChildren();
    const title = document.createElement("b");
    title.textContent = "r = " + radius.toFixed(3);
    tip.append(title);
    facts.runs.forEach((run, i) => {
      if (!shown[i]) return;
      const [y, lo, hi] = at(run, radius);
      const dot = document.createElement("i");
      dot.style.bottom = 100 * y + "%";
      dot.style.background = "var(--run" + i + ")";
      cross.append(dot);
      const line = document.createElement("div");
      const name = document.createElement("span");
      name.className = "name";
      name.textContent = run.name;
      const value = document.createElement("span");
      value.className = "value";
      value.textContent = percent(y) + " %  [" + percent(lo) + ", " + percent(hi) + "]";
      line.append(swatches[i].cloneNode(true), name, value);
      tip.append(line);
    });
    cross.style.left = left + "%";
    cross.hidden = tip.hidden = false;
    // The read-out keeps to the corner that falling curves leave empty.
    const near = left < 50;
    tip.style.left = near ? "auto" : ".6rem";
    tip.style.right = near ? ".6rem" : "auto";
    tip.style.top = near ? ".5rem" : "auto";
    tip.style.bottom = near ? "auto" : ".5rem";
  }
  function hide() { cross.hidden = tip.hidden = true; }
  function follow(event) {
    const box = area.getBoundingClientRect();
    show(facts.end * (event.clientX - box.left) / box.width);
  }
  area.addEventListener("pointermove", follow);
  area.addEventListener("pointerdown", follow);
  area.addEventListener("pointerleave", hide);
  area.addEventListener("blur", hide);
  area.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") hide();
    if (step === undefined) return;
    event.preventDefault();
    show(radius + step * facts.end / 100);
  });
})();
