"use strict";
(() => {
  const answer = document.getElementById("answer");
  const log = document.getElementById("log");
  let timer = 0;

  function element(name, text, attributes = {}) {
    const made = document.createElement(name);
    if (text) made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  function show(text) {
    if (!text.length) {
      answer.replaceChildren(element("p", "No log yet."));
      return;
    }
    const found = globalThis.knowngoodDiagnose.diagnose(globalThis.knowngood.signatures, text);
    const parts = [];
    if (!found.matches.length) parts.push(element("p", "I don't know: no known failure stands in this log."));
    for (const match of found.matches) {
      const { incident } = match;
      const title = element("h2");
      title.append(element("a", incident.title, { href: `incidents/${incident.id}.html` }));
      const how = incident.severity === "failure" ? "" : `${incident.severity}; `;
      const sure = match.confirmed ? "versions confirmed by the log" : incident.confidence;
      parts.push(title, element("p", `Line ${match.line}; ${how}at fault: ${incident.component}; ${sure}.`), element("p", incident.because));
      const fixes = element("ul");
      for (const fix of match.fix) {
        const change = Object.entries(fix.change || {}).map(([name, versions]) => `${name} ${versions}`).join(", ");
        fixes.append(element("li", [change, fix.note].filter(Boolean).join(": ") + (fix.cost ? ` (costs: ${fix.cost})` : "")));
      }
      if (match.fix.length) parts.push(fixes);
    }
    if (found.excluded.length) parts.push(element("p", `Looks like, but the versions in the log exclude it: ${found.excluded.join(", ")}.`));
    const versions = Object.entries(found.versions).map(([name, texts]) => `${name} ${texts.join(" / ")}`).join(", ");
    parts.push(element("p", `Versions in the log: ${versions || "none"}.`));
    answer.replaceChildren(...parts);
  }

  log.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => show(log.value), 150);
  });
  document.getElementById("file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (file) show(new Uint8Array(await file.arrayBuffer()));
  });
  document.getElementById("diagnose").addEventListener("submit", (event) => event.preventDefault());
  if (log.value) show(log.value);
})();
