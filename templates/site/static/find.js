"use strict";
/* The first page: choices whose answer is always a command. The answers were computed by `knowngood pick`. */
(() => {
  const known = globalThis.knowngood.find;
  const { read, write, findGpu, nameGpu, isOlder, driverOf, load, look } = globalThis.knowngood.question;
  const { element, command, card } = globalThis.knowngood.card;
  const names = Object.fromEntries(known.attention);
  const form = document.getElementById("find");
  const answer = document.getElementById("answer");
  let question = read(location.search);

  const field = (name) => document.getElementById(name);

  function control(title, name, made) {
    return element("label", "", { class: "field" }, [element("span", title), made]);
  }

  function select(title, name, options) {
    const list = element("select", "", { id: name, name });
    list.append(...options.map(([value, text]) => element("option", text, { value, "data-text": text })));
    return control(title, name, list);
  }

  function build() {
    const machine = (gpu) => element("option", `${gpu.cards.slice(0, 4).join(", ")}${gpu.cards.length > 4 ? ", ..." : ""} (${gpu.name.replace("-", ", ")})`, { value: gpu.name });
    const cards = element("select", "", { id: "card", name: "gpu" }, [true, false].map((covered) =>
      element("optgroup", "", { label: covered ? "with images" : "without images yet" }, known.gpus.filter((gpu) => gpu.covered === covered).map(machine))));
    const names = known.gpus.flatMap((gpu) => gpu.cards.map((name) => element("option", `${name} (${gpu.name.replace("-", ", ")})`, { value: name })));
    form.append(
      control("Your card", "card", cards),
      control("or its name", "gpu", element("input", "", { id: "gpu", list: "cards", autocomplete: "off", placeholder: "as nvidia-smi prints it" })),
      element("datalist", "", { id: "cards" }, names),
      select("Attention", "attn", [["", "any"], ...known.attention]),
      select("Trainer", "framework", known.frameworks.map((pin) => [pin, pin.replace("==", " ") || "none"])),
      select("transformers", "transformers", [["", "any"]]),
      control("Driver", "driver", element("input", "", { id: "driver", inputmode: "decimal", autocomplete: "off", placeholder: "any, or 580.65.06" })),
    );
    form.hidden = false;
  }

  /* Show the question in the form; what is being typed stays as it is. */
  function fill(gpu, table) {
    if (gpu.name) field("card").value = gpu.name;
    for (const name of ["attn", "framework"]) field(name).value = question[name];
    const releases = table ? table.transformers[question.framework] : known.releases;
    field("transformers").replaceChildren(...["", ...releases].map((release) => element("option", release || "any", { value: release, "data-text": release || "any" })));
    field("transformers").value = question.transformers;
    const named = known.gpus.some((it) => it.name === question.gpu);
    for (const [name, value] of [["gpu", named ? "" : question.gpu], ["driver", question.driver]]) {
      if (document.activeElement !== field(name)) field(name).value = value;
    }
    if (table) mark(table);
  }

  /* Say at each choice when nothing fits with it and all others as they are; it can still be asked about. */
  function mark(table) {
    for (const name of ["attn", "framework", "transformers"]) {
      for (const option of field(name).options) {
        const other = { ...question, [name]: option.value };
        if (name === "framework" && !table.transformers[option.value].includes(other.transformers)) other.transformers = "";
        option.textContent = `${option.dataset.text}${look(table, other)?.cells ? "" : " (nothing fits)"}`;
      }
    }
  }

  const label = (gpu) => nameGpu(gpu, question.gpu);

  /* The question that a way out of a conflict leads to; `null` when the form cannot ask it. */
  function relaxed(change) {
    const [[name, value]] = Object.entries(change);
    if (["attn", "gpu", "driver"].includes(name)) return { ...question, [name]: value };
    if (name === "transformers") {
      const release = value.split(".").slice(0, 2).join(".");
      return known.releases.includes(release) ? { ...question, transformers: release } : null;
    }
    const pin = `${name}==${value}`;
    return known.frameworks.includes(pin) ? { ...question, framework: pin } : null;
  }

  function describe(change) {
    const [[name, value]] = Object.entries(change);
    if (name === "attn") return `Take ${names[value]} (${value})`;
    if (name === "gpu") return `Take another card: ${known.gpus.find((gpu) => gpu.name === value || gpu.cards.includes(value))?.label || value}`;
    if (name === "driver") return `Install driver ${value} or newer`;
    return `Take ${name} ${value}`;
  }

  /* A demand of a conflict in the words of the form. */
  function demand(clash) {
    const [, name, value] = clash.demand.match(/^(\w+)=(\S+)$/) || [];
    if (name === "attn") return names[value];
    if (name === "gpu") return known.gpus.find((gpu) => gpu.name === value || gpu.cards.includes(value))?.label || clash.demand;
    if (name === "driver") return `driver ${driverOf(question.driver)}`;
    return clash.demand;
  }

  /* A source that is a thread on GitHub, or an address, is a link. */
  function source(text) {
    const thread = text.match(/^([\w.-]+\/[\w.-]+)#(\d+)$/);
    const href = thread ? `https://github.com/${thread[1]}/issues/${thread[2]}` : /^https?:\/\/\S+$/.test(text) ? text : "";
    return href ? element("a", text, { href }) : element("span", text);
  }

  function conflict(clashes, table) {
    const ways = clashes.filter((clash) => clash.relax);
    const steps = element("ul", "", { class: "ways" });
    for (const { relax } of ways) {
      const next = relaxed(relax.change);
      const item = element("li");
      if (next) {
        const button = element("button", describe(relax.change), { type: "button" });
        button.addEventListener("click", () => go(next));
        item.append(button);
      } else {
        item.append(describe(relax.change));
      }
      item.append(" ", element("span", relax.cell, { class: "id" }));
      steps.append(item);
    }
    const reasons = element("ul", "", {}, clashes.map((clash) => {
      const sources = clash.sources.map((text) => element("li", "", {}, [source(table.texts[text])]));
      return element("li", "", {}, [
        `${demand(clash)}: ${clash.rules.map((text) => table.texts[text]).join("; ")}`,
        element("details", "", {}, [element("summary", "Where this stands"), element("ul", "", {}, sources)]),
      ]);
    }));
    return element("article", "", { class: "card" }, [
      element("h2", "Nothing fits all of this"),
      element("p", clashes.map(demand).join(" with "), { class: "badge refused" }),
      ...(ways.length ? [element("p", "The nearest that works; what changes least comes first:"), steps] : []),
      element("h3", "Why"),
      reasons,
    ]);
  }

  /* No image of the matrix has the trainer for this card; what else would do is a search that the command makes. */
  function unanswered() {
    const words = ["knowngood", "pick", "--gpu", `"${question.gpu || known.start}"`, `"${question.framework}"`];
    if (question.attn) words.push("--attn", question.attn);
    if (driverOf(question.driver)) words.push("--driver", driverOf(question.driver));
    return element("article", "", { class: "card" }, [
      element("h2", `No image here has ${question.framework.replace("==", " ")} for this`),
      element("p", "The command knows more than this page: it looks at what its packages require."),
      command(words.join(" ")),
    ]);
  }

  /* Why a cell of the matrix is not among the answers. */
  function against(other, table) {
    const values = Object.fromEntries(table.cells[other.id].contents);
    const [wanted, version] = question.framework.split("==");
    const common = ["torch", "transformers", "flash-attn", "CUDA", "triton", "Python"];
    const own = table.cells[other.id].contents.find(([name]) => !common.includes(name));
    const reasons = [];
    if (question.transformers && !`${values.transformers}.`.startsWith(`${question.transformers}.`)) reasons.push(`it has transformers ${values.transformers}`);
    if ((own || []).join("==") !== question.framework) reasons.push(own ? `it is made for ${own.join(" ")}` : `it has no ${wanted} ${version}`);
    for (const text of other.attn[question.attn] || []) reasons.push(table.texts[text]);
    const driver = driverOf(question.driver);
    const counts = driver && known.drivers.find((one) => !isOlder(driver, one));
    for (const text of other.driver[counts] || []) reasons.push(table.texts[text]);
    return reasons.length ? reasons : ["it fits too; those above are better proven, or stand first in the matrix"];
  }

  function others(cells, table) {
    const shown = new Set(cells.map((one) => one.id));
    const left = table.others.filter((other) => !shown.has(other.id));
    if (!left.length) return [];
    const list = element("ul", "", {}, left.map((other) =>
      element("li", "", {}, [element("a", other.id, { href: `cells/${other.id}.html` }), `: ${against(other, table).join("; ")}`])));
    return [element("details", "", { id: "others" }, [
      element("summary", `Why not the ${left.length > 1 ? `${left.length} others` : "other one"} of this GPU in the matrix`),
      list,
    ])];
  }

  function results(cells, table, gpu) {
    const [first, ...rest] = cells.map((choice) => card(choice, table, question, label(gpu)));
    if (!rest.length) return [first];
    const list = rest.map((made, place) => {
      const words = element("summary", "", {}, [
        element("span", made.querySelector("h2").textContent, { class: "title" }),
        element("span", made.querySelector(".badge").textContent, { class: made.querySelector(".badge").className }),
        element("span", cells[place + 1].id, { class: "id" }),
      ]);
      made.querySelector("h2").remove();
      return element("details", "", { class: "alternative" }, [words, made]);
    });
    return [first, element("h2", "These fit too", { class: "also" }), ...list];
  }

  function show(table, gpu) {
    const found = look(table, question);
    const parts = [];
    if (!found) {
      parts.push(element("p", `The driver ${driverOf(question.driver)} is older than any that these packages' CUDA runs with (${known.drivers.at(-1)}).`));
    } else {
      if (found.wide) {
        parts.push(element("p", `For a driver as old as ${driverOf(question.driver)} this page knows no answer for transformers ${question.transformers} alone; this one is for any transformers.`));
      }
      if (found.cells) parts.push(...results(found.cells, table, gpu));
      if (found.conflict) {
        parts.push(conflict(found.conflict, table));
        const next = found.conflict.map((clash) => clash.relax && relaxed(clash.relax.change)).find((it) => it && it.gpu === question.gpu);
        const [best] = (next && look(table, next)?.cells) || [];
        if (best) parts.push(card(best, table, next, label(gpu)));
      }
      if (!found.cells && !found.conflict) parts.push(unanswered());
      parts.push(...others(found.cells || [], table));
    }
    answer.replaceChildren(...parts);
  }

  async function update() {
    const asked = question;
    const gpu = question.gpu ? findGpu(question.gpu) : known.gpus.find((it) => it.name === known.start);
    if (gpu.why || (question.driver.trim() && !driverOf(question.driver))) {
      fill(gpu);
      answer.replaceChildren(element("p", gpu.why || `"${question.driver}" is no driver; one is written like 580.65.06.`));
      return;
    }
    try {
      const table = await load(gpu.name);
      if (asked !== question) return;
      if (question.transformers && !table.transformers[question.framework].includes(question.transformers)) question = { ...question, transformers: "" };
      fill(gpu, table);
      show(table, gpu);
    } catch (error) {
      answer.replaceChildren(element("p", String(error.message || error)));
    }
  }

  /* Ask another question. A choice is a step that Back undoes; while a word is typed the address only follows. */
  function go(next, step = true) {
    question = next;
    history[step ? "pushState" : "replaceState"](null, "", write(question));
    return update();
  }

  /*
   * While a name or a driver is typed, the last answer stays until it is one; what is wrong with it is said when it is
   * left. An answer that is there is not made again then: a click on one of its buttons would be lost.
   */
  const unfinished = { gpu: (value) => value && findGpu(value).why, driver: (value) => value && !/^\s*\d{3}(\.\d+)*\s*$/.test(value) };
  function changed({ type, target }) {
    const { id, value } = target;
    if ((type === "change") !== Boolean(unfinished[id]?.(value))) return undefined;
    return go({ ...question, [id === "card" ? "gpu" : id]: value }, !(id in unfinished));
  }

  build();
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", changed);
  form.addEventListener("change", changed);
  addEventListener("popstate", () => {
    question = read(location.search);
    update();
  });
  update();
})();
