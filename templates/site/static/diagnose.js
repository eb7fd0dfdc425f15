"use strict";
/*
 * knowngood.diagnose_log, diagnose_versions and diagnose in the browser, over their own patterns (data/signatures.js).
 * Left out, and said on the page: the lines of tracebacks held against published files, errors about names by the atlas,
 * losses that stay nan, and cards by their names.
 * A log is a string in which each character is a byte.
 */
(() => {
  const compiled = new WeakMap();

  function prepare(data) {
    if (!compiled.has(data)) {
      const patterns = Object.fromEntries(Object.entries(data.patterns).map(([name, text]) => [name, new RegExp(text, "g")]));
      const signatures = data.signatures.map((item) => ({
        ...item,
        segments: item.segments.map(([text, size]) => ({ pattern: new RegExp(text, "g"), size })),
      }));
      const index = new Map();
      signatures.forEach((item, number) => {
        for (const word of item.words) {
          const key = word.replace(/[0-9]/g, "");
          index.set(key, [...(index.get(key) || []), [number, word]]);
        }
      });
      compiled.set(data, { data, patterns, signatures, index, prefix: new RegExp(data.prefix, "y"), ansi: new RegExp(data.ansi, "g") });
    }
    return compiled.get(data);
  }

  function bytes(text) {
    const encoded = typeof text === "string" ? new TextEncoder().encode(text) : text;
    let made = "";
    for (let at = 0; at < encoded.length; at += 8192) made += String.fromCharCode(...encoded.subarray(at, at + 8192));
    return made;
  }

  const squeezed = (text) => text.replace(/\xe2\x80[\x98\x99\x9c\x9d]/g, "'").replace(/["`]/g, "'").replace(/[ \t\r\f\v]/g, "");

  const HTML = { "&nbsp;": " ", "&#160;": " ", "&#x27;": "'", "&#39;": "'", "&quot;": '"', "&#34;": '"', "&lt;": "<", "&gt;": ">", "&amp;": "&" };
  const unescaped = (text) => Object.entries(HTML).reduce((made, [escape, character]) => made.replaceAll(escape, character), text);

  function plain(set, window) {
    const text = window.replaceAll("\\n", "\n").replaceAll('\\"', '"').replaceAll("\\'", "'").replaceAll("\r", "\n");
    let made = "";
    for (const line of text.split("\n")) {
      let rest = line;
      for (let count = 0; count < 6; count++) {
        set.prefix.lastIndex = 0;
        const found = set.prefix.exec(rest);
        if (!found) break;
        rest = rest.slice(found[0].length);
      }
      made += squeezed(rest) + (line.length >= 60 ? "" : "\n");
    }
    return made;
  }

  function search(set, signature, text) {
    const [first, ...others] = signature.segments;
    let tries = 0;
    for (const found of text.matchAll(first.pattern)) {
      if (follow(set, others, text, found.index + found[0].length)) return true;
      if (tries++ === 50) break;
    }
    return false;
  }

  function follow(set, segments, text, at) {
    for (const { pattern, size } of segments) {
      const part = text.slice(at, Math.min(text.length, at + set.data.limits.gap + size));
      pattern.lastIndex = 0;
      const found = pattern.exec(part);
      if (!found || part.slice(0, found.index).includes("\n")) return false;
      at += found.index + found[0].length;
    }
    return true;
  }

  const lineBreaks = (text) => text.split("\n").length - 1;

  class Scan {
    constructor(set) {
      Object.assign(this, { set, found: new Map(), lines: 0, looks: 0, steps: 0, seen: new Set() });
    }

    block(block, present) {
      this.steps = 0;
      const hits = new Map();
      for (const key of present) for (const [number, word] of this.set.index.get(key) || []) hits.set(number, [...(hits.get(number) || []), word]);
      for (const [number, words] of hits) {
        const signature = this.set.signatures[number];
        if (this.found.has(number) || words.length < Math.max(1, signature.words.length - 1)) continue;
        const at = this.place(block, number, words.reduce((one, two) => (two.length > one.length || (two.length === one.length && two > one) ? two : one)));
        if (at !== null) this.found.set(number, this.lines + lineBreaks(block.slice(0, at)) + 1);
      }
    }

    place(block, number, word) {
      const { literal } = this.set.signatures[number];
      let at = block.indexOf(literal);
      for (let tries = 0; at >= 0 && tries < 20; tries++) {
        const place = this.look(block, number, at);
        if (place !== null) return place;
        at = block.indexOf(literal, at + 1);
      }
      at = block.indexOf(word);
      while (at >= 0 && this.steps++ < this.set.data.limits.steps) {
        const place = this.look(block, number, at);
        if (place !== null) return place;
        at = block.indexOf(word, at + 1);
      }
      return null;
    }

    look(block, number, at) {
      const { around, looks } = this.set.data.limits;
      const key = `${number}:${block.slice(Math.max(0, at - 160), at + 160).replace(/[0-9]/g, "")}`;
      if (this.seen.has(key) || this.looks >= looks) return null;
      this.seen.add(key);
      this.looks++;
      let start = Math.max(0, at - around);
      const line = block.slice(start, at).indexOf("\n");
      if (start && line >= 0) start += line + 1;
      const window = block.slice(start, at + around);
      const signature = this.set.signatures[number];
      return search(this.set, signature, plain(this.set, window)) ? start + this.lineIn(window, signature, at - start) : null;
    }

    lineIn(window, signature, word) {
      let at = 0;
      for (const line of window.match(/[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$/g) || []) {
        if (search(this.set, signature, plain(this.set, line))) return at;
        at += line.length;
      }
      return word;
    }
  }

  class Versions {
    constructor(set) {
      Object.assign(this, { set, found: {}, capabilities: [], read: 0, recent: [] });
    }

    some(name, block) {
      const made = [];
      for (const found of block.matchAll(this.set.patterns[name])) if (made.push(found) === this.set.data.limits.most) break;
      return made;
    }

    ends(name, text) {
      const pattern = this.set.patterns[name];
      pattern.lastIndex = 0;
      return pattern.exec(text);
    }

    spoken = (block, at) => this.ends("not_here", block.slice(Math.max(0, at - 20), at)) !== null;

    feed(block, present) {
      for (const found of this.some("equal", block)) {
        const text = block.slice(Math.max(0, found.index - 130), found.index);
        const before = this.ends("before_equal", text);
        if (before && !this.ends("not_here", text.slice(0, before.index))) this.add(before[1], found[1]);
      }
      for (const [word, name] of [["python3", "python_path"], ["cpython", "cpython"]]) {
        const found = present.has(word) && this.ends(name, block);
        if (found) this.note("python", `3.${found[1]}`);
      }
      for (const [word, kind, name] of [["Driver", "driver", "driver"], ["CUDA", "cuda", "cuda_built"], ["Cuda", "nvcc", "nvcc"], ["glibc", "glibc", "glibc"]]) {
        if (present.has(word)) for (const found of this.some(name, block)) this.note(kind, found[1]);
      }
      for (const [word, name] of [["info", "dist_info"], ["whl", "wheel"]]) {
        if (!present.has(word)) continue;
        for (const found of this.some(name, block)) {
          const before = this.ends("before_dist_info", block.slice(Math.max(0, found.index - 130), found.index));
          if (before) this.add(before[1], before[2]);
        }
      }
      if (present.has("installed")) {
        for (const found of this.some("installed", block)) for (const one of found[1].matchAll(this.set.patterns.installed_one)) this.add(one[1], one[2]);
      }
      if (present.has("Name")) for (const found of this.some("pip_show", block)) this.add(found[1], found[2]);
      if (this.read < this.set.data.limits.head) this.head(block);
      else {
        this.recent = [...this.recent.slice(-1), block];
        if (present.has("version") || present.has("Version")) this.said(block);
      }
      this.read += block.length;
    }

    finish() {
      for (const block of this.recent) this.head(block.slice(-this.set.data.limits.head / 4));
    }

    said(block) {
      let count = 0;
      for (const found of block.matchAll(this.set.patterns.version_word)) {
        if (count++ === 200) break;
        this.text("text", block.slice(Math.max(0, found.index - 80), found.index + found[0].length + 60));
      }
    }

    text(name, block) {
      for (const found of this.some(name, block)) {
        const at = found.index + found[0].indexOf(found[1]);
        if (!this.spoken(block, at)) this.add(found[1], found[2]);
      }
    }

    head(block) {
      const padded = `\n${block}`;
      this.text("line", padded);
      this.text("text", padded);
      for (const found of this.some("capability", block)) this.capability(found[1]);
      for (const found of this.some("compute", block)) this.capability(found[1] + found[2]);
    }

    capability(number) {
      if (!this.capabilities.includes(number)) this.capabilities.push(number);
    }

    add(name, version) {
      const known = this.set.data.names[name.replace(/[-_. ]+/g, "-").toLowerCase()];
      if (known) this.note(known, version);
    }

    note(kind, version) {
      const text = version.replace(/\.+$/, "");
      const versions = (this.found[kind] ??= []);
      if (!versions.includes(text) && versions.length < 20) versions.push(text);
      const cuda = text.match(/\+cu(\d{2})(\d)\b/);
      if (kind === "torch" && cuda) this.note("cuda", `${cuda[1]}.${cuda[2]}`);
    }
  }

  const FORM = /^\s*v?(?:(\d+)!)?(\d+(?:\.\d+)*)(?:[-_.]?(alpha|a|beta|b|preview|pre|c|rc)[-_.]?(\d*))?(?:-(\d+)|[-_.]?(post|rev|r)[-_.]?(\d*))?(?:[-_.]?(dev)[-_.]?(\d*))?(?:\+([a-z0-9]+(?:[-_.][a-z0-9]+)*))?\s*$/i;
  const STAGES = { alpha: "a", beta: "b", c: "rc", pre: "rc", preview: "rc" };

  /* PEP 440 */
  function version(text) {
    const found = FORM.exec(text);
    if (!found) return null;
    const release = found[2].split(".").map(Number);
    const stage = found[3] && found[3].toLowerCase();
    return {
      epoch: Number(found[1] || 0),
      release,
      pre: stage ? [STAGES[stage] || stage, Number(found[4] || 0)] : null,
      post: found[5] !== undefined ? Number(found[5]) : found[6] ? Number(found[7] || 0) : null,
      dev: found[8] ? Number(found[9] || 0) : null,
      local: found[10] || null,
    };
  }

  function ordered(one, two) {
    const key = (it) => [
      it.epoch,
      ...Array.from({ length: 8 }, (_, place) => it.release[place] || 0),
      it.pre ? { a: 0, b: 1, rc: 2 }[it.pre[0]] : it.post === null && it.dev !== null ? -1 : 3,
      it.pre ? it.pre[1] : 0,
      it.post === null ? -1 : it.post,
      it.dev === null ? Infinity : it.dev,
    ];
    const [a, b] = [key(one), key(two)];
    const place = a.findIndex((value, at) => value !== b[at]);
    return place < 0 ? 0 : a[place] - b[place] < 0 ? -1 : 1;
  }

  const sameBase = (one, two) => one.epoch === two.epoch && ordered({ ...one, pre: null, post: null, dev: null }, { ...two, pre: null, post: null, dev: null }) === 0;
  const begins = (it, release) => release.every((value, place) => (it.release[place] || 0) === value);

  function fulfils(it, clause) {
    const [, operator, text] = /^(~=|===?|!=|<=|>=|<|>)\s*(.*)$/.exec(clause);
    if (text.endsWith(".*")) {
      const inside = begins(it, version(text.slice(0, -2)).release);
      return operator === "!=" ? !inside : inside;
    }
    const wanted = version(text);
    const order = ordered(it, wanted);
    const early = it.pre !== null || it.dev !== null;
    if (operator === ">=") return order >= 0;
    if (operator === "<=") return order <= 0;
    if (operator === "==" || operator === "===") return order === 0;
    if (operator === "!=") return order !== 0;
    if (operator === "~=") return order >= 0 && begins(it, wanted.release.slice(0, -1));
    if (operator === "<") return order < 0 && !(early && wanted.pre === null && wanted.dev === null && sameBase(it, wanted));
    return order > 0 && !(it.post !== null && wanted.post === null && sameBase(it, wanted));
  }

  const inside = (clauses, versions) =>
    versions.some((text) => {
      const it = version(text);
      return it === null || clauses.every((clause) => fulfils(it, clause));
    });

  function fitting(incident, seen) {
    if (!incident.affected.length) return {};
    let best = null;
    let most = -1;
    for (const combination of incident.affected) {
      const entries = Object.entries(combination);
      if (!entries.every(([name, clauses]) => !(name in seen) || inside(clauses, seen[name]))) continue;
      const count = entries.filter(([name]) => name in seen).length;
      if (count > most) [best, most] = [combination, count];
    }
    return best;
  }

  function match(incident, line, fits, seen) {
    const names = new Set([...Object.keys(fits), ...incident.fix.flatMap((fix) => Object.keys(fix.change || {})), incident.component]);
    const shown = {};
    for (const name of names) {
      const within = (seen[name] || []).filter((text) => !(name in fits) || inside(fits[name], [text]));
      if (within.length) shown[name] = within.at(-1);
    }
    const clauses = (text) => text.split(",").filter(Boolean);
    const done = (fix) => {
      const change = Object.entries(fix.change || {});
      return change.length > 0 && change.every(([name, text]) => name in shown && text !== "*" && inside(clauses(text), [shown[name]]));
    };
    return {
      incident,
      line,
      versions_seen: shown,
      confirmed: Object.keys(fits).length > 0 && Object.keys(fits).every((name) => name in seen),
      fix: incident.fix.filter((fix) => !done(fix)),
    };
  }

  const SEVERITIES = ["failure", "silent", "slow", "harmless"];

  function ranked(one, two) {
    const passesOn = (it) => (it.incident.kind === "fails-inside" ? 1 : 0); // one program reports another's failure
    const key = (it) => [SEVERITIES.indexOf(it.incident.severity), passesOn(it), it.line, it.confirmed ? 0 : 1, -Object.keys(it.versions_seen).length, -it.specific];
    const [a, b] = [key(one), key(two)];
    const place = a.findIndex((value, at) => value !== b[at]);
    return place < 0 ? 0 : a[place] - b[place];
  }

  function* blocks(set, log) {
    const { block: size, overlap } = set.data.limits;
    let tail = "";
    for (let at = 0; ; at += size) {
      const fresh = log.slice(at, at + size);
      const block = unescaped((tail + fresh).replaceAll("\0", "")).replace(set.ansi, "");
      if (!fresh) {
        yield [block, block.length];
        return;
      }
      const keep = Math.min(overlap, block.length);
      yield [block, block.length - keep];
      tail = block.slice(block.length - keep);
    }
  }

  function diagnose(data, text) {
    const set = prepare(data);
    const scan = new Scan(set);
    const versions = new Versions(set);
    let traceback = false;
    for (const [block, fresh] of blocks(set, bytes(text))) {
      const present = new Set(block.match(/[A-Za-z0-9_]+/g) || []);
      scan.block(block, new Set([...present].map((word) => word.replace(/[0-9]/g, ""))));
      versions.feed(block, present);
      traceback ||= data.frames.some((mark) => block.includes(mark));
      scan.lines += lineBreaks(block.slice(0, fresh));
    }
    versions.finish();
    const seen = { ...versions.found };
    if (versions.capabilities.length) seen.gpu = versions.capabilities;
    const matches = [];
    const excluded = [];
    const first = ([start, stop]) => {
      let line = null;
      for (let number = start; number < stop; number++) {
        const at = scan.found.get(number);
        if (at !== undefined && (line === null || at < line)) line = at;
      }
      return line;
    };
    const shown = (incident) => {
      let at = incident.context[1];
      return incident.beside.reduce((line, marks, place) => {
        const start = at;
        at += marks;
        const found = scan.found.get(incident.signatures[0] + place);
        if (found === undefined || (marks && first([start, at]) === null)) return line;
        return line === null || found < line ? found : line;
      }, null);
    };
    const elsewhere = ({ frames }) => traceback && frames[0] < frames[1] && first(frames) === null;
    for (const incident of data.incidents) {
      if (elsewhere(incident) || first(incident.without) !== null) continue;
      const line = shown(incident);
      if (line === null || (incident.context[0] < incident.context[1] && first(incident.context) === null)) continue;
      const fits = fitting(incident, seen);
      if (fits === null) {
        excluded.push(incident.id);
        continue;
      }
      const made = match(incident, line, fits, seen);
      // What it quotes of this line, and what it needs of the rest of the log.
      const [context, ...lengths] = incident.particular;
      const quoted = lengths.filter((_, place) => scan.found.get(incident.signatures[0] + place) === line);
      made.specific = context + Math.max(0, ...quoted);
      if (made.confirmed || !(incident.severity === "silent" && incident.affected.length)) matches.push(made);
    }
    // What is said of any compiled extension gives way to what is known of this one.
    const general = ({ incident }) => incident.component === "extension";
    const same = (one, two) => one.line === two.line && one.incident.kind === two.incident.kind;
    const special = matches.filter((one) => !general(one));
    const left = matches.filter((one) => !general(one) || !special.some((two) => same(one, two)));
    return { matches: left.sort(ranked), excluded, versions: seen };
  }

  globalThis.knowngoodDiagnose = { diagnose, inside };
})();
