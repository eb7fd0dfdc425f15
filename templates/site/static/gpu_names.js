"use strict";
/* Which GPU a name means, and the nearest where it means none. The steps are those of packages/knowngood/src/knowngood/core/gpus.py, with its data; one table tests both. */
(globalThis.knowngood ??= {}).gpuNameWords = (data, text) => {
  const replaced = data.replacements.reduce((part, [pattern, by]) => part.replace(new RegExp(pattern, "g"), by), text.toLowerCase().split(/\s+/).filter(Boolean).join(" "));
  return replaced.split(/\s+/).filter((word) => word && !data.ignored.includes(word));
};

globalThis.knowngood.nearestGpuName = (data, text) => {
  const mistakes = (one, two) => {
    const lines = [[...Array(two.length + 1).keys()]];
    for (let a = 1; a <= one.length; a++) {
      lines.push([a]);
      for (let b = 1; b <= two.length; b++) {
        let cost = Math.min(lines[a][b - 1] + 1, lines[a - 1][b] + 1, lines[a - 1][b - 1] + (one[a - 1] !== two[b - 1]));
        if (a > 1 && b > 1 && one[a - 1] === two[b - 2] && two[b - 1] === one[a - 2]) cost = Math.min(cost, lines[a - 2][b - 2] + 1);
        lines[a].push(cost);
      }
    }
    return lines[one.length][two.length];
  };
  const wanted = globalThis.knowngood.gpuNameWords(data, text).filter((word) => !data.brands[1].includes(word)).join(" ").slice(0, 80);
  const letters = (name) => [...name].sort().join("");
  const distance = (name) => (mistakes(wanted, name) + (letters(wanted) !== letters(name)) / 100) / Math.max(wanted.length, name.length, 1);
  const ranked = data.shown.map(([shown, names]) => [Math.min(...names.map(distance)), shown]);
  return ranked.reduce((best, item) => (item[0] < best[0] || (item[0] === best[0] && item[1] < best[1]) ? item : best))[1];
};

globalThis.knowngood.matchGpuName = (data, text) => {
  const answer = (kind, capabilities = [], cards = [], maker = "") => ({ kind, capabilities, cards, maker });
  const same = (one, two) => one.length === two.length && one.every((word, place) => word === two[place]);
  const name = text.toLowerCase().split(/\s+/).filter(Boolean).join(" ");

  const number = name.match(new RegExp(data.capability));
  if (number) {
    const sm = `sm_${number[1]}${number[2]}`;
    return answer(data.families.some(([one]) => one === sm) ? "known" : "architecture", [sm]);
  }

  const words = globalThis.knowngood.gpuNameWords(data, text);

  const families = (fits) => data.families.filter(([, family]) => fits(family)).map(([sm]) => sm);
  const whole = families((family) => same(family, words));
  const begun = families((family) => words.length && same(family.slice(0, words.length), words));
  const single = families((family) => words.length === 1 && words[0] === family.at(-1));
  const family = whole.length ? whole : begun.length ? begun : single.length === 1 ? single : [];
  if (family.length) return answer("known", family);

  for (const brands of data.brands) {
    const rest = words.filter((word) => !brands.includes(word));
    const cards = data.cards.map(([card, sm, own]) => ({ card, sm, own: own.filter((word) => !brands.includes(word)) }));
    for (let length = rest.length; length > 0; length--) {
      for (let start = 0; start + length <= rest.length; start++) {
        const part = rest.slice(start, start + length);
        let matches = cards.filter(({ own }) => same(own, part));
        if (matches.length && length === 1 && /^[0-9]+$/.test(part[0])) {
          matches = cards.filter(({ own }) => own.includes(part[0]));
        }
        const found = [...new Set(matches.map(({ sm }) => sm))];
        const beside = [...rest.slice(0, start), ...rest.slice(start + length)];
        const names = matches.map(({ card }) => card);
        if (found.length > 1 && !beside.length && brands === data.brands.at(-1)) return answer("ambiguous", found, names);
        if (found.length !== 1) continue;
        const kin = data.families.find(([sm]) => sm === found[0])[1];
        const another = cards.some(({ sm, own }) => sm === found[0] && same(own, beside));
        if (another || beside.every((word) => data.forms.includes(word) || kin.includes(word))) {
          return answer("known", found, names);
        }
      }
    }
  }
  if (data.instances.some((pattern) => new RegExp(pattern).test(name))) return answer("instance");
  const maker = data.makers.find(([, pattern]) => new RegExp(pattern).test(words.join(" ")));
  return maker ? answer("other-maker", [], [], maker[0]) : answer("unknown");
};
