"use strict";
(async () => {
{% include "page.js" %}
{% include "layers.js" %}
  const data = await unpackJSON(by("content").textContent);
  const words = Object.keys(data.uses), first = data.models[0];
  const STEP = 100, NAMED = 40, TALL = 380;
  const state = { word: data.start.word, layer: data.start.layer, chosen: 0, query: "" };
  // as on the other pages: no two of 38 senses have the same colour and the same shape
  const markOf = (style) => {
    const rest = Math.max(style - 2, 0);
    return [data.shapes[(style + Math.floor(rest / 6)) % data.shapes.length], `var(--m${style < 2 ? style : 2 + (rest % 6)})`];
  };
  const uses = () => data.uses[state.word];
  const senses = () => [...new Set(uses().map((use) => use.sense))];
  const styleOf = (use) => senses().indexOf(use.sense);
  const senseOf = (use) => (use.sense === null ? "no sense given" : shown(use.sense));
  // the slider goes through the layers of the first model; of another, the layer at the same depth
  const layerOf = (model) => (first.layers.length < 2 ? model.layers.length - 1
    : Math.round((state.layer / (first.layers.length - 1)) * (model.layers.length - 1)));
  const named = (layer) => (/^\d+$/.test(layer) ? `layer ${layer}` : layer);
  const signed = (value) => `${value <= -0.0005 ? "\u2212" : "+"}${Math.abs(value).toFixed(3)}`;
  const known = (...values) => values.every((value) => value !== null && value !== undefined);

  // one column of panels for each model
  const panels = data.models.map((model, number) => {
    const card = (title) => {
      const made = make("section", "card"), heading = make("h3", "", title);
      heading.id = `title-${number}-${by("panels").children.length}`;
      made.setAttribute("aria-labelledby", heading.id);
      made.append(heading);
      return made;
    };
    return { model, card, map: null, word: null, all: null };
  });
  const beside = data.models.length > 1;
  for (const kind of ["map", "word", "all"]) {
    for (const panel of panels) {
      const whose = beside ? `${shown(panel.model.name)}. ` : "";
      const section = panel.card(whose + { map: "Uses", word: "Same sense and other sense, this word", all: "Nearest other use has the same sense, all words" }[kind]);
      if (kind !== "map") section.append(make("p", "caption", kind === "word"
        ? "Mean cosine of two uses, after the mean of the layer is subtracted."
        : `Of ${count(panel.model.scored)} uses of ${count(panel.model.n_words)} words; band: 95 % interval.`));
      panel[kind] = make("div");
      section.append(panel[kind]);
      by("panels").append(section);
      if (kind === "map" && !beside) by("panels").append(by("uses"));
    }
  }

  const place = (panel, i, layer) => {
    const points = panel.model.words[state.word].points, flat = points.flat();
    const reach = (axis) => Math.max(1e-9, ...flat.map((point) => Math.abs(point[axis])));
    panel.scale ??= Math.min((panel.wide / 2 - 70) / reach(0), (TALL / 2 - 22) / reach(1));
    const [x, y] = points[layer][i];
    return [panel.wide / 2 + x * panel.scale, TALL / 2 - y * panel.scale];
  };
  const build = () => {
    const list = uses(), few = list.length <= NAMED;
    for (const panel of panels) {
      const svg = document.createElementNS(SVG, "svg");
      panel.wide = Math.max(280, Math.min(1000, panel.map.clientWidth));
      svg.setAttribute("viewBox", `0 0 ${panel.wide} ${TALL}`);
      svg.setAttribute("class", "uses");
      svg.setAttribute("role", "group");
      svg.setAttribute("aria-label", `uses of ${state.word} as points`);
      panel.scale = null;
      panel.trail = draw("polyline", { class: "trail" }, svg);
      panel.points = list.map((use, i) => {
        const group = draw("g", { class: "point", tabindex: few ? 0 : -1, role: "button", "aria-label": `${senseOf(use)}: ${shown(use.before + use.word + use.after)}` }, svg);
        const [corners, fill] = markOf(styleOf(use));
        drawMark(corners, group).style.fill = fill;
        draw("circle", { class: "ring", r: 11 }, group);
        if (few && senses().length > 1) draw("text", { x: 15, y: 4 }, group, senseOf(use).length > 18 ? `${senseOf(use).slice(0, 17)}…` : senseOf(use));
        group.addEventListener("mouseenter", () => pick(i));
        group.addEventListener("focus", () => pick(i));
        group.addEventListener("click", () => pick(i));
        return group;
      });
      panel.map.replaceChildren(svg);
    }
    by("legend").replaceChildren(...senses().map((sense) => {
      const line = make("li"), use = list.find((one) => one.sense === sense);
      const name = senseOf(use);
      line.append(symbol(...markOf(styleOf(use))), speak(make("span", "", `${name} ${count(list.filter((one) => one.sense === sense).length)}`), name));
      return line;
    }));
    for (const button of by("words").querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.word === state.word));
    state.chosen = 0;
    drawList();
  };
  const facts = () => {
    const list = uses(), layer = state.layer, own = first.words[state.word];
    const same = own.same[layer], other = own.other[layer];
    const [verdict, numbers] = own.said.split(": ");
    by("heading").textContent = shown(`${state.word}: ${verdict || `${count(list.length)} uses`}`);
    const at = known(same, other) ? `: mean cosine ${same.toFixed(3)} of uses with the same sense, ${other.toFixed(3)} with other senses (${signed(same - other)})` : "";
    by("at").textContent = `${numbers ? `${numbers[0].toUpperCase()}${numbers.slice(1)}. ` : ""}At ${named(first.layers[layer])}${at}.`;
    by("facts").textContent = data.models.map((model) => {
      const at = layerOf(model), [value, low, high] = model.all[at];
      const over = known(value) ? `: nearest other use with the same sense in ${percent(value)} (${percent(low)} to ${percent(high)}), chance ${percent(model.chance)}` : "";
      return `${shown(model.name)}, ${named(model.layers[at])}${over}`;
    }).join(" · ");
    by("words").querySelectorAll("td").forEach((cell) => cell.classList.toggle("now", cell.parentNode.dataset.word === state.word && Number(cell.dataset.layer) === layer));
  };
  const update = () => {
    facts();
    for (const panel of panels) {
      const { model } = panel, at = layerOf(model), own = model.words[state.word];
      const taken = [];
      panel.points.forEach((group, i) => {
        const [x, y] = place(panel, i, at), name = group.querySelector("text");
        group.style.transform = `translate(${x}px,${y}px)`;
        if (!name) return;
        const long = [...name.textContent].reduce((sum, sign) => sum + (sign > "\u1100" ? 13 : 7), 15);
        name.style.display = taken.some(([left, top, other]) => Math.abs(y - top) < 14 && x < left + other && left < x + long) ? "none" : "";
        if (!name.style.display) taken.push([x, y, long]);
      });
      const go = (number) => jump(Math.round((number / Math.max(1, model.layers.length - 1)) * (first.layers.length - 1)));
      const values = [...own.same, ...own.other].filter((value) => known(value));
      const chart = { names: model.layers, now: at, go, format: (value) => value.toFixed(2) };
      // fifths, so that the four steps between them are round numbers
      const low = Math.floor(Math.min(...values) * 5) / 5, high = Math.ceil(Math.max(...values) * 5) / 5;
      const lines = [{ name: "same sense", values: own.same, color: "var(--m0)" }, { name: "other sense", values: own.other, color: "var(--m1)", dashed: true }].filter((line) => line.values.some((value) => known(value)));
      if (lines.length) lineChart(panel.word, { ...chart, lines, low, high: high > low ? high : low + 0.2, label: `cosines of uses of ${state.word} by layer` });
      else panel.word.replaceChildren(make("p", "soft", "No two uses with known senses."));
      if (known(model.all[0][0])) {
        const part = (number) => model.all.map((one) => one[number]);
        lineChart(panel.all, { ...chart, format: percent, low: 0, high: 1, chance: model.chance, label: "fraction of uses whose nearest other use has the same sense, by layer", lines: [{ name: "nearest other use has the same sense", values: part(0), low: part(1), high: part(2), color: "var(--m0)" }] });
      } else panel.all.replaceChildren(make("p", "soft", "No senses are given (--sense COLUMN)."));
    }
    describe();
    // last, since points that are measured before they have a place would fly to it
    const now = by("words").querySelector("td.now"), box = by("words").parentNode;
    if (now) box.scrollLeft = Math.max(Math.min(box.scrollLeft, now.offsetLeft - by("words").querySelector("th").offsetWidth), now.offsetLeft + now.offsetWidth - box.clientWidth);
  };
  const describe = () => {
    const use = uses()[state.chosen], text = shown(use.before + use.word + use.after);
    const body = make("p");
    body.append(shown(use.before), make("b", "", shown(use.word)), shown(use.after));
    const lines = [speak(body, text), make("p", "soft", `${senseOf(use)} · row ${use.row} · ${shown(use.id)}`)];
    for (const model of data.models) {
      const near = model.words[state.word].near[layerOf(model)];
      if (near) {
        const listed = near[state.chosen].map(([word, cosine]) => `${shown(word)} ${cosine.toFixed(3)}`).join(", ");
        lines.push(speak(make("p", "soft", `nearest other words at ${named(model.layers[layerOf(model)])}${beside ? ` of ${shown(model.name)}` : ""}: ${listed}`), listed));
      }
    }
    by("chosen").replaceChildren(...lines);
    for (const panel of panels) {
      panel.points.forEach((group, i) => group.classList.toggle("on", i === state.chosen));
      panel.trail.setAttribute("points", panel.model.layers.map((_, layer) => place(panel, state.chosen, layer).join(",")).join(" "));
    }
    for (const button of by("list").querySelectorAll("button")) {
      const on = Number(button.dataset.use) === state.chosen;
      button.classList.toggle("on", on);
      if (on) button.setAttribute("aria-current", "true"); else button.removeAttribute("aria-current");
    }
  };
  const pick = (i) => { if (i !== state.chosen) { state.chosen = i; describe(); } };
  const matching = () => uses().map((use, i) => [use, i]).filter(([use]) => normal(`${use.before}${use.word}${use.after}\n${use.sense ?? ""}\n${use.id}`).includes(state.query));
  const showUses = textList({
    items: matching, total: () => uses().length, noun: "use", step: STEP,
    head: () => ["row", "id", "word", "sense", "before", "use", "after"],
    row: ([use]) => [use.row, use.id, state.word, use.sense, use.before, use.word, use.after],
    draw: ([use, i]) => {
      const line = make("li"), button = make("button");
      button.type = "button";
      button.dataset.use = i;
      const before = make("span", "before"), turned = make("bdi", "", shown(use.before));
      before.append(speak(turned, use.before));
      button.append(symbol(...markOf(styleOf(use))), before, speak(make("b", "", shown(use.word)), use.word), speak(make("span", "", shown(use.after)), use.after));
      button.addEventListener("mouseenter", () => pick(i));
      button.addEventListener("focus", () => pick(i));
      button.addEventListener("click", () => pick(i));
      line.append(button);
      return line;
    },
  });
  function drawList() {
    const found = new Set(matching().map(([, i]) => i));
    showUses();
    for (const panel of panels) panel.points.forEach((group, i) => group.classList.toggle("off", !found.has(i)));
    update();
  }

  const choose = (word) => { state.word = word; build(); };
  // words by layer: how much nearer uses of the same sense lie than others
  const total = Object.values(data.uses).flat().length;
  by("title").textContent = shown(first.said ? `${words.length > 1 ? `${count(words.length)} words` : words[0]}: ${first.said.split(": ")[0]}` : `${count(total)} uses of ${count(words.length)} words`);
  const gaps = (word) => first.words[word].same.map((same, layer) => (known(same, first.words[word].other[layer]) ? same - first.words[word].other[layer] : null));
  const far = Math.max(1e-9, ...words.flatMap(gaps).map(Math.abs)), anyGap = words.some((word) => gaps(word).some(known));
  by("about").textContent = anyGap
    ? "Mean cosine of two uses with the same sense, less that of two uses with other senses. Choose a word, or a cell for its layer."
    : "Choose a word.";
  const head = make("tr"), body = make("tbody");
  head.append(make("th", "", "word and uses"), ...(anyGap ? first.layers.map((layer) => make("th", "", layer)) : []));
  for (const cell of head.children) cell.scope = "col";
  for (const word of [...words].sort((a, b) => data.uses[b].length - data.uses[a].length)) {
    const line = make("tr"), button = make("button"), first_ = make("th"), name = shown(word);
    button.type = "button";
    line.dataset.word = button.dataset.word = word;
    button.append(speak(make("span", "", name), name), make("span", "num", count(data.uses[word].length)));
    button.addEventListener("click", () => choose(word));
    first_.scope = "row";
    first_.append(button);
    line.append(first_, ...(anyGap ? gaps(word).map((gap, layer) => {
      const cell = make("td", "", known(gap) ? signed(gap).replace("0.", ".") : "");
      cell.dataset.layer = layer;
      cell.style.setProperty("--gap", gap < 0 ? "var(--m1)" : "var(--m0)");
      cell.style.setProperty("--part", `${Math.round(50 * Math.sqrt(Math.abs(gap ?? 0) / far))}%`);
      cell.addEventListener("click", () => { choose(word); jump(layer); });
      return cell;
    }) : []));
    body.append(line);
  }
  const top = make("thead");
  top.append(head);
  by("words").append(top, body);
  by("find").addEventListener("input", () => { state.query = normal(by("find").value.trim()); drawList(); });
  let wide = panels[0].map.clientWidth;
  build();
  new ResizeObserver(() => {
    if (Math.abs(wide - panels[0].map.clientWidth) > 30) { wide = panels[0].map.clientWidth; const { chosen } = state; build(); pick(chosen); }
  }).observe(panels[0].map);
  const jump = layerControl(first.layers.map(named), state.layer, (number) => { state.layer = number; update(); });
  document.body.dataset.ready = "yes";
})();
