// Refresh of a page: requests a visible page again every 30 s, or as chosen, and replaces changed
// parts.
"use strict";
// Times are in the zone of the browser: a cookie names it to the server. UTC stays if it was chosen.
(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const kept = () => (/(?:^|; )ccagent-zone="?([^;"]*)/.exec(document.cookie) || [])[1];
  const isShown = document.body.dataset.zone === zone;
  if (!zone || kept() === "UTC" || kept() === zone || (isShown && !kept())) return;
  document.cookie = `ccagent-zone=${zone}; path=/; max-age=31536000; samesite=lax`;
  const isChosen = new URLSearchParams(location.search).has("tz");
  if (kept() === zone && !isShown && !isChosen && document.getElementById("data")) location.reload();
})();
(() => {
  const CHOICES = { "10": "10 s", "30": "30 s", "300": "5 min", "0": "off" }, LONGEST = 300;
  const note = document.getElementById("live");
  if (!note || !document.getElementById("data")) return;
  const parameters = new URLSearchParams(location.search);
  const isFixed = parameters.has("to") || document.body.dataset.fixed === "yes";
  let every = 30;
  try { every = Number(localStorage.getItem("ccagent-refresh") in CHOICES ? localStorage.getItem("ccagent-refresh") : 30); } catch (error) { /* not permitted */ }
  let tag = "", pause = every, timer = 0, seen = new Date();

  function offerChoice() {
    const choice = document.createElement("select");
    choice.setAttribute("aria-label", "refresh");
    for (const [value, text] of Object.entries(CHOICES)) choice.add(new Option(text, value, false, Number(value) === every));
    choice.onchange = () => {
      every = pause = Number(choice.value);
      try { localStorage.setItem("ccagent-refresh", every); } catch (error) { /* not permitted */ }
      say(rhythm()); plan();
    };
    note.after(" ", choice);
  }

  function rhythm() { return every ? `Refreshed every ${CHOICES[every]}.` : "Not refreshed."; }

  function say(text) { if (note.textContent !== text) note.textContent = text; }

  function nameOf(details) { return details.id || details.querySelector("summary").textContent; }
  function opened(root) {
    return new Set([...root.querySelectorAll("details")].filter((one) => one.open).map(nameOf));
  }

  // Elements with keyboard focus are found again by link or text, else by position.
  function reachable(root) { return [...root.querySelectorAll("a[href], summary, button, [tabindex='0']")]; }
  function label(one) { return one.tagName + (one.getAttribute("href") || one.textContent); }

  function keepPlace(old) {
    const active = document.activeElement, place = reachable(old).indexOf(active);
    const scrolled = [...old.querySelectorAll(".wide")].map((one) => one.scrollLeft);
    return (fresh) => {
      [...fresh.querySelectorAll(".wide")].forEach((one, n) => { one.scrollLeft = scrolled[n] || 0; });
      if (place < 0) return;
      const found = reachable(fresh), there = found[place];
      const same = found.filter((one) => label(one) === label(active));
      const next = same.length && !same.includes(there) ? same[0] : there;
      if (next) next.focus({ preventScroll: true });
    };
  }

  function replace(text) {
    const page = new DOMParser().parseFromString(text, "text/html");
    const fresh = page.getElementById("main"), old = document.getElementById("main");
    if (!fresh || !old) return;
    const open = opened(old);
    const marked = [...old.querySelectorAll("td :checked")].map((one) => one.value);
    for (const one of fresh.querySelectorAll("td input")) one.checked = marked.includes(one.value);
    [...fresh.querySelectorAll("details")].forEach((one) => { one.open = open.has(nameOf(one)); });
    // Bokeh's plots stay; they request their new values separately.
    for (const plot of old.querySelectorAll("figure.zoomed")) {
      const place = fresh.querySelector("#" + CSS.escape(plot.id));
      if (place) place.replaceWith(plot);
    }
    const restore = keepPlace(old);
    old.replaceWith(fresh);
    restore(fresh);
    document.title = page.title;
    document.querySelector("footer time").textContent = page.querySelector("footer time").textContent;
    document.dispatchEvent(new Event("ccagent:fresh"));
  }

  function isBusy() {
    const active = document.activeElement, main = document.getElementById("main");
    const isTyping = active && main.contains(active) && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName);
    const selection = document.getSelection();
    return isTyping || (selection && !selection.isCollapsed && main.contains(selection.anchorNode));
  }

  async function refresh() {
    if (document.hidden || isBusy()) return plan();
    try {
      const headers = { "Cache-Control": `max-age=${Math.min(every, 25)}` };
      const answer = await fetch(location.href, { cache: "no-cache", credentials: "same-origin", headers });
      if (answer.redirected && new URL(answer.url).pathname === "/login") { location.reload(); return; }
      if (!answer.ok) throw new Error(answer.status);
      const found = answer.headers.get("etag");
      const text = await answer.text();
      if (!isBusy() && (!found || found !== tag)) replace(text);
      tag = found; pause = every; seen = new Date();
      document.getElementById("main").classList.remove("stale");
      say(rhythm());
    } catch (error) {
      pause = Math.min(LONGEST, pause * 2);
      document.getElementById("main").classList.add("stale");
      const why = error instanceof TypeError ? "can't be reached" : `answers with ${error.message}`;
      say(`The store ${why}; next try in ${pause} s. These figures are of ${seen.toLocaleTimeString([], { timeZone: document.body.dataset.zone })}.`);
    }
    plan();
  }

  function plan() { clearTimeout(timer); if (every) timer = setTimeout(refresh, pause * 1000); }

  // The script of the crosshair is loaded when the pointer first reaches a plot.
  document.addEventListener("pointermove", function load(event) {
    if (!event.target.closest || !event.target.closest("figure.plot")) return;
    document.removeEventListener("pointermove", load);
    const script = document.createElement("script");
    script.src = document.body.dataset.crosshair;
    script.onload = () => event.target.dispatchEvent(new PointerEvent("pointermove", event));
    document.head.append(script);
  });

  if (isFixed) { say("A fixed time: not refreshed."); return; }
  say(rhythm());
  offerChoice();
  document.addEventListener("visibilitychange", () => { if (every && !document.hidden && new Date() - seen > every * 1000) refresh(); });
  plan();
})();
