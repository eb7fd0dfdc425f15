"use strict";
/* A question to the first page: how the URL states it, and its answer in the tables that were made with the site. */
(() => {
  const known = globalThis.knowngood.find;
  const parts = ["gpu", "attn", "framework", "transformers", "driver"];
  const waiting = new Map();

  /* The question in a URL; parts that the site does not know are left out. */
  function read(search) {
    const given = new URLSearchParams(search);
    const question = Object.fromEntries(parts.map((part) => [part, (given.get(part) || "").slice(0, 200)]));
    if (!known.attention.some(([setting]) => setting === question.attn)) question.attn = "";
    if (!known.frameworks.includes(question.framework)) question.framework = "";
    return question;
  }

  function write(question) {
    const stated = parts.filter((part) => question[part]).map((part) => [part, question[part]]);
    return `?${new URLSearchParams(stated)}`;
  }

  /* The kind of machine that a name means (as `GpuCatalog.find_machines`), or a sentence that says why there is none. */
  function findGpu(text) {
    if (!text.trim()) return { why: "Choose a card above, or type its name." };
    const named = known.gpus.find((gpu) => gpu.name === text.trim());
    if (named) return named;
    const match = globalThis.knowngood.matchGpuName(known.gpu_names, text);
    const meant = known.gpus.filter((gpu) => match.capabilities.includes(gpu.sm));
    const arm = meant.filter((gpu) => gpu.host === "aarch64");
    const cards = match.cards.length ? match.cards : meant.flatMap((gpu) => gpu.cards);
    const gpus = cards.every((card) => arm.some((gpu) => gpu.cards.includes(card))) ? arm : meant.filter((gpu) => !arm.includes(gpu));
    if (match.kind === "known" && gpus.length === 1) return gpus[0];
    const list = gpus.map((gpu) => `${gpu.sm} (${gpu.label})`).join("; ");
    const why = {
      known: `"${text.trim()}" is more than one architecture; say which: ${list}.`,
      ambiguous: `There are several cards of that name; say which: ${match.cards.join(", ")}.`,
      architecture: `There is no ${match.capabilities[0]} in the matrix.`,
      "other-maker": `${match.maker} is not covered: all facts are about NVIDIA's CUDA.`,
      instance: "That looks like the name of a cloud instance; name its card, as nvidia-smi -L prints it there.",
      unknown: `There is no GPU "${text.trim()}" in the matrix; the nearest name is ${globalThis.knowngood.nearestGpuName(known.gpu_names, text)}. nvidia-smi --query-gpu=compute_cap --format=csv prints the architecture of any card.`,
    };
    return { why: why[match.kind] };
  }

  /* The words by which a card's heading names the GPU: the card that was typed, or those that people know. */
  function nameGpu(gpu, text) {
    const { cards } = globalThis.knowngood.matchGpuName(known.gpu_names, text);
    return cards.length === 1 && gpu.cards.includes(cards[0]) ? cards[0] : gpu.label;
  }

  function isOlder(one, two) {
    const [a, b] = [one, two].map((text) => text.split(".").map(Number));
    for (let place = 0; place < Math.max(a.length, b.length); place++) {
      if ((a[place] || 0) !== (b[place] || 0)) return (a[place] || 0) < (b[place] || 0);
    }
    return false;
  }

  const driverOf = (text) => (text.match(/^\s*(\d+(?:\.\d+){0,3})\s*$/) || [])[1];

  /* A table is JSON, compressed by gzip and written in base64. */
  function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  }

  /* A script, because a page opened as a file may read nothing else. */
  function load(gpu) {
    if (!waiting.has(gpu)) {
      waiting.set(gpu, new Promise((done, failed) => {
        const script = document.createElement("script");
        script.src = `data/${gpu}.js`;
        script.onload = () => done(unpack(globalThis.knowngood[gpu]));
        script.onerror = () => failed(new Error(`data/${gpu}.js could not be read`));
        document.head.append(script);
      }));
    }
    return waiting.get(gpu);
  }

  /* What `knowngood pick` answers; `wide` when it is the answer for any transformers, `null` when no driver is so old. */
  function look(table, question) {
    const row = table.rows[question.framework][question.attn];
    const driver = driverOf(question.driver);
    const down = (place) => {
      const steps = table.ladders[row[place]];
      return driver ? steps.find(([least]) => !isOlder(driver, least)) : steps[0];
    };
    const place = table.transformers[question.framework].indexOf(question.transformers) + 1;
    const step = down(place);
    if (step) return { ...table.answers[step[1]], wide: false };
    const any = place ? down(0) : null;
    return any ? { ...table.answers[any[1]], wide: true } : null;
  }

  globalThis.knowngood.question = { read, write, findGpu, nameGpu, isOlder, driverOf, load, look };
})();
