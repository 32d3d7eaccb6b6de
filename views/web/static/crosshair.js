// A common crosshair over all plots of a page, with the values at its time. It requests the values
// of the visible plots when the pointer first reaches one; the tables of plots need no script.
"use strict";
(() => {
  const link = document.getElementById("data");
  if (!link) return;
  let known = new Map(), asked = new Set(), time = null;
  const form = new Intl.DateTimeFormat("sv-SE", { timeZone: document.body.dataset.zone, dateStyle: "short", timeStyle: "short" });

  function figures() { return [...document.querySelectorAll("figure.plot:not(.zoomed)")].filter((one) => one.querySelector("svg.lines")); }

  function isVisible(figure) {
    const place = figure.getBoundingClientRect();
    return place.bottom > 0 && place.top < innerHeight;
  }

  async function ask() {
    const keys = figures().filter(isVisible).map((one) => one.dataset.key).filter((key) => !asked.has(key));
    if (!keys.length) return;
    keys.forEach((key) => asked.add(key));
    const place = new URL(link.href, location.href), current = known;
    place.searchParams.set("plot", keys.join(","));
    try {
      const answer = await fetch(place, { credentials: "same-origin" });
      if (!answer.ok) return;
      const found = await answer.json();
      if (current !== known) return;
      for (const plot of found.plots) known.set(plot.key, plot);
      draw();
    } catch (error) { /* without values there is a line alone */ }
  }

  const BASES = { "B": 1024, "B/s": 1000, "W": 1000, "Wh": 1000 };
  function say(value, unit) {
    if (value === null || value === undefined) return "no value";
    const base = BASES[unit];
    let step = 0, size = Math.abs(value);
    while (base && size >= base && step < 6) { size /= base; step += 1; }
    const number = Math.sign(value) * size;
    const text = Number(number.toPrecision(Math.max(3, Math.ceil(Math.log10(size + 1))))).toLocaleString("en");
    const prefix = " kMGTPE"[step].trim();
    return `${text} ${unit === "B" && prefix ? `${prefix.toUpperCase()}iB` : prefix + unit}`.trim();
  }

  function clock(moment, isElapsed) {
    if (!isElapsed) return form.format(1000 * moment);
    const minutes = Math.floor(moment / 60);
    return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")} h`;
  }

  function make(figure, name, tag) {
    let found = figure.querySelector(`.${name}`);
    if (!found) {
      found = document.createElement(tag);
      found.className = name;
      found.setAttribute("aria-hidden", "true");
      figure.append(found);
    }
    return found;
  }

  function key(name) {
    const [drawing, line] = ["svg", "path"].map((one) => document.createElementNS("http://www.w3.org/2000/svg", one));
    for (const [side, size] of [["width", 12], ["height", 8]]) drawing.setAttribute(side, size);
    line.setAttribute("class", name); line.setAttribute("d", "M0 4h12");
    drawing.append(line);
    return drawing;
  }

  function fill(tip, plot, place) {
    const head = document.createElement("b");
    head.textContent = clock(plot.start + place * plot.step, plot.elapsed);
    const rows = plot.series.slice(0, 12).map((one) => {
      const row = document.createElement("span"), dashes = Math.floor(one.number / 8) % 3;
      row.append(key(`line s${one.number % 8}${dashes ? ` d${dashes}` : ""}`), `${plot.series.length > 1 ? `${one.name}: ` : ""}${say(one.mean[place], plot.unit)}`);
      return row;
    });
    tip.replaceChildren(head, ...rows);
  }

  // The end of a drawing is its last point, that of the data may be later: both have the same start.
  function draw() {
    for (const figure of figures()) {
      const area = figure.querySelector("svg.lines"), line = make(figure, "crosshair", "div"), tip = make(figure, "tip", "div");
      const begin = Number(figure.dataset.start), span = Number(figure.dataset.span);
      line.hidden = tip.hidden = time === null || time < begin || time > begin + span || !isVisible(figure);
      if (line.hidden) continue;
      const box = area.getBoundingClientRect(), outer = figure.getBoundingClientRect();
      const x = box.left - outer.left + box.width * (span ? (time - begin) / span : 0);
      line.style.left = `${x}px`; line.style.top = `${box.top - outer.top}px`; line.style.height = `${box.height}px`;
      const plot = known.get(figure.dataset.key);
      tip.hidden = !plot;
      if (!plot) continue;
      const length = plot.series.length ? plot.series[0].mean.length : 0;
      fill(tip, plot, Math.max(0, Math.min(length - 1, Math.round((time - plot.start) / plot.step))));
      tip.style.top = `${box.top - outer.top}px`;
      const isRight = x > outer.width / 2;
      tip.style.left = isRight ? "auto" : `${x + 8}px`;
      tip.style.right = isRight ? `${outer.width - x + 8}px` : "auto";
    }
  }

  function move(next) { time = next; draw(); if (time !== null) ask(); }

  document.addEventListener("pointermove", (event) => {
    const figure = event.target.closest ? event.target.closest("figure.plot") : null;
    const area = figure && figure.querySelector("svg.lines");
    const box = area && area.getBoundingClientRect();
    if (!box || event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom) {
      if (time !== null && event.pointerType !== "touch") move(null);
      return;
    }
    const share = (event.clientX - box.left) / Math.max(1, box.width);
    move(Number(figure.dataset.start) + share * Number(figure.dataset.span));
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && time !== null) move(null); });
  document.addEventListener("scroll", () => { if (time !== null) { draw(); ask(); } }, { passive: true });
  document.addEventListener("ccagent:fresh", () => { known = new Map(); asked = new Set(); if (time !== null) { draw(); ask(); } });
})();
