  const SVG = "http://www.w3.org/2000/svg";
  const draw = (tag, attributes, parent, text) => {
    const made = document.createElementNS(SVG, tag);
    for (const name in attributes) made.setAttribute(name, attributes[name]);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };
  // the mark of a label or sense; corners are those of the figures, without any it is a circle
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
