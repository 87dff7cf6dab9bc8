// The search names the sections in which the words stand, with a few words around them. It reads search_texts.js, since
// a page that was opened as a file may fetch no other page.
"use strict";
const MOST_SECTIONS = 3;
const AROUND = 240;

// What Sphinx fetches to show where the words stand: its name is enough.
window.fetch = (address) => {
  const name = address.slice((document.documentElement.dataset.content_root ?? "").length);
  return Promise.resolve({ text: () => Promise.resolve(name) });
};

// The stretch of a text in which most of the words stand.
function around(text, words) {
  const lower = text.toLowerCase();
  let best = { start: 0, count: 0 };
  for (const word of words) {
    for (let at = lower.indexOf(word); at >= 0; at = lower.indexOf(word, at + 1)) {
      const start = Math.max(0, at - AROUND / 4);
      const stretch = lower.slice(start, start + AROUND);
      const count = words.filter((each) => stretch.includes(each)).length;
      if (count > best.count) best = { start, count };
    }
  }
  const end = best.start + AROUND;
  return (best.start ? "… " : "") + text.slice(best.start, end).trim() + (end < text.length ? " …" : "");
}

Search.makeSearchSummary = (name, keywords, anchor) => {
  const words = [...keywords].map((word) => word.toLowerCase());
  const count = ([, heading, text]) => {
    const whole = `${heading} ${text}`.toLowerCase();
    return words.filter((word) => whole.includes(word)).length;
  };
  const wanted = anchor ? anchor.slice(1) : "";
  const found = (SEARCH_TEXTS[name] ?? [])
    .map((section) => ({ section, score: count(section) }))
    .filter(({ section, score }) => (wanted ? section[0] === wanted : score))
    .sort((one, other) => other.score - one.score)
    .slice(0, wanted ? 1 : MOST_SECTIONS);
  if (!found.length) return document.createTextNode("");
  const list = document.createElement("ul");
  list.className = "search-sections";
  for (const { section: [id, heading, text] } of found) {
    const item = list.appendChild(document.createElement("li"));
    const link = item.appendChild(document.createElement("a"));
    link.href = `${name}#${id}`;
    link.textContent = heading;
    const shown = item.appendChild(document.createElement("p"));
    shown.className = "context";
    shown.textContent = around(text, words);
  }
  return list;
};
