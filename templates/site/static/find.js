"use strict";
/* Looks answers up; what fits and what does not was decided by `knowngood pick` when the site was made. */
(() => {
  const known = globalThis.knowngood.find;
  const field = (id) => document.getElementById(id);
  const answer = field("answer");
  const waiting = new Map();

  function element(name, text, attributes = {}) {
    const made = document.createElement(name);
    if (text) made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  function option(list, value, text) {
    list.append(element("option", text, { value }));
  }

  /* One GPU, or a sentence that says why there is none. */
  function gpuOf(text) {
    if (!text.trim()) return { why: "Say which GPU." };
    const match = globalThis.knowngood.matchGpuName(known.gpu_names, text);
    const gpus = known.gpus.filter((gpu) => match.capabilities.includes(gpu.sm));
    if (match.kind === "known" && gpus.length === 1) return gpus[0];
    const list = gpus.map((gpu) => `${gpu.sm} (${gpu.cards.slice(0, 3).join(", ")})`).join("; ");
    const why = {
      known: `"${text.trim()}" is more than one architecture; say which: ${list}.`,
      ambiguous: `There are several cards of that name; say which: ${match.cards.join(", ")}.`,
      architecture: `There is no ${match.capabilities[0]} in the matrix.`,
      "other-maker": `${match.maker} is not covered: all facts are about NVIDIA's CUDA.`,
      instance: "That looks like the name of a cloud instance; name its card, as nvidia-smi -L prints it there.",
      unknown: `There is no GPU "${text.trim()}" in the matrix.`,
    };
    return { why: why[match.kind] };
  }

  function older(one, two) {
    const [a, b] = [one, two].map((text) => text.split(".").map(Number));
    for (let place = 0; place < Math.max(a.length, b.length); place++) {
      if ((a[place] || 0) !== (b[place] || 0)) return (a[place] || 0) < (b[place] || 0);
    }
    return false;
  }

  /* A script, because a page opened as a file may read nothing else. */
  function table(gpu) {
    if (!waiting.has(gpu)) {
      waiting.set(gpu, new Promise((done, failed) => {
        const script = element("script", "", { src: `data/${gpu}.js` });
        script.onload = () => done(globalThis.knowngood[gpu]);
        script.onerror = () => failed(new Error(`data/${gpu}.js could not be read`));
        document.head.append(script);
      }));
    }
    return waiting.get(gpu);
  }

  function cell(found, table, first) {
    const part = element("div");
    const told = known.cells[found.id];
    const built = told && told.tier !== "none" && told.tier !== "resolved";
    part.append(element(first ? "h2" : "h3", found.id));
    const state = told ? `in the matrix: ${told.tier}` : "valid by facts and rules, nobody built it";
    const line = element("p", `${state}; ${needs(found.id)}. `);
    if (told) line.append(element("a", "What was seen", { href: `cells/${found.id}.html` }));
    part.append(line);
    if (built && told.reference) {
      const command = `docker run --rm -it --gpus all --volume "$PWD:/work" --workdir /work ${told.reference}`;
      part.append(element("pre", command));
      const copy = element("button", "Copy", { type: "button" });
      copy.addEventListener("click", () => navigator.clipboard.writeText(command).then(() => { copy.textContent = "Copied"; }));
      part.append(copy);
    } else if (first) {
      part.append(element("pre", told ? `knowngood build ${found.id}` : "knowngood pick " + asked()));
    }
    const extras = Object.entries(found.extras || {}).map(([name, version]) => `${name} ${version}`);
    if (extras.length) part.append(element("p", `With ${extras.join(", ")}.`));
    for (const text of found.findings) part.append(element("p", `Note: ${table.texts[text]}`));
    return part;
  }

  /* A CUDA release's least driver, as facts have it. */
  function needs(id) {
    const least = known.minimum[(id.match(/-cu(\d+)-/) || [])[1]];
    if (!least) return "its least driver is not known";
    return `driver ${least} or newer` + (driver() && older(driver(), least) ? `, newer than yours (${driver()})` : "");
  }

  function asked() {
    const words = [`--gpu ${gpuOf(field("gpu").value).sm}`];
    if (field("attention").value) words.push(`--attn ${field("attention").value}`);
    if (driver()) words.push(`--driver ${driver()}`);
    if (field("transformers").value) words.push(`'transformers==${field("transformers").value}.*'`);
    if (field("framework").value) words.push(field("framework").value);
    return words.join(" ");
  }

  const driver = () => (field("driver").value.match(/^\s*(\d+(?:\.\d+){0,3})\s*$/) || [])[1];

  function clash(found, table) {
    const item = element("li", found.demand);
    const reasons = element("ul");
    for (const text of found.rules) reasons.append(element("li", table.texts[text]));
    if (found.relax) {
      const change = Object.entries(found.relax.change).map(([name, version]) => `${name} ${version}`).join(", ");
      reasons.append(element("li", `The nearest that works: ${change} (${found.relax.cell}; ${needs(found.relax.cell)})`));
    }
    item.append(reasons);
    return item;
  }

  /* Why a cell of the matrix is not among the answers. */
  function against(other, table) {
    const told = known.cells[other.id];
    const [release, pin, setting] = ["transformers", "framework", "attention"].map((id) => field(id).value);
    const reasons = [];
    if (release && !`${told.transformers}.`.startsWith(`${release}.`)) reasons.push(`it has transformers ${told.transformers}`);
    if (told.framework !== pin.replace("==", "")) reasons.push(told.framework ? `it is made for ${told.framework}` : `it has no ${pin}`);
    for (const text of other.attn[setting] || []) reasons.push(table.texts[text]);
    const counts = driver() && known.drivers.find((one) => !older(driver(), one));
    for (const text of other.driver[counts] || []) reasons.push(table.texts[text]);
    return reasons.length ? reasons : ["it fits too; those above are better proven, or stand first in the matrix"];
  }

  function others(found, table) {
    const shown = new Set((found.cells || []).map((one) => one.id));
    const left = table.others.filter((other) => !shown.has(other.id));
    if (!left.length) return [];
    const part = element("details");
    const list = element("ul");
    for (const other of left) {
      const item = element("li");
      item.append(element("a", other.id, { href: `cells/${other.id}.html` }), `: ${against(other, table).join("; ")}`);
      list.append(item);
    }
    part.append(element("summary", `Why not the other ${left.length} of this GPU in the matrix`), list);
    return [part];
  }

  function show(table) {
    const release = field("transformers").value;
    const framework = field("framework").value;
    const row = table.rows[framework][field("attention").value];
    const ladder = (place) => table.ladders[row[place]];
    const down = (steps) => (driver() ? steps.find(([least]) => !older(driver(), least)) : steps[0]);
    const parts = [];
    let step = down(ladder(release ? table.transformers[framework].indexOf(release) + 1 : 0));
    if (!step && release && (step = down(ladder(0)))) {
      parts.push(element("p", `For a driver as old as ${driver()} this page knows no answer for transformers ${release} alone; this one is for any transformers.`));
    }
    if (!step) {
      parts.push(element("p", `The driver ${driver()} is older than any that these packages' CUDA runs with (${known.drivers.at(-1)}).`));
    } else {
      const found = table.answers[step[1]];
      (found.cells || []).forEach((one, place) => parts.push(cell(one, table, place === 0)));
      if (found.conflict) {
        parts.push(element("h2", "Nothing fits; these demands collide"));
        const list = element("ul");
        for (const one of found.conflict) list.append(clash(one, table));
        parts.push(list);
      }
      if (driver() && !found.conflict) parts.push(element("p", `Holds for drivers from ${step[0]}.`));
      if (found.cells && found.cells.length > 1) parts.push(element("p", "Best first; the others fit too."));
      parts.push(...others(found, table));
    }
    answer.replaceChildren(...parts);
  }

  function releases(table) {
    const list = field("transformers");
    const before = list.value;
    list.replaceChildren();
    option(list, "", "any");
    for (const release of table.transformers[field("framework").value]) option(list, release, release);
    list.value = before;
    if (list.value !== before) list.value = "";
  }

  async function update() {
    const gpu = gpuOf(field("gpu").value);
    if (gpu.why) {
      answer.replaceChildren(element("p", gpu.why));
      return;
    }
    if (field("driver").value.trim() && !driver()) {
      answer.replaceChildren(element("p", "A driver is written like 580.65.06."));
      return;
    }
    try {
      const found = await table(gpu.sm);
      releases(found);
      show(found);
    } catch (error) {
      answer.replaceChildren(element("p", String(error.message || error)));
    }
  }

  for (const gpu of known.gpus) for (const card of gpu.cards) option(field("cards"), card, `${card} (${gpu.sm}, ${gpu.family})`);
  for (const setting of known.attention) option(field("attention"), setting, setting);
  for (const framework of known.frameworks) if (framework) option(field("framework"), framework, framework);
  field("find").addEventListener("submit", (event) => event.preventDefault());
  field("find").addEventListener("input", update);
  if (field("gpu").value) update();
})();
