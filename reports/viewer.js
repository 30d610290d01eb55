// Keys, search and fragments of the session viewer. Without this script the links of the picker still open a step
// (by :target). Nothing here builds markup: it sets classes, `hidden` and text.
"use strict";
(() => {
  const viewer = document.querySelector(".viewer");
  if (!viewer) return;
  const root = document.documentElement;
  const find = viewer.querySelector("input[type=search]");
  const count = viewer.querySelector("output");
  const points = [...viewer.querySelectorAll("article.point")];
  const links = new Map([...viewer.querySelectorAll(".picker a")].map((a) => [a.hash.slice(1), a]));
  const texts = new Map();
  let matching = points;
  let current = null;
  root.classList.add("js");

  const text = (point) => {
    if (!texts.has(point)) {
      texts.set(point, `${point.dataset.search} ${point.textContent}`.toLowerCase());
    }
    return texts.get(point);
  };
  const terms = () => find.value.toLowerCase().split(/\s+/).filter(Boolean);

  const highlight = () => {
    if (!globalThis.Highlight || !CSS.highlights) return;
    CSS.highlights.delete("found");
    const wanted = terms();
    if (!wanted.length || !current) return;
    const ranges = [];
    const walker = document.createTreeWalker(current, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node && ranges.length < 2000; node = walker.nextNode()) {
      const lower = node.data.toLowerCase();
      if (lower.length !== node.data.length) continue;
      for (const term of wanted) {
        for (let at = lower.indexOf(term); at >= 0; at = lower.indexOf(term, at + term.length)) {
          const range = new Range();
          range.setStart(node, at);
          range.setEnd(node, at + term.length);
          ranges.push(range);
        }
      }
    }
    CSS.highlights.set("found", new Highlight(...ranges));
  };

  const show = (point) => {
    if (!point) return;
    if (current) {
      current.classList.remove("current");
      links.get(current.id)?.removeAttribute("aria-current");
    }
    current = point;
    current.classList.add("current");
    const tail = current.querySelector(".tail");
    if (tail) tail.scrollTop = tail.scrollHeight; // its end is where the step begins
    const link = links.get(current.id);
    if (link) {
      link.setAttribute("aria-current", "true");
      const box = link.closest(".picker");
      const [inner, outer] = [link.getBoundingClientRect(), box.getBoundingClientRect()];
      if (inner.top < outer.top || inner.bottom > outer.bottom) box.scrollTop += inner.top - outer.top - outer.height / 3;
    }
    highlight();
  };

  const target = () => document.getElementById(location.hash.slice(1));
  const follow = () => {
    const found = target();
    const point = found?.closest("article.point");
    if (!point) return;
    show(point);
    (found === point ? viewer : found).scrollIntoView({ block: "start" });
    for (const branch of viewer.querySelectorAll(".branch.here")) branch.classList.remove("here");
    if (found !== point) found.classList.add("here");
  };
  const go = (id) => {
    location.hash = id;
    follow(); // at once, not when the event comes: the next key may be quicker
  };

  const step = (by) => {
    const list = matching.length ? matching : points;
    const at = list.indexOf(current);
    const next = at < 0 ? list[0] : list[at + by];
    if (next) go(next.id);
    else document.querySelector(`a[rel=${by > 0 ? "next" : "prev"}]`)?.click();
  };
  const session = (by) => {
    const list = matching.length ? matching : points;
    const name = current?.dataset.session;
    const names = [...new Set(list.map((point) => point.dataset.session))];
    const wanted = names[names.indexOf(name) + by];
    const next = list.find((point) => point.dataset.session === wanted);
    if (wanted !== undefined && next) go(next.id);
    else document.querySelector(`a[rel=${by > 0 ? "next" : "prev"}]`)?.click();
  };
  const branch = (by) => {
    const list = [...(current?.querySelectorAll(".branch") ?? [])];
    const here = list.findIndex((each) => each.classList.contains("here"));
    const next = list[Math.max(0, here + by)];
    if (next) go(next.id);
  };

  const search = () => {
    const wanted = terms();
    matching = wanted.length ? points.filter((point) => wanted.every((term) => text(point).includes(term))) : points;
    const kept = new Set(matching.map((point) => point.id));
    for (const [id, link] of links) {
      // On the index page the steps are elsewhere: their session's name is all there is to search.
      const named = link.closest(".group").dataset.search.toLowerCase();
      const found = points.length ? kept.has(id) : wanted.every((term) => named.includes(term));
      link.parentElement.hidden = !found;
    }
    const shown = [...links.values()].filter((link) => !link.parentElement.hidden);
    for (const group of viewer.querySelectorAll(".picker .group")) {
      group.hidden = wanted.length > 0 && !group.querySelector("li:not([hidden])");
    }
    count.textContent = wanted.length ? `${shown.length} ${shown.length === 1 ? "step" : "steps"} found` : "";
    highlight();
  };

  find.addEventListener("input", search);
  find.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      const first = [...links.values()].find((link) => !link.parentElement.hidden);
      find.blur();
      first?.click();
    } else if (event.key === "Escape") {
      find.value = "";
      search();
      find.blur();
    }
  });
  const keys = {
    j: () => step(1), k: () => step(-1), J: () => session(1), K: () => session(-1),
    n: () => branch(1), p: () => branch(-1), "/": () => find.focus(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    const action = keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  addEventListener("hashchange", follow);
  show(points[0]);
  if (target()) follow();
})();
