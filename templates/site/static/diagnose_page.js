"use strict";
(() => {
  const answer = document.getElementById("answer");
  const log = document.getElementById("log");
  const button = document.querySelector("#diagnose button");
  let worker = null;

  function say(text) {
    const line = document.createElement("p");
    line.textContent = text;
    answer.replaceChildren(line);
  }

  // The text of the command; an incident that it names is a link to its page.
  function show({ text, incidents, error }) {
    button.disabled = false;
    if (error) {
      say(`It does not run in this browser: ${error.trim().split("\n").pop()}. \`knowngood diagnose LOG\` answers without.`);
      return;
    }
    const words = document.createElement("pre");
    const names = new Set(incidents);
    for (const part of text.split(/([a-z0-9-]+)/)) {
      if (names.has(part)) {
        const link = document.createElement("a");
        link.href = `incidents/${part}.html`;
        link.textContent = part;
        words.append(link);
      } else words.append(part);
    }
    answer.replaceChildren(words);
  }

  document.getElementById("diagnose").addEventListener("submit", async (event) => {
    event.preventDefault();
    const [file] = document.getElementById("file").files;
    const data = file ? new Uint8Array(await file.arrayBuffer()) : new TextEncoder().encode(log.value);
    if (!data.length) {
      say("No log yet.");
      return;
    }
    button.disabled = true;
    say(worker ? "Reading the log." : "Fetching the program once, and reading the log.");
    if (!worker) {
      worker = new Worker("static/diagnose_worker.js", { type: "module" });
      worker.addEventListener("message", ({ data: found }) => show(found));
      worker.addEventListener("error", ({ message }) => {
        worker = null;
        show({ error: message || "its program cannot be fetched" });
      });
    }
    worker.postMessage(data);
  });
})();
