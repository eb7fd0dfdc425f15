"use strict";
/* The list of known failures: only those whose title, package or message has all words that are typed. */
(() => {
  const items = [...document.querySelectorAll(".incidents li")];
  const texts = new Map(items.map((item) => [item, `${item.textContent} ${item.dataset.words}`.toLowerCase()]));
  const found = document.getElementById("found");
  document.getElementById("search").hidden = false;
  document.getElementById("search").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("words").addEventListener("input", ({ target }) => {
    const words = target.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const item of items) item.hidden = !words.every((word) => texts.get(item).includes(word));
    for (const list of document.querySelectorAll(".incidents")) {
      list.hidden = list.previousElementSibling.hidden = [...list.children].every((item) => item.hidden);
    }
    const shown = items.filter((item) => !item.hidden).length;
    found.textContent = words.length ? `${shown} of ${items.length}` : "";
  });
})();
