// Zooming on pages with ?zoom=1: replaces the server's SVG by plots of Bokeh.
"use strict";
(() => {
  const scripts = (document.body.dataset.zoom || "").split(" ").filter(Boolean);
  const link = document.getElementById("data");
  if (!scripts.length || !link) return;
  const plots = new Map();
  const ranges = [];
  let shown = null, whole = null, loaded = null, timer = 0, isFollowing = false;

  function load(source) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = source; script.onload = resolve;
      script.onerror = () => reject(new Error("Bokeh's script can't be loaded"));
      document.head.append(script);
    });
  }

  function loadAll() {
    loaded = loaded || scripts.reduce((before, one) => before.then(() => load(one)), Promise.resolve());
    return loaded;
  }

  async function ask(keys, times) {
    const place = new URL(link.href, location.href);
    place.searchParams.set("plot", keys.join(","));
    if (times) {
      place.searchParams.delete("range");
      place.searchParams.set("from", Math.floor(times[0]));
      place.searchParams.set("to", Math.ceil(times[1]));
    }
    const answer = await fetch(place, { cache: "no-cache", credentials: "same-origin" });
    if (!answer.ok) throw new Error(`the store answers ${answer.status}`);
    return answer.json();
  }

  function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

  function columns(data, one, factor) {
    const x = one.mean.map((_, n) => shift(data.start + n * data.step));
    const clean = (values) => values.map((value) => (value === null ? NaN : value / factor));
    return { x, low: clean(one.min), y: clean(one.mean), high: clean(one.max) };
  }

  // Bokeh knows no time zones: its times are shifted by the offset of the page's zone, in seconds.
  const form = new Intl.DateTimeFormat("sv-SE", { timeZone: document.body.dataset.zone, dateStyle: "short", timeStyle: "medium" });
  const offsets = new Map();
  function offsetAt(seconds) {
    const quarter = Math.floor(seconds / 900) * 900;
    if (!offsets.has(quarter)) offsets.set(quarter, Date.parse(form.format(1000 * quarter).replace(" ", "T") + "Z") / 1000 - quarter);
    return offsets.get(quarter);
  }
  function shift(seconds) { return 1000 * (seconds + offsetAt(seconds)); }
  function shiftBack(milliseconds) {
    const seconds = milliseconds / 1000;
    return seconds - offsetAt(seconds - offsetAt(seconds));
  }

  const FACTORS = { "B": 1024, "B/s": 1000, "W": 1000, "Wh": 1000 };
  function nice(largest, unit) {
    const base = FACTORS[unit];
    if (!base) return [1, unit];
    const step = Math.max(0, Math.min(5, Math.floor(Math.log(Math.max(1, largest)) / Math.log(base))));
    const prefix = " kMGTP"[step].trim();
    return [base ** step, unit === "B" && prefix ? `${prefix.toUpperCase()}iB` : prefix + unit];
  }

  // Each plot is a separate Bokeh document: ranges are synchronised by code.
  function makeRange() {
    const range = new Bokeh.Range1d({ start: shown[0], end: shown[1] });
    range.change.connect(() => {
      if (isFollowing) return;
      isFollowing = true;
      shown = [range.start, range.end];
      for (const other of ranges) if (other !== range) other.setv({ start: shown[0], end: shown[1] });
      isFollowing = false;
      moved();
    });
    ranges.push(range);
    return range;
  }

  function isWhole() { return Math.abs(shown[0] - whole[0]) < 1000 && Math.abs(shown[1] - whole[1]) < 1000; }

  function make(figure, data) {
    const { figure: create, show } = Bokeh.Plotting;
    const area = figure.querySelector(".drawing");
    if (!area) return;
    const text = colour("--text"), soft = colour("--soft"), edge = colour("--edge"), ground = colour("--ground");
    const largest = Math.max(0, ...data.series.flatMap((one) => one.max.map((value) => value || 0)), ...data.limits.map((one) => one.value));
    const [factor, unit] = nice(largest, data.unit);
    const plot = create({
      height: 230, sizing_mode: "stretch_width", x_axis_type: "datetime", x_range: makeRange(),
      tools: "xpan,xwheel_zoom,xbox_zoom,reset,save", active_drag: "xbox_zoom", toolbar_location: "above",
      background_fill_color: ground, border_fill_color: ground, outline_line_color: edge,
      y_range: new Bokeh.Range1d({ start: 0, end: Math.max(data.top || 0, largest * 1.06 || 1) / factor }),
    });
    plot.yaxis.axis_label = unit || null;
    for (const axis of [plot.xaxis, plot.yaxis]) {
      axis.axis_label_text_color = text; axis.major_label_text_color = soft;
      axis.axis_line_color = edge; axis.major_tick_line_color = edge; axis.minor_tick_line_color = null;
    }
    for (const grid of [plot.xgrid, plot.ygrid]) grid.grid_line_color = edge;
    const dashes = ["solid", "dashed", "dotted"];
    const sources = data.series.map((one) => {
      const stroke = colour(`--s${one.number % 8}`);
      const source = new Bokeh.ColumnDataSource({ data: columns(data, one, factor) });
      plot.varea({ x: { field: "x" }, y1: { field: "low" }, y2: { field: "high" }, source, fill_color: stroke, fill_alpha: 0.2 });
      plot.line({ x: { field: "x" }, y: { field: "y" }, source, line_color: stroke, line_width: 1.6, line_dash: dashes[Math.floor(one.number / 8) % 3] });
      return source;
    });
    for (const limit of data.limits) {
      plot.add_layout(new Bokeh.Span({ location: limit.value / factor, dimension: "width", line_color: colour("--bad"), line_dash: "dashed", line_width: 1.5 }));
    }
    area.setAttribute("role", "img");
    area.setAttribute("aria-label", `${data.title}; the table below has its figures`);
    area.replaceChildren();
    figure.classList.add("zoomed");
    plots.set(data.key, { sources, factor });
    show(plot, area);
  }

  function update(answer) {
    for (const data of answer.plots) {
      const known = plots.get(data.key);
      if (!known || known.sources.length !== data.series.length) continue;
      data.series.forEach((one, n) => { known.sources[n].data = columns(data, one, known.factor); });
    }
  }

  function moved() {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const times = shown.map(shiftBack);
      if (times[1] - times[0] < 10) return;
      try { update(await ask([...plots.keys()], isWhole() ? null : times)); } catch (error) { /* the drawn values stay */ }
    }, 300);
  }

  async function begin(figures) {
    await loadAll();
    const keys = figures.map((one) => one.dataset.key);
    const answer = await ask(keys, null);
    if (!answer.plots.length) return;
    if (!whole) {
      const first = answer.plots[0], length = first.series.length ? first.series[0].mean.length : 1;
      whole = [shift(first.start), shift(first.start + first.step * length)];
      shown = [...whole];
    }
    for (const data of answer.plots) {
      const figure = document.getElementById(`plot-${data.key}`);
      if (figure && !figure.classList.contains("zoomed")) make(figure, data);
    }
  }

  function watch() {
    const waiting = new Set();
    const observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        observer.unobserve(entry.target); waiting.add(entry.target);
      }
      if (waiting.size) {
        const found = [...waiting]; waiting.clear();
        begin(found).catch((error) => { status.textContent = `Zooming does not work: ${error.message}.`; });
      }
    }, { rootMargin: "200px" });
    for (const figure of document.querySelectorAll("figure.plot:not(.zoomed)")) {
      if (figure.querySelector(".drawing")) observer.observe(figure);
    }
  }

  const status = document.createElement("p");
  status.setAttribute("role", "status");
  const place = document.querySelector("form.times");
  if (place) place.after(status);
  watch();
  document.addEventListener("ccagent:fresh", () => {
    watch();
    if (plots.size && isWhole()) {
      ask([...plots.keys()], null).then(update).catch(() => undefined);
    }
  });
})();
