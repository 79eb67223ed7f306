"use strict";
(async () => {
{% include "page.js" %}
  const SVG = "http://www.w3.org/2000/svg";
  const draw = (tag, attributes, parent, text) => {
    const made = document.createElementNS(SVG, tag);
    for (const name in attributes) made.setAttribute(name, attributes[name]);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };
  // the mark of a label; corners are those of the figures, without any it is a circle
  const symbol = (corners, fill) => {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "-9 -9 18 18");
    svg.setAttribute("aria-hidden", "true");
    drawMark(corners, svg).style.fill = fill;
    return svg;
  };
  const drawMark = (corners, parent) => (corners.length
    ? draw("polygon", { points: corners.map(([x, y]) => `${6.5 * x},${6.5 * y}`).join(" ") }, parent)
    : draw("circle", { r: 6.5 }, parent));
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  // a slider over layers that can play; `show` is called with the number of a layer
  const layerControl = (names, start, show) => {
    const slider = by("layer"), play = by("play");
    let timer = 0;
    const stop = () => {
      clearInterval(timer);
      timer = 0;
      play.setAttribute("aria-pressed", "false");
      play.textContent = "Play";
    };
    const go = (number) => {
      slider.value = number;
      slider.setAttribute("aria-valuetext", names[number]);
      by("layer-name").textContent = names[number];
      show(Number(number));
    };
    slider.max = names.length - 1;
    by("layers").hidden = names.length < 2;
    slider.addEventListener("input", () => { stop(); go(slider.value); });
    play.addEventListener("click", () => {
      if (timer) { stop(); return; }
      let next = 0;
      const step = () => { go(next++); if (next === names.length) stop(); };
      play.setAttribute("aria-pressed", "true");
      play.textContent = "Stop";
      timer = setInterval(step, 900);
      step();
    });
    go(start);
    return (number) => { stop(); go(number); };
  };

  // lines by layer; each line: { values, color, name, low, high }
  const lineChart = (target, { names, lines, chance, low, high, format, label, now, go, tall = 220 }) => {
    const wide = Math.max(300, Math.min(1100, target.clientWidth || 560)), left = 52, right = 12, foot = tall - 36;
    const svg = document.createElementNS(SVG, "svg");
    draw("title", {}, svg, label);
    svg.setAttribute("class", "lines");
    svg.setAttribute("viewBox", `0 0 ${wide} ${tall}`);
    svg.setAttribute("role", "img");
    svg.style.maxWidth = `${wide}px`;
    const step = (wide - left - right) / Math.max(1, names.length - 1);
    const x = (i) => (names.length > 1 ? left + i * step : (left + wide - right) / 2);
    const y = (value) => foot - ((value - low) / (high - low)) * (foot - 16), steps = tall < 200 ? 2 : 4;
    for (let i = 0; i <= steps; i++) {
      const value = low + ((high - low) * i) / steps;
      draw("line", { class: "axis", x1: left, x2: wide - right, y1: y(value), y2: y(value) }, svg);
      draw("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, svg, format(value));
    }
    const widest = Math.max(...names.map((name) => name.length)) * 7 + 8;
    const every = Math.max(1, Math.ceil(widest / Math.max(step, 1)));
    names.forEach((name, i) => {
      if (i % every === 0) draw("text", { x: x(i), y: foot + 22, "text-anchor": i && i === names.length - 1 && name.length > 3 ? "end" : "middle" }, svg, name);
    });
    if (chance !== undefined) {
      draw("line", { class: "chance", x1: left, x2: wide - right, y1: y(chance), y2: y(chance) }, svg);
    }
    for (const line of lines) {
      const known = line.values.map((value, i) => [value, i]).filter(([value]) => value !== null && value !== undefined);
      if (line.low) {
        const edge = [...known.map(([, i]) => `${x(i)},${y(line.high[i])}`), ...known.map(([, i]) => `${x(i)},${y(line.low[i])}`).reverse()];
        draw("polygon", { points: edge.join(" "), fill: line.color, opacity: 0.16 }, svg);
      }
      draw("polyline", { points: known.map(([value, i]) => `${x(i)},${y(value)}`).join(" "), fill: "none", stroke: line.color, "stroke-width": 2.5, "stroke-dasharray": line.dashed ? "7 4" : "none" }, svg);
      if (known.length === 1) draw("circle", { cx: x(known[0][1]), cy: y(known[0][0]), r: 4, fill: line.color }, svg);
    }
    draw("line", { class: "now", x1: x(now), x2: x(now), y1: 12, y2: foot + 4 }, svg);
    names.forEach((_, i) => {
      draw("rect", { class: "hit", x: x(i) - step / 2, y: 8, width: step || wide, height: tall - 8 }, svg).addEventListener("click", () => go(i));
    });
    const keys = make("p", "soft");
    // drawn as borders, which paper shows too
    const key = (drawn, name) => {
      const made = make("span", "key"), sign = make("i");
      sign.style.borderTop = drawn;
      made.append(sign, name);
      keys.append(made, " ");
    };
    for (const line of lines) key(`3px ${line.dashed ? "dashed" : "solid"} ${line.color}`, line.name);
    if (chance !== undefined) key("2px dashed var(--soft)", `chance ${format(chance)}`);
    target.replaceChildren(svg, keys);
  };
  const block = (name) => by(name).textContent;
  const data = await unpackJSON(block("content"));
  const n = data.count, STEP = 50, REACH = 9, FINGER = 24, STILL = 5, CELLS = 200, LABELS = 200, NAMED = 24;
  // Colours of labels; with the shapes of embedkit/drawing.py 72 labels differ. Their hues and
  // lightnesses were searched so that they differ for readers who do not see red and green, too.
  const COLOURS = {
    "light": ["#2f41ba", "#9f720c", "#138969", "#9c51cd", "#14a1b5", "#8e83fc", "#974200", "#ef5b98", "#88198b", "#553703", "#06604e", "#044164"],
    "dark": ["#3e71e9", "#edd812", "#86ffb3", "#aa86ff", "#0da0bc", "#88befe", "#cd3873", "#cce4fe", "#dd7775", "#5ed5c5", "#f6ad71", "#b2640b"]
  };
  // Colours of numbers: the parts of matplotlib's plasma that each theme can show.
  const RAMP = {
    "light": ["#0d0887", "#130789", "#19068c", "#20068f", "#240691", "#2a0593", "#2e0595", "#330597", "#370499", "#3a049a", "#3f049c", "#43039e", "#48039f", "#4b03a1", "#5002a2", "#5302a3", "#5801a4", "#5b01a5", "#5e01a6", "#6300a7", "#6600a7", "#6a00a8", "#6e00a8", "#7201a8", "#7501a8", "#7801a8", "#7d03a8", "#8004a8", "#8405a7", "#8707a6", "#8b0aa5", "#8e0ca4", "#920fa3", "#9511a1", "#9814a0", "#9c179e", "#9e199d", "#a21d9a", "#a51f99", "#a82296", "#ab2494", "#ad2793", "#b12a90", "#b32c8e", "#b6308b", "#b83289", "#bc3587", "#be3885", "#c13b82", "#c33d80", "#c5407e", "#c8437b", "#ca457a", "#cc4977", "#ce4b75", "#d14e72", "#d35171", "#d5536f", "#d7566c", "#d9586a", "#db5c68", "#dd5e66", "#df6263", "#e16462"],
    "dark": ["#bf3984", "#c13b82", "#c33d80", "#c5407e", "#c8437b", "#ca457a", "#cc4778", "#cd4a76", "#d04d73", "#d24f71", "#d45270", "#d5546e", "#d8576b", "#da5a6a", "#db5c68", "#dd5e66", "#de6164", "#e16462", "#e26660", "#e4695e", "#e56b5d", "#e76f5a", "#e97158", "#ea7457", "#eb7655", "#ed7a52", "#ef7c51", "#f07f4f", "#f1814d", "#f3854b", "#f48849", "#f58b47", "#f68d45", "#f79044", "#f89441", "#f9973f", "#f99a3e", "#fa9c3c", "#fba139", "#fca338", "#fca636", "#fca934", "#fdae32", "#fdb130", "#fdb42f", "#feb72d", "#febb2b", "#febe2a", "#fdc229", "#fdc527", "#fdc827", "#fccd25", "#fcd025", "#fbd324", "#fbd724", "#f9dc24", "#f8df25", "#f7e225", "#f6e626", "#f5eb27", "#f3ee27", "#f2f227", "#f1f525", "#f0f921"]
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const canvas = by("map"), pen = canvas.getContext("2d"), hover = by("hover");
  let printing = false;
  const theme = () => (dark.matches && !printing ? "dark" : "light");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  const face = getComputedStyle(document.body).fontFamily;

  // numbers stand in planes: all lowest bytes, then all second ones, and so on
  const planes = async (name, width) => {
    const bytes = await unpackBytes(block(name)), size = bytes.length / width;
    const numbers = new Uint32Array(size);
    for (let plane = 0; plane < width; plane++)
      for (let i = 0; i < size; i++) numbers[i] |= bytes[plane * size + i] << (8 * plane);
    return numbers;
  };
  const layouts = [], nears = [], columns = [];
  const layoutOf = async (number) => {
    if (!layouts[number]) {
      const cells = await planes(`points-${number}`, 2), points = new Float32Array(2 * n);
      for (let i = 0; i < n; i++) { points[2 * i] = cells[i] / 65535; points[2 * i + 1] = cells[n + i] / 65535; }
      layouts[number] = points;
    }
    return layouts[number];
  };
  const columnOf = async (number) => {
    if (!columns[number]) {
      const buffer = (await unpackBytes(block(`column-${number}`))).buffer, head = data.columns[number];
      columns[number] = head.kind === "label" ? { ...head, codes: new Uint32Array(buffer) } : { ...head, values: new Float64Array(buffer) };
      if (head.kind !== "label") {
        const known = columns[number].values.filter((value) => !Number.isNaN(value)).sort();
        // the ends of the scale leave out one in a hundred on each side, so that one odd value does not take it all
        Object.assign(columns[number], { low: known[Math.floor(known.length * 0.01)], high: known[Math.ceil(known.length * 0.99) - 1], missing: n - known.length });
        if (columns[number].low === columns[number].high) Object.assign(columns[number], { low: known[0], high: known[known.length - 1] });
        columns[number].beyond = known.filter((value) => value < columns[number].low || value > columns[number].high).length;
      }
    }
    return columns[number];
  };
  const day = (value) => new Date(Math.round(value * 86400) * 1000).toISOString().slice(0, value % 1 ? 19 : 10);
  const written = (column, value, digits = 17) => (Number.isNaN(value) ? "–" : column.kind === "date" ? day(digits < 17 ? Math.floor(value) : value) : String(+value.toPrecision(digits)));
  const valueOf = (column, i) => (column.codes ? column.names[column.codes[i]] : written(column, column.values[i]));

  // what is marked: a text that matches, a point that is selected, a label that is picked
  const state = { layer: data.start, color: -1, chosen: -1, drag: "move", over: -1, picked: new Set() };
  let records = null, texts = null, searched = null, byRow = null, order = null, colors = null, match = null, selected = null;
  const current = new Float32Array(2 * n);
  let spots = [];
  const within = (i) => (!match || match[i]) && (!selected || selected[i]);
  const marked = (i) => within(i) && (!state.picked.size || state.picked.has(colors[i]));

  // the view: points are in the unit square
  let scale = 1, moveX = 0, moveY = 0, width = 0, height = 0, fit = 1, whole = true, waiting = false, frame = null;
  const toX = (x) => x * scale + moveX, toY = (y) => height - (y * scale + moveY);
  const fromX = (x) => (x - moveX) / scale, fromY = (y) => (height - y - moveY) / scale;
  const home = () => {
    const [left, low, right, high] = data.bounds, free = height - (innerWidth > 1000 && !printing ? 44 : 0); // of the buttons
    scale = fit = 0.94 * Math.min(width / (right - left || 1), free / (high - low || 1));
    moveX = width / 2 - ((left + right) / 2) * scale;
    moveY = free / 2 - ((low + high) / 2) * scale;
    whole = true;
    repaint();
  };
  const place = () => {
    // the middle of the picture stays among the points
    const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
    const [left, low, right, high] = data.bounds;
    moveX = width / 2 - clamp(fromX(width / 2), left, right) * scale;
    moveY = height / 2 - clamp(fromY(height / 2), low, high) * scale;
    whole = false;
    hover.hidden = true;
    repaint();
  };
  const zoom = (x, y, factor) => {
    const to = Math.min(200 * fit, Math.max(0.8 * fit, scale * factor)), by_ = to / scale;
    moveX = x - (x - moveX) * by_;
    moveY = height - y - (height - y - moveY) * by_;
    scale = to;
    place();
  };
  const resize = () => {
    const ratio = window.devicePixelRatio || 1;
    width = canvas.clientWidth; height = canvas.clientHeight;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (whole) home(); else repaint();
  };
  const repaint = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(paint);
  };
  const pointSize = () => Math.max(2, Math.min(9, 150 / Math.sqrt(n) + 1.2 * Math.log2(1 + scale / fit)));
  const colorOf = (number) => {
    const column = columns[state.color];
    if (!column) return COLOURS[theme()][0];
    if (number === 65535) return css("--soft");
    const list = column.codes ? COLOURS[theme()] : RAMP[theme()];
    return list[number % list.length];
  };
  // 12 colours times 6 shapes; neighbours in the order differ in both
  const cornersOf = (number) => (columns[state.color]?.codes
    ? data.shapes[(number + Math.floor(number / COLOURS.light.length)) % data.shapes.length] : []);
  const trace = (x, y, radius, corners) => {
    if (corners.length) {
      corners.forEach(([dx, dy], i) => (i ? pen.lineTo(x + radius * dx, y + radius * dy) : pen.moveTo(x + radius * dx, y + radius * dy)));
      pen.closePath();
    } else { pen.moveTo(x + radius, y); pen.arc(x, y, radius, 0, 7); }
  };
  const countsOf = (holds) => {
    const counts = new Uint32Array(columns[state.color].names.length);
    for (let i = 0; i < n; i++) if (holds(i)) counts[colors[i]]++;
    return counts;
  };
  // where a label has most points, and few others have any: the middle of its points in nine cells of a grid
  const spotsOf = (points) => {
    const column = columns[state.color], GRID = 16;
    if (!column?.codes || !column.names) return [];
    const cellOf = (i) => [0, 1].map((axis) => Math.min(GRID - 1, Math.floor(points[2 * i + axis] * GRID)));
    const all = new Float32Array((GRID + 2) ** 2), every = (a, b, use) => {
      for (let x = a; x < a + 3; x++) for (let y = b; y < b + 3; y++) use(x * (GRID + 2) + y);
    };
    // the labels of most points have names
    const sizes = countsOf(marked), own = Array(sizes.length).fill(null), most = [...sizes.keys()].sort((a, b) => sizes[b] - sizes[a]);
    for (const number of most.slice(0, Math.min(NAMED, Math.round(width / 40)))) own[number] = { counts: all.slice(), list: [] };
    for (let i = 0; i < n; i++) {
      if (!marked(i)) continue;
      const mine = own[colors[i]], [a, b] = cellOf(i);
      mine?.list.push(i);
      every(a, b, (at) => { all[at]++; if (mine) mine.counts[at]++; });
    }
    return own.map((one) => {
      if (!one?.list.length) return null;
      const { counts, list } = one;
      let best = 0;
      counts.forEach((value, at) => { if (value ** 2 * (all[best] || 1) > counts[best] ** 2 * (all[at] || 1)) best = at; });
      const x = Math.floor(best / (GRID + 2)) - 1, y = (best % (GRID + 2)) - 1;
      const near = list.filter((i) => { const [a, b] = cellOf(i); return Math.abs(a - x) < 2 && Math.abs(b - y) < 2; });
      const mean = (axis) => near.reduce((sum, i) => sum + points[2 * i + axis], 0) / near.length;
      // the third number lifts the name of a few points above them
      return [mean(0), mean(1), list.length < 4 ? 18 : 0];
    });
  };
  const paintNames = () => {
    const taken = [], [card, ink] = printing ? ["#ffffff", "#1b1f24"] : [css("--card"), css("--ink")];
    pen.font = `600 ${width < 600 ? 11 : 12}px ${face}`;
    pen.textBaseline = "middle";
    pen.lineWidth = 1.5;
    spots.forEach((spot, number) => {
      if (!spot || (state.over >= 0 && state.over !== number)) return;
      const x = toX(spot[0]), y = toY(spot[1]) - spot[2];
      if (x < 0 || y < 0 || x > width || y > height) return;
      const name = shown(columns[state.color].names[number]), text = name.length > 24 ? `${name.slice(0, 23)}…` : name;
      const half = pen.measureText(text).width / 2 + 6;
      // the nearest free place on a spiral
      let at = null;
      for (let turn = 0; turn < 150 && !at; turn++) {
        const far = 7 * Math.sqrt(turn), angle = turn * 2.4;
        const left = Math.min(width - half - 2, Math.max(half + 2, x + 1.6 * far * Math.cos(angle)));
        const top = Math.min(height - 13, Math.max(13, y + far * Math.sin(angle)));
        if (!taken.some(([a, b, wide]) => Math.abs(a - left) < wide + half + 2 && Math.abs(b - top) < 21)) at = [left, top, half];
      }
      if (!at) return;
      taken.push(at);
      pen.strokeStyle = colorOf(number);
      if (Math.hypot(at[0] - x, at[1] - y) > 14) { pen.beginPath(); pen.moveTo(x, y); pen.lineTo(at[0], at[1]); pen.stroke(); }
      pen.fillStyle = card;
      pen.beginPath(); pen.roundRect(at[0] - half, at[1] - 9.5, 2 * half, 19, 9); pen.globalAlpha = 0.88; pen.fill(); pen.globalAlpha = 1; pen.stroke();
      pen.fillStyle = ink;
      pen.fillText(text, at[0] - half + 6, at[1] + 0.5);
    });
    canvas.dataset.names = taken.length;
  };
  function paint() {
    waiting = false;
    const started = performance.now(), size = pointSize(), radius = size / 2;
    pen.clearRect(0, 0, width, height);
    const dimmed = match || selected || state.picked.size || state.over >= 0;
    const above = (i) => marked(i) && (state.over < 0 || colors[i] === state.over);
    for (const top of dimmed ? [false, true] : [true]) {
      pen.globalAlpha = top ? 1 : 0.12;
      let color = -1, corners = [];
      pen.beginPath();
      for (const i of order) {
        if (dimmed && Boolean(above(i)) !== top) continue;
        const x = toX(current[2 * i]), y = toY(current[2 * i + 1]);
        if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
        if (colors[i] !== color) {
          pen.fill();
          pen.beginPath();
          color = colors[i];
          corners = cornersOf(color);
          pen.fillStyle = colorOf(color);
        }
        if (size > 4) trace(x, y, radius, corners); else pen.rect(x - radius, y - radius, size, size);
      }
      pen.fill();
    }
    pen.globalAlpha = 1;
    pen.strokeStyle = css("--ink");
    if (state.chosen >= 0) {
      const near = nears[state.layer], i = state.chosen, x = toX(current[2 * i]), y = toY(current[2 * i + 1]);
      pen.lineWidth = 1;
      if (near) for (let k = 0; k < data.listed && k < n - 1; k++) {
        const j = near.indices[i * near.k + k];
        pen.beginPath(); pen.moveTo(x, y); pen.lineTo(toX(current[2 * j]), toY(current[2 * j + 1])); pen.stroke();
      }
      pen.lineWidth = 2.5;
      pen.beginPath(); pen.arc(x, y, Math.max(7, size), 0, 7); pen.stroke();
    }
    if (canvas.matches(":focus-visible")) {
      pen.lineWidth = 1;
      pen.beginPath(); pen.moveTo(width / 2 - 8, height / 2); pen.lineTo(width / 2 + 8, height / 2);
      pen.moveTo(width / 2, height / 2 - 8); pen.lineTo(width / 2, height / 2 + 8); pen.stroke();
    }
    if (frame) {
      pen.lineWidth = 1.5;
      pen.setLineDash([5, 4]);
      pen.beginPath();
      frame.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
      pen.closePath(); pen.stroke();
      pen.setLineDash([]);
    }
    paintNames();
    canvas.dataset.at = [scale, moveX, moveY, height].join(" ");
    document.body.dataset.paintMs = (performance.now() - started).toFixed(1);
    document.body.dataset.paintedAt ??= performance.now().toFixed(0);
  }

  // points by cell of a grid, for the one under the pointer
  let first = null, members = null;
  const cellAt = (x) => Math.min(CELLS - 1, Math.max(0, Math.floor(x * CELLS)));
  const sort = () => {
    const number = (i) => cellAt(current[2 * i]) * CELLS + cellAt(current[2 * i + 1]);
    first = new Uint32Array(CELLS * CELLS + 1);
    for (let i = 0; i < n; i++) first[number(i) + 1]++;
    for (let c = 0; c < CELLS * CELLS; c++) first[c + 1] += first[c];
    const next = first.slice();
    members = new Uint32Array(n);
    for (let i = 0; i < n; i++) members[next[number(i)]++] = i;
  };
  const under = (x, y, far) => {
    const reach = far / scale, px = fromX(x), py = fromY(y);
    let best = -1, least = reach * reach;
    if (!first) return best;
    for (let a = cellAt(px - reach); a <= cellAt(px + reach); a++)
      for (let b = cellAt(py - reach); b <= cellAt(py + reach); b++)
        for (let m = first[a * CELLS + b]; m < first[a * CELLS + b + 1]; m++) {
          const i = members[m], apart = (current[2 * i] - px) ** 2 + (current[2 * i + 1] - py) ** 2;
          if (apart < least && marked(i)) { least = apart; best = i; }
        }
    return best;
  };

  // layers
  let moving = 0, go = null;
  const names = data.views.map((view) => view.layer);
  const hundred = (value) => Math.round(100 * value);
  const say = () => {
    const view = data.views[state.layer];
    by("heading").textContent = shown(view.title);
    const same = view.same_label === null ? "" : `${hundred(view.same_label)} of 100 nearest neighbours have the label of their text (by chance ${hundred(data.chance)}). `;
    by("dek").textContent = `${same}The flat picture keeps ${hundred(view.kept)} of 100 neighbours.`;
    const lines = [{ name: "neighbours kept by the picture", values: data.views.map((one) => one.kept), color: "var(--m1)", dashed: true }];
    if (view.same_label !== null) lines.unshift({ name: "neighbours with the same label", values: data.views.map((one) => one.same_label), color: "var(--m0)" });
    if (names.length > 1) lineChart(by("chart"), { names, lines, chance: data.chance ?? undefined, low: 0, high: 1, format: percent, label: "fractions of the ten nearest neighbours by layer", now: state.layer, go: (number) => go(number), tall: 116 });
  };
  const show = async (layer) => {
    state.layer = layer;
    say();
    remember();
    const target = await layoutOf(layer), mine = ++moving;
    const from = current.slice(), started = performance.now(), spotsFrom = spots, spotsTo = spotsOf(target);
    const step = () => {
      if (mine !== moving) return;
      const part = still.matches || !first ? 1 : Math.min(1, (performance.now() - started) / 500);
      const ease = part * part * (3 - 2 * part);
      for (let i = 0; i < 2 * n; i++) current[i] = from[i] + (target[i] - from[i]) * ease;
      spots = spotsTo.map((to, i) => to && (spotsFrom[i] ?? to).map((value, axis) => value + (to[axis] - value) * ease));
      paint();
      if (part < 1) requestAnimationFrame(step);
      else { sort(); canvas.dataset.layer = names[layer]; }
    };
    step();
    if (texts) await nearOf(layer).then(describe);
  };
  const nearOf = async (layer) => {
    if (!nears[layer]) {
      const numbers = await planes(`near-${layer}`, 3), k = numbers.length / n;
      const steps = await unpackBytes(block(`cosines-${layer}`)), { least, step } = data.views[layer];
      const indices = new Int32Array(numbers.length);
      for (let i = 0; i < numbers.length; i++) indices[i] = Math.floor(i / k) + ((numbers[i] >>> 1) ^ -(numbers[i] & 1));
      nears[layer] = { k, indices, cosine: (at) => least + steps[at] * step };
    }
  };

  // one text; texts reach the page as text only
  const labelColumn = data.columns.findIndex((column) => column.name === "label");
  const textOf = (i) => shown(texts[i] || "(no text)");
  const note = (i, lead = "") => {
    const parts = [`row ${records.rows[i]}`];
    if (records.ids[i] !== String(records.rows[i])) parts.push(shown(records.ids[i]));
    const named = new Set([labelColumn, state.color].filter((number) => number >= 0));
    for (const number of named) parts.push(`${number === labelColumn ? "" : `${data.columns[number].name} `}${shown(valueOf(columns[number], i))}`);
    const small = make("small");
    small.append(symbol(cornersOf(colors[i]), colorOf(colors[i])), ` ${lead}${parts.join(" · ")}`);
    return small;
  };
  const pieces = (i, lead) => {
    const text = textOf(i), cut = text.length > 300 ? `${text.slice(0, 300)}…` : text;
    return [speak(make("span", "text", cut), cut), note(i, lead)];
  };
  const item = (i, cosine) => {
    const line = make("li"), button = make("button");
    button.type = "button";
    button.dataset.row = records.rows[i];
    button.append(...pieces(i, cosine === undefined ? "" : `cosine ${cosine.toFixed(3)} · `));
    button.addEventListener("click", () => choose(i));
    line.append(button);
    return line;
  };
  const describe = () => {
    const i = state.chosen;
    repaint();
    by("picked").hidden = i < 0;
    if (i < 0) by("chosen").replaceChildren();
    if (i < 0 || !nears[state.layer]) return;
    const text = textOf(i), body = make("div", "whole", text), values = make("p", "soft");
    body.tabIndex = 0;
    body.setAttribute("role", "region");
    body.setAttribute("aria-label", "the whole text");
    const parts = [`id ${shown(records.ids[i])}`, ...columns.map((column) => `${column.name} ${shown(valueOf(column, i))}`)];
    values.textContent = `row ${records.rows[i]} · ${parts.join(" · ")}`;
    const near = nears[state.layer], list = make("ol", "found");
    for (let k = 0; k < Math.min(near.k, data.listed); k++) list.append(item(near.indices[i * near.k + k], near.cosine(i * near.k + k)));
    by("chosen").replaceChildren(speak(body, text), values, make("h3", "", `Nearest texts, ${named(state.layer)}`), list);
  };
  const choose = async (i) => {
    if (!texts) return;
    state.chosen = i;
    await nearOf(state.layer);
    describe();
    by("picked").scrollTop = 0;
    remember();
  };

  // the list of what is found, and how many of each label that are
  const found = () => byRow.filter(marked);
  const showTexts = textList({
    items: found, total: () => n, draw: (i) => item(i), noun: "text", step: STEP,
    head: () => ["row", "id", ...data.columns.map((column) => column.name), "text"],
    row: (i) => [records.rows[i], records.ids[i], ...columns.map((column) => valueOf(column, i)), texts[i]],
  });
  const list = () => {
    if (!texts) return;
    showTexts();
    const column = columns[state.color], labels = by("legend").querySelector("ul");
    if (labels) {
      // how many texts of each label match or are selected; most first, whatever labels are picked
      const counts = countsOf(within), all = !match && !selected;
      const before = (one, other) => (all ? 0 : counts[other.dataset.label] - counts[one.dataset.label]) || one.dataset.label - other.dataset.label;
      const lines = [...labels.children].sort(before);
      if (lines.some((line, place) => line !== labels.children[place])) labels.replaceChildren(...lines);
      for (const { dataset, firstChild: button } of lines) {
        const number = Number(dataset.label);
        button.setAttribute("aria-pressed", String(state.picked.has(number)));
        button.querySelector(".num").replaceChildren(...(all ? [] : [make("b", "", count(counts[number])), " of "]), count(column.counts[number]));
      }
    }
    spots = spotsOf(current);
    hover.hidden = true;
    repaint();
    remember();
  };
  const search = () => {
    const query = normal(by("find").value.trim());
    match = null;
    if (query) {
      const label = columns[labelColumn];
      searched ??= Array.from(texts, (text, i) => normal(`${text ?? ""}\n${records.ids[i]}\n${label ? valueOf(label, i) : ""}`));
      match = Uint8Array.from(searched, (text) => text.includes(query));
    }
    list();
  };

  // what is shown stands in the address: layer, row, find, color, label
  const remember = () => {
    if (!texts) return;
    const parts = new URLSearchParams(), column = columns[state.color];
    if (state.layer !== data.start) parts.set("layer", names[state.layer]);
    if (state.chosen >= 0) parts.set("row", records.rows[state.chosen]);
    if (by("find").value.trim()) parts.set("find", by("find").value.trim());
    if (state.color !== begin) parts.set("color", column.name);
    for (const number of state.picked) parts.append("label", column.names[number]);
    history.replaceState(null, "", `#${parts}`);
  };
  const restore = async () => {
    const parts = new URLSearchParams(location.hash.slice(1));
    const layer = names.indexOf(parts.get("layer") ?? names[data.start]), row = records.rows.indexOf(Number(parts.get("row") ?? NaN));
    const color = data.columns.findIndex((column) => column.name === (parts.get("color") ?? data.first));
    if (color >= 0 && color !== state.color) { by("color").value = color; await recolor(color); legend(); }
    state.picked = new Set(parts.getAll("label").map((name) => columns[state.color]?.names?.indexOf(name) ?? -1).filter((number) => number >= 0));
    by("find").value = parts.get("find") ?? "";
    search();
    if (layer >= 0 && layer !== state.layer) go(layer);
    state.chosen = -1;
    if (row >= 0) await choose(row); else describe();
  };

  // colours and their legend
  const recolor = async (number) => {
    state.color = number;
    state.picked.clear();
    const column = number < 0 ? null : await columnOf(number);
    colors = new Uint16Array(n);
    if (column?.codes) { for (let i = 0; i < n; i++) colors[i] = Math.min(65534, column.codes[i]); }
    else if (column) {
      const last = RAMP.light.length - 1, wide = column.high - column.low || 1;
      for (let i = 0; i < n; i++) colors[i] = Number.isNaN(column.values[i]) ? 65535 : Math.round(Math.min(1, Math.max(0, (column.values[i] - column.low) / wide)) * last);
    }
    // mixed, so that no label hides the others, but in groups of one colour, which is quicker
    order = Uint32Array.from({ length: n }, (_, i) => i);
    let seed = 7;
    for (let i = n - 1; i > 0; i--) {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
      const j = Math.floor((seed / 4294967296) * (i + 1));
      [order[i], order[j]] = [order[j], order[i]];
    }
    const group = Math.max(1, Math.ceil(n / 24));
    for (let at = 0; at < n; at += group) order.subarray(at, at + group).sort((a, b) => colors[a] - colors[b]);
    repaint();
  };
  const legend = (all) => {
    const box = by("legend"), column = columns[state.color];
    if (!column) { box.replaceChildren(); return; }
    if (!column.codes) {
      const ramp = make("div", "ramp"), ends = make("div", "ends");
      ramp.style.background = `linear-gradient(to right, ${RAMP[theme()].join(",")})`;
      for (const part of [0, 0.5, 1]) ends.append(make("span", "", written(column, column.low + (column.high - column.low) * part, 6)));
      box.replaceChildren(ramp, ends, make("p", "soft", `${column.beyond ? `${count(column.beyond)} lie beyond the ends.` : ""}${column.missing ? ` ${count(column.missing)} have none, and are grey.` : ""}`));
      return;
    }
    const items = make("ul"), limit = all ? column.names.length : LABELS;
    column.names.slice(0, limit).forEach((name, number) => {
      const row = make("li"), button = make("button", "name"), text = shown(name);
      const over = (here) => { state.over = here; repaint(); };
      row.dataset.label = number;
      button.type = "button";
      button.append(symbol(cornersOf(number), colorOf(number)), speak(make("span", "", text), text), make("span", "num"));
      button.addEventListener("click", () => { if (!state.picked.delete(number)) state.picked.add(number); list(); });
      button.addEventListener("pointerenter", () => over(number));
      button.addEventListener("pointerleave", () => over(-1));
      row.append(button);
      items.append(row);
    });
    box.replaceChildren(items);
    if (column.names.length > limit) {
      const rest = make("button", "more", `Show all ${count(column.names.length)} labels`);
      rest.type = "button";
      rest.addEventListener("click", () => { legend(true); list(); });
      box.append(rest);
    }
  };

  // pointer and keys
  const held = new Map();
  let start = null;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const spread = () => {
    const [[ax, ay], [bx, by_]] = held.values();
    return { x: (ax + bx) / 2, y: (ay + by_) / 2, apart: Math.max(1, Math.hypot(ax - bx, ay - by_)) };
  };
  const tell = (x, y) => {
    const i = texts ? under(x, y, REACH) : -1;
    hover.hidden = i < 0;
    if (i < 0) return;
    hover.replaceChildren(...pieces(i, 300));
    const below = y + 14, above = y - 14 - hover.offsetHeight;
    hover.style.left = `${Math.max(0, Math.min(x + 14, width - hover.offsetWidth))}px`;
    hover.style.top = `${below + hover.offsetHeight <= height ? below : Math.max(0, above)}px`;
  };
  const inside = (polygon, x, y) => {
    let odd = false;
    for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
      const [ax, ay] = polygon[i], [bx, by_] = polygon[j];
      if (ay > y !== by_ > y && x < ((bx - ax) * (y - ay)) / (by_ - ay) + ax) odd = !odd;
    }
    return odd;
  };
  const select = (polygon) => {
    selected = new Uint8Array(n);
    for (let i = 0; i < n; i++) selected[i] = inside(polygon, toX(current[2 * i]), toY(current[2 * i + 1])) ? 1 : 0;
    list();
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (held.size === 2) return;
    canvas.setPointerCapture(event.pointerId);
    const [x, y] = at(event);
    held.set(event.pointerId, [x, y]);
    start = held.size === 1 ? { x, y, moved: false, drag: event.shiftKey ? "box" : state.drag } : null;
    frame = null;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    if (!held.has(event.pointerId)) { if (!held.size) tell(x, y); return; }
    const before = held.size === 2 ? spread() : null, [wasX, wasY] = held.get(event.pointerId);
    held.set(event.pointerId, [x, y]);
    if (before) {
      const now = spread();
      moveX += now.x - before.x; moveY -= now.y - before.y;
      zoom(now.x, now.y, now.apart / before.apart);
      return;
    }
    if (!start) return;
    if (Math.hypot(x - start.x, y - start.y) > STILL) start.moved = true;
    if (!start.moved) return;
    if (start.drag === "move") { moveX += x - wasX; moveY -= y - wasY; place(); return; }
    if (start.drag === "box") frame = [[start.x, start.y], [x, start.y], [x, y], [start.x, y]];
    else (frame ??= [[start.x, start.y]]).push([x, y]);
    hover.hidden = true;
    repaint();
  });
  const release = (event) => {
    if (!held.delete(event.pointerId)) return;
    if (frame) { const polygon = frame; frame = null; select(polygon); }
    else if (start && !start.moved && event.type === "pointerup") {
      const i = under(start.x, start.y, event.pointerType === "mouse" ? REACH : FINGER);
      if (i >= 0) choose(i);
    }
    start = null;
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { hover.hidden = true; });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(...at(event), Math.exp(-event.deltaY * 0.0015));
  }, { passive: false });
  const keys = {
    ArrowLeft: () => { moveX += 60; place(); }, ArrowRight: () => { moveX -= 60; place(); },
    ArrowUp: () => { moveY -= 60; place(); }, ArrowDown: () => { moveY += 60; place(); },
    "+": () => zoom(width / 2, height / 2, 1.5), "=": () => zoom(width / 2, height / 2, 1.5),
    "-": () => zoom(width / 2, height / 2, 1 / 1.5), 0: home,
    Enter: () => { const i = under(width / 2, height / 2, Math.hypot(width, height)); if (i >= 0) choose(i); },
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  canvas.addEventListener("focus", repaint);
  canvas.addEventListener("blur", repaint);
  by("closer").addEventListener("click", keys["+"]);
  by("farther").addEventListener("click", keys["-"]);
  by("home").addEventListener("click", home);
  by("sight").addEventListener("click", () => select([[0, 0], [width, 0], [width, height], [0, height]]));
  for (const button of document.querySelectorAll("[data-drag]:not(canvas)")) {
    button.addEventListener("click", () => {
      state.drag = canvas.dataset.drag = button.dataset.drag;
      document.querySelectorAll("button[data-drag]").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
    });
  }
  const clear = () => {
    by("find").value = "";
    selected = null;
    state.picked.clear();
    state.chosen = -1;
    describe();
    search();
  };
  by("clear").addEventListener("click", clear);
  addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, select");
    if (event.key === "Escape") clear();
    else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) { event.preventDefault(); by("find").focus(); }
  });
  let timer = 0;
  by("find").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(search, 120); });
  dark.addEventListener("change", () => { legend(); list(); });
  addEventListener("hashchange", restore);
  addEventListener("beforeprint", () => { printing = true; paint(); });
  addEventListener("afterprint", () => { printing = false; paint(); });

  // first the picture, then all that answers
  const methods = { tsne: "t-SNE", pca: "two principal components" };
  const some = data.count < data.total ? `${count(n)} of ${count(data.total)} texts, a random sample` : `${count(n)} texts`;
  by("facts").textContent = shown(`${data.dataset} · ${some} · ${data.model}, ${data.pooling} · ${methods[data.method]}`);
  const begin = data.columns.findIndex((column) => column.name === data.first);
  await recolor(begin);
  const points = await layoutOf(data.start);
  current.set(points);
  resize();
  new ResizeObserver(resize).observe(canvas);
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

  const words = await unpackJSON(block("names"));
  words.forEach(([labels, counts], number) => Object.assign(data.columns[number], { names: labels, counts }));
  if (columns[begin]) Object.assign(columns[begin], data.columns[begin]);
  for (let number = 0; number < data.columns.length; number++) await columnOf(number);
  const choice = by("color");
  data.columns.forEach((column, number) => {
    const option = make("option", "", shown(column.name));
    option.value = number;
    choice.append(option);
  });
  choice.value = begin;
  choice.addEventListener("change", async () => { await recolor(Number(choice.value)); legend(); list(); });
  legend();
  const named = (number) => (/^\d+$/.test(names[number]) ? `layer ${names[number]}` : names[number]);
  go = layerControl(names.map((_, number) => named(number)), data.start, show);
  by("how").textContent = `Neighbours are the ${data.listed} nearest by cosine in full width.${data.chance === null ? "" : " A label stands apart if its texts' neighbours have it at least half way from chance to always."}`;
  records = await unpackJSON(block("records"));
  texts = await unpackJSON(block("texts"));
  byRow = Uint32Array.from({ length: n }, (_, i) => i).sort((a, b) => records.rows[a] - records.rows[b]);
  sort();
  await restore();
  for (let number = 0; number < data.views.length; number++) await layoutOf(number);
  document.body.dataset.ready = "yes";
})();
