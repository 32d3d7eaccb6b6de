// Refresh of a page: requests a visible page again every 30 s, and replaces changed parts.
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
  const EVERY = 30, LONGEST = 300;
  const note = document.getElementById("live");
  if (!note || !document.getElementById("data")) return;
  const parameters = new URLSearchParams(location.search);
  const isFixed = parameters.has("to") || document.body.dataset.fixed === "yes";
  let tag = "", pause = EVERY, timer = 0, seen = new Date();

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
    const chosen = document.getSelection();
    return isTyping || (chosen && !chosen.isCollapsed && main.contains(chosen.anchorNode));
  }

  async function refresh() {
    if (document.hidden || isBusy()) return plan();
    try {
      const answer = await fetch(location.href, { cache: "no-cache", credentials: "same-origin" });
      if (answer.redirected && new URL(answer.url).pathname === "/login") { location.reload(); return; }
      if (!answer.ok) throw new Error(answer.status);
      const found = answer.headers.get("etag");
      const text = await answer.text();
      if (!isBusy() && (!found || found !== tag)) replace(text);
      tag = found; pause = EVERY; seen = new Date();
      document.getElementById("main").classList.remove("stale");
      say(`Refreshed every ${EVERY} s.`);
    } catch (error) {
      pause = Math.min(LONGEST, pause * 2);
      document.getElementById("main").classList.add("stale");
      const why = error instanceof TypeError ? "can't be reached" : `answers with ${error.message}`;
      say(`The store ${why}; next try in ${pause} s. These figures are of ${seen.toLocaleTimeString([], { timeZone: document.body.dataset.zone })}.`);
    }
    plan();
  }

  function plan() { clearTimeout(timer); timer = setTimeout(refresh, pause * 1000); }

  if (isFixed) { say("A fixed time: not refreshed."); return; }
  say(`Refreshed every ${EVERY} s.`);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && new Date() - seen > EVERY * 1000) refresh(); });
  plan();
})();
