"use strict";
(async () => {
{% include "page.js" %}
{% include "layers.js" %}
  const data = await unpackJSON(by("content").textContent);
  const words = Object.keys(data.uses), first = data.models[0];
  const STEP = 100, NAMED = 40, BUTTONS = 40, TALL = 380;
  const state = { word: data.start.word, layer: data.start.layer, chosen: 0, query: "", listed: STEP };
  const corners = { square: "-6,-6 6,-6 6,6 -6,6", diamond: "0,-8 8,0 0,8 -8,0", up: "0,-8 8,6 -8,6", down: "0,8 8,-6 -8,-6", cross: "-7,-3 -3,-3 -3,-7 3,-7 3,-3 7,-3 7,3 3,3 3,7 -3,7 -3,3 -7,3" };
  // as on the other pages: no two of 38 senses have the same colour and the same shape
  const mark = (style, parent) => {
    const rest = Math.max(style - 2, 0), shape = data.shapes[(style + Math.floor(rest / 6)) % data.shapes.length], name = `m${style < 2 ? style : 2 + (rest % 6)}`;
    return shape === "circle" ? draw("circle", { r: 6.5, class: name }, parent) : draw("polygon", { points: corners[shape], class: name }, parent);
  };
  const symbol = (style) => {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "-9 -9 18 18");
    svg.setAttribute("aria-hidden", "true");
    mark(style, svg);
    return svg;
  };
  const uses = () => data.uses[state.word];
  const senses = () => [...new Set(uses().map((use) => use.sense))];
  const styleOf = (use) => senses().indexOf(use.sense);
  const senseOf = (use) => (use.sense === null ? "no sense given" : shown(use.sense));
  // the slider goes through the layers of the first model; of another, the layer at the same depth
  const layerOf = (model) => (first.layers.length < 2 ? model.layers.length - 1
    : Math.round((state.layer / (first.layers.length - 1)) * (model.layers.length - 1)));
  const named = (layer) => (/^\d+$/.test(layer) ? `layer ${layer}` : layer);
  const signed = (value) => `${value < 0 ? "\u2212" : "+"}${Math.abs(value).toFixed(3)}`;
  const known = (...values) => values.every((value) => value !== null && value !== undefined);

  // one column of panels for each model
  const panels = data.models.map((model, number) => {
    const card = (title) => {
      const made = make("section", "card"), heading = make("h2", "", title);
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
      const whose = beside ? `${shown(panel.model.name)}: ` : "";
      const section = panel.card(whose + { map: "uses", word: "same sense and other sense, this word", all: "nearest other use has the same sense, all words" }[kind]);
      if (kind !== "map") section.append(make("p", "caption", kind === "word"
        ? `Mean cosine of two uses${panel.model.centered ? ", after the mean of the layer is subtracted" : ""}.`
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
        mark(styleOf(use), group);
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
      line.append(symbol(styleOf(use)), speak(make("span", "", `${name} ${count(list.filter((one) => one.sense === sense).length)}`), name));
      return line;
    }));
    for (const button of by("words").children) button.setAttribute("aria-pressed", String(button.dataset.word === state.word));
    by("word").value = words.indexOf(state.word);
    state.chosen = 0;
    state.listed = STEP;
    drawList();
  };
  const facts = () => {
    const list = uses(), layer = state.layer, own = first.words[state.word];
    const same = own.same[layer], other = own.other[layer];
    by("heading").textContent = shown(known(same, other)
      ? `${state.word} at ${named(first.layers[layer])}: same sense ${same.toFixed(3)}, other sense ${other.toFixed(3)} (${signed(same - other)})`
      : `${state.word} at ${named(first.layers[layer])}: ${count(list.length)} uses`);
    by("facts").textContent = data.models.map((model) => {
      const at = layerOf(model), [value, low, high] = model.all[at];
      const over = known(value) ? `: over ${count(model.n_words)} words the nearest other use has the same sense in ${percent(value)} (${percent(low)} to ${percent(high)}), chance ${percent(model.chance)}` : "";
      return `${shown(model.name)}, ${named(model.layers[at])}${over}`;
    }).join(" · ");
  };
  const update = () => {
    facts();
    for (const panel of panels) {
      const { model } = panel, at = layerOf(model), own = model.words[state.word];
      panel.points.forEach((group, i) => {
        const [x, y] = place(panel, i, at);
        group.style.transform = `translate(${x}px,${y}px)`;
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
  function drawList() {
    const all = matching(), found = new Set(all.map(([, i]) => i));
    by("list").replaceChildren(...all.slice(0, state.listed).map(([use, i]) => {
      const line = make("li"), button = make("button");
      button.type = "button";
      button.dataset.use = i;
      const before = make("span", "before"), turned = make("bdi", "", shown(use.before));
      before.append(speak(turned, use.before));
      button.append(symbol(styleOf(use)), before, speak(make("b", "", shown(use.word)), use.word), speak(make("span", "", shown(use.after)), use.after));
      button.addEventListener("mouseenter", () => pick(i));
      button.addEventListener("focus", () => pick(i));
      button.addEventListener("click", () => pick(i));
      line.append(button);
      return line;
    }));
    const left = all.length - state.listed;
    by("more").hidden = left <= 0;
    by("more").textContent = `Show ${count(Math.min(left, STEP))} more`;
    by("count").textContent = all.length ? `${count(all.length)} of ${count(uses().length)} uses` : "No use matches.";
    for (const panel of panels) panel.points.forEach((group, i) => group.classList.toggle("off", !found.has(i)));
    update();
  }

  const choose = (word) => { state.word = word; build(); };
  if (words.length <= BUTTONS) {
    by("words").replaceChildren(...words.map((word) => {
      const button = make("button"), name = shown(word);
      button.type = "button";
      button.dataset.word = word;
      button.append(speak(make("span", "", name), name), make("span", "num", count(data.uses[word].length)));
      button.addEventListener("click", () => choose(word));
      return button;
    }));
  } else {
    by("choice").hidden = false;
  }
  words.forEach((word, number) => {
    const option = make("option", "", `${shown(word)} (${count(data.uses[word].length)})`);
    option.value = number;
    by("word").append(option);
  });
  by("word").addEventListener("change", () => choose(words[Number(by("word").value)]));
  by("find").addEventListener("input", () => { state.query = normal(by("find").value.trim()); state.listed = STEP; drawList(); });
  by("more").addEventListener("click", () => {
    const before = state.listed;
    state.listed += STEP;
    drawList();
    by("list").children[before]?.querySelector("button").focus();
  });
  by("copy").addEventListener("click", () => {
    const all = matching(), lines = all.map(([use]) => [use.row, use.id, state.word, use.sense, use.before, use.word, use.after].map(cell).join("\t"));
    copy([["row", "id", "word", "sense", "before", "use", "after"].join("\t"), ...lines].join("\n") + "\n");
    by("copy").focus();
    by("count").textContent = `Copied ${count(all.length)} uses`;
  });
  let wide = panels[0].map.clientWidth;
  build();
  new ResizeObserver(() => {
    if (Math.abs(wide - panels[0].map.clientWidth) > 30) { wide = panels[0].map.clientWidth; const { chosen } = state; build(); pick(chosen); }
  }).observe(panels[0].map);
  const jump = layerControl(first.layers.map(named), state.layer, (number) => { state.layer = number; update(); });
  document.body.dataset.ready = "yes";
})();
