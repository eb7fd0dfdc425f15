"use strict";
/* The card of one image. All its words were made with the site. */
(() => {
  const known = globalThis.knowngood.find;
  const names = Object.fromEntries(known.attention);
  let number = 0;
  let chosen = "knowngood";

  function element(name, text, attributes = {}, children = []) {
    const made = document.createElement(name);
    if (text) made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  /* A page that was not loaded by TLS has no navigator.clipboard; selected text can be copied all the same. */
  async function copy(text) {
    if (navigator.clipboard) {
      try {
        await navigator.clipboard.writeText(text);
        return true;
      } catch {
        /* not allowed here: the other way is tried */
      }
    }
    const area = element("textarea", text, { readonly: "", "aria-hidden": "true", class: "hidden" });
    const before = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    before?.focus();
    return done;
  }

  function command(text) {
    const button = element("button", "Copy", { type: "button", class: "copy" });
    button.addEventListener("click", async () => {
      button.textContent = (await copy(text)) ? "Copied" : "Select it and press Ctrl+C";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    return element("div", "", { class: "run" }, [element("pre", "", {}, [element("code", text)]), button]);
  }

  function fill(text, values) {
    return Object.entries(values).reduce((part, [name, value]) => part.split(`{${name}}`).join(value), text);
  }

  /* The commands of an image: a tab for each tool, moved through with the arrow keys. */
  function tabs(commands, values) {
    const panels = commands.map(({ note, text }) =>
      [...(note ? [element("p", note)] : []), command(fill(text, values))]);
    if (commands.length === 1) return element("div", "", {}, panels[0]);
    const own = `tools${number++}`;
    const list = element("div", "", { role: "tablist", "aria-label": "How to run it" });
    const boxes = panels.map((children, place) =>
      element("div", "", { role: "tabpanel", id: `${own}-${place}`, "aria-labelledby": `${own}-tab-${place}`, tabindex: "0" }, children));
    const buttons = commands.map(({ tool }, place) =>
      element("button", tool, { type: "button", role: "tab", id: `${own}-tab-${place}`, "aria-controls": `${own}-${place}` }));
    const select = (place) => {
      buttons.forEach((button, at) => {
        button.setAttribute("aria-selected", String(at === place));
        button.tabIndex = at === place ? 0 : -1;
        boxes[at].hidden = at !== place;
      });
    };
    buttons.forEach((button, place) => {
      button.addEventListener("click", () => {
        chosen = button.textContent;
        select(place);
      });
      button.addEventListener("keydown", (event) => {
        const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: buttons.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        const next = buttons[(to + buttons.length) % buttons.length];
        next.click();
        next.focus();
      });
    });
    list.append(...buttons);
    select(Math.max(0, commands.findIndex(({ tool }) => tool === chosen)));
    return element("div", "", { class: "tools" }, [list, ...boxes]);
  }

  function facts(info) {
    const items = [...info.contents];
    if (info.size) items.push(["size", `${info.size}, compressed`]);
    const cuda = Object.fromEntries(info.contents).CUDA || "";
    const driver = info.driver || known.minimum[cuda.replace(".", "")];
    items.push(["driver", driver ? `${driver} or newer` : "not known"]);
    return element("dl", "", { class: "facts" }, items.map(([name, value]) =>
      element("div", "", {}, [element("dt", name), element("dd", value)])));
  }

  function incident(id) {
    return element("a", known.titles[id] || id, { href: `incidents/${id}.html` });
  }

  function failures(defects) {
    const list = element("ul", "", { class: "failures" });
    for (const [check, because, id] of defects) {
      const item = element("li");
      if (id) item.append(incident(id), ": ");
      item.append(id ? because : `${because} `, " (", element("code", check), ")");
      list.append(item);
    }
    return [element("h3", "Known failures"), element("p", "Seen, and as predicted:"), list];
  }

  const svg = "http://www.w3.org/2000/svg";

  function bar(kind, value, most) {
    const made = document.createElementNS(svg, "svg");
    for (const [key, it] of [["class", "bar"], ["viewBox", "0 0 100 8"], ["preserveAspectRatio", "none"], ["aria-hidden", "true"]]) made.setAttribute(key, it);
    const box = document.createElementNS(svg, "rect");
    for (const [key, it] of [["class", kind], ["width", (100 * value) / most], ["height", 8]]) box.setAttribute(key, it);
    made.append(box);
    return made;
  }

  /* Every attention setting of an image: what is known of it, and what a step costs. */
  function settings(info, table) {
    const rows = Object.entries(info.settings);
    const measured = rows.filter(([, state]) => state.length > 4);
    const most = (place) => Math.max(...measured.map(([, state]) => state[place]));
    const head = ["setting", "state", ...(measured.length ? ["time of a step", "peak memory"] : [])];
    const body = rows.map(([name, [mark, , , , ms, bytes]]) => {
      const [glyph, words] = known.marks[mark];
      const row = element("tr", "", {}, [
        element("th", name, { scope: "row" }),
        element("td", `${glyph} ${words}`, { class: `mark ${mark}` }),
      ]);
      if (measured.length) {
        row.append(
          element("td", "", {}, ms ? [bar("time", ms, most(4)), ` ${ms.toFixed(1)} ms`] : []),
          element("td", "", {}, bytes ? [bar("memory", bytes, most(5)), ` ${(bytes / 1e9).toFixed(2)} GB`] : []),
        );
      }
      return row;
    });
    return element("details", "", {}, [
      element("summary", measured.length ? "Every attention setting, with speed and memory" : "Every attention setting"),
      element("div", "", { class: "wide", tabindex: "0", role: "region", "aria-label": `Attention settings of ${info.values.id}, scrolls sideways` }, [
        element("table", "", { class: "chart" }, [
          element("thead", "", {}, [element("tr", "", {}, head.map((text) => element("th", text, { scope: "col" })))]),
          element("tbody", "", {}, body),
        ]),
      ]),
    ]);
  }

  const short = (version) => (version.split(".").length > 2 ? version.replace(/\.0$/, "") : version);

  /* The article about a choice of `pick`, for a question about the GPU that is called `label`. */
  function card(choice, table, question, label) {
    const info = table.cells[choice.id];
    const setting = question.attn || info.lead;
    const extras = Object.entries(choice.extras || {});
    const contents = [...info.contents, ...extras];
    const [mark, words, , defects] = info.settings[setting] || ["unbuilt", -1, -1, []];
    const common = ["torch", "transformers", "flash-attn", "CUDA", "triton", "Python"];
    const torch = Object.fromEntries(contents).torch;
    const frameworks = contents.filter(([name]) => !common.includes(name)).map((item) => item.join(" "));
    const title = [label, `torch ${short(torch)}`, names[setting], ...frameworks].join(" · ");
    const values = { ...info.values, id: choice.id + extras.map((item) => `-${item.join("")}`).join("") };
    const links = element("p", "", { class: "links" });
    if (info.tier) links.append(element("a", "What was seen, run by run", { href: `cells/${choice.id}.html` }));
    if (info.run) links.append(" · ", element("a", "the newest run that proves it", { href: `evidence/${info.run}` }));
    if (info.tier && info.tier !== "none") links.append(" · ", element("a", "its packages, by hash", { href: `cells/${choice.id}.txt` }));
    return element("article", "", { class: "card" }, [
      element("h2", title),
      element("p", words < 0 ? known.unbuilt : table.words[words], { class: `badge ${mark}` }),
      tabs(known.commands[info.origin], values),
      element("p", known.explanations[mark], { class: "meaning" }),
      facts({ ...info, contents }),
      ...(defects.length ? failures(defects.map((place) => table.defects[place])) : []),
      ...choice.findings.map((text) => element("p", `Note: ${table.texts[text]}`)),
      ...(Object.keys(info.settings).length ? [settings(info, table)] : []),
      links,
      element("p", values.id, { class: "id" }),
    ]);
  }

  globalThis.knowngood.card = { element, command, card };
})();
