(() => {
  const EVERY_MS = 5000, TIMEOUT_MS = 4000;
  const by = (id) => document.getElementById(id);
  let timer, asking = false, paused = false, lostSince = null;

  // Changes `old` into `fresh` and touches only what differs: focus, scroll and selection stay.
  function morph(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) return old.replaceWith(fresh);
    if (old.nodeType === Node.TEXT_NODE) { old.data = fresh.data; return; }
    for (const { name } of [...old.attributes])
      if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes)
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const now = [...old.childNodes];
    [...fresh.childNodes].forEach((node, i) => i < now.length ? morph(now[i], node) : old.append(node));
    now.slice(fresh.childNodes.length).forEach((node) => node.remove());
  }

  function say(text) {
    if (by("lost").textContent !== text) by("lost").textContent = text;
  }

  async function refresh() {
    clearTimeout(timer);
    if (asking || paused || document.hidden) return;
    asking = true;
    try {
      const reply = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
      const page = new DOMParser().parseFromString(await reply.text(), "text/html");
      if (!reply.ok || !page.getElementById("now")) throw new Error("not the page");
      const heading = page.querySelector("h1").textContent;
      if (heading !== document.querySelector("h1").textContent) return location.reload();  // another version
      const focused = document.activeElement.getAttribute("href");
      morph(document.querySelector("main"), page.querySelector("main"));
      morph(by("now"), page.getElementById("now"));
      document.title = page.title;
      if (focused && document.activeElement === document.body)
        [...document.links].find((a) => a.getAttribute("href") === focused)?.focus({ preventScroll: true });
      lostSince = null;
      say("");
    } catch {
      lostSince ??= new Date();
      say(`Connection to mtpmon lost since ${lostSince.toISOString().slice(11, 19)} UTC. What you see is older.`);
    }
    asking = false;
    timer = setTimeout(refresh, EVERY_MS);
  }

  by("pause").hidden = false;
  by("pause").onclick = () => {
    paused = !paused;
    by("pause").textContent = paused ? "Resume" : "Pause";
    refresh();
  };
  document.addEventListener("visibilitychange", refresh);
  timer = setTimeout(refresh, EVERY_MS);
})();
