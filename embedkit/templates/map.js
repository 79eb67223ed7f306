"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
  const points = new Float32Array(bytes(data.points));
  const labels = new Uint16Array(bytes(data.labels));
  const rows = new Float64Array(bytes(data.rows));
  const count = labels.length;
  const lower = data.texts.map((text) => text.toLowerCase());
  const element = (id) => document.getElementById(id);
  const canvas = element("map"), pen = canvas.getContext("2d"), hover = element("hover");
  const SHOWN = 200, REACH = 9, FINGER = 24, STILL = 6, CELLS = 200;

  // what is shown: a label that is on, a text that matches, a point in the box
  const on = data.names.map(() => true);
  const match = new Uint8Array(count).fill(1), chosen = new Uint8Array(count);
  let finding = false, boxed = false;
  const visible = (i) => on[labels[i]];
  const marked = (i) => match[i] && (!boxed || chosen[i]);

  let left = Infinity, right = -Infinity, low = Infinity, high = -Infinity;
  for (let i = 0; i < count; i++) {
    left = Math.min(left, points[2 * i]); right = Math.max(right, points[2 * i]);
    low = Math.min(low, points[2 * i + 1]); high = Math.max(high, points[2 * i + 1]);
  }
  const wide = right - left || 1, tall = high - low || 1;

  // points by cell of a grid, for the one under the pointer
  const cell = (x, y) =>
    Math.min(CELLS - 1, Math.max(0, Math.floor(((x - left) / wide) * CELLS))) * CELLS +
    Math.min(CELLS - 1, Math.max(0, Math.floor(((y - low) / tall) * CELLS)));
  const first = new Uint32Array(CELLS * CELLS + 1), order = new Uint32Array(count);
  for (let i = 0; i < count; i++) first[cell(points[2 * i], points[2 * i + 1]) + 1]++;
  for (let c = 0; c < CELLS * CELLS; c++) first[c + 1] += first[c];
  const next = first.slice();
  for (let i = 0; i < count; i++) order[next[cell(points[2 * i], points[2 * i + 1])]++] = i;

  // drawing in an order that mixes the labels, the same every time
  const mixed = Uint32Array.from({ length: count }, (_, i) => i);
  let state = 7;
  for (let i = count - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const j = Math.floor((state / 4294967296) * (i + 1));
    [mixed[i], mixed[j]] = [mixed[j], mixed[i]];
  }

  let scale = 1, moveX = 0, moveY = 0, width = 0, height = 0, waiting = false, frame = null;
  let whole = true;  // all is in sight, and stays so when the room for it changes
  const toX = (x) => x * scale + moveX, toY = (y) => height - (y * scale + moveY);
  const fromX = (x) => (x - moveX) / scale, fromY = (y) => (height - y - moveY) / scale;

  function home() {
    scale = 0.92 * Math.min(width / wide, height / tall);
    moveX = width / 2 - ((left + right) / 2) * scale;
    moveY = height / 2 - ((low + high) / 2) * scale;
    whole = true;
    draw();
  }

  function resize() {
    const ratio = window.devicePixelRatio || 1;
    width = canvas.clientWidth; height = canvas.clientHeight;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (whole) home(); else draw();
  }

  function draw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(paint);
  }

  function paint() {
    waiting = false;
    const started = performance.now();
    pen.clearRect(0, 0, width, height);
    const size = Math.max(1.5, Math.min(6, 260 / Math.sqrt(count) + Math.log2(1 + scale / 50)));
    const dimmed = finding || boxed;
    for (const top of dimmed ? [false, true] : [true]) {
      pen.globalAlpha = top ? 0.8 : 0.12;
      let colour = -1;
      for (let n = 0; n < count; n++) {
        const i = mixed[n];
        if (!visible(i) || (dimmed && Boolean(marked(i)) !== top)) continue;
        const x = toX(points[2 * i]), y = toY(points[2 * i + 1]);
        if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
        if (labels[i] !== colour) { colour = labels[i]; pen.fillStyle = data.colours[colour]; }
        pen.fillRect(x - size / 2, y - size / 2, size, size);
      }
    }
    pen.globalAlpha = 1;
    if (frame) {
      pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--front");
      pen.strokeRect(frame.x, frame.y, frame.toX - frame.x, frame.toY - frame.y);
    }
    document.body.dataset.paintMs = (performance.now() - started).toFixed(1);
    document.body.dataset.ready = "yes";
  }

  function under(x, y, far) {
    const reach = far / scale, px = fromX(x), py = fromY(y);
    let best = -1, least = reach * reach;
    const start = cell(px - reach, py - reach), end = cell(px + reach, py + reach);
    for (let a = Math.floor(start / CELLS); a <= Math.floor(end / CELLS); a++)
      for (let b = start % CELLS; b <= end % CELLS; b++)
        for (let n = first[a * CELLS + b]; n < first[a * CELLS + b + 1]; n++) {
          const i = order[n];
          if (!visible(i) || !marked(i)) continue;
          const dx = points[2 * i] - px, dy = points[2 * i + 1] - py, apart = dx * dx + dy * dy;
          if (apart < least) { least = apart; best = i; }
        }
    return best;
  }

  // texts reach the page as text only
  function describe(parent, i) {
    const note = document.createElement("small");
    note.textContent = `row ${rows[i]} · ${data.ids[i]} · ${data.names[labels[i]]}`;
    parent.append(data.texts[i] || "(no text)", note);
  }

  function list() {
    const target = element("chosen");
    target.replaceChildren();
    hover.hidden = true;
    let found = 0;
    for (let i = 0; i < count; i++) {
      if (!visible(i) || !marked(i)) continue;
      found++;
      if ((finding || boxed) && found <= SHOWN) {
        const item = document.createElement("li");
        describe(item, i);
        target.append(item);
      }
    }
    const shown = (finding || boxed) && found > SHOWN ? `, the first ${SHOWN} are listed` : "";
    element("status").textContent = `${found.toLocaleString("en")} of ${count.toLocaleString("en")} points${shown}`;
    draw();
  }

  data.names.forEach((name, number) => {
    const item = document.createElement("li"), button = document.createElement("button");
    const dot = document.createElement("i");
    dot.style.background = data.colours[number];
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.append(dot, name);
    button.addEventListener("click", () => {
      on[number] = !on[number];
      button.setAttribute("aria-pressed", String(on[number]));
      list();
    });
    item.append(button);
    element("legend").append(item);
  });

  let timer = 0;
  element("find").addEventListener("input", (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const wanted = event.target.value.trim().toLowerCase();
      finding = wanted !== "";
      for (let i = 0; i < count; i++) match[i] = !finding || lower[i].includes(wanted) ? 1 : 0;
      list();
    }, 120);
  });
  element("home").addEventListener("click", () => { boxed = false; list(); home(); });
  element("box").addEventListener("click", (event) => {
    const pressed = event.target.getAttribute("aria-pressed") !== "true";
    event.target.setAttribute("aria-pressed", String(pressed));
  });
  const root = document.documentElement;
  if (matchMedia("(prefers-color-scheme: dark)").matches) root.classList.add("dark");
  element("theme").addEventListener("click", () => { root.classList.toggle("dark"); draw(); });

  function show(x, y, far) {
    const i = under(x, y, far);
    hover.hidden = i < 0;
    if (i < 0) return;
    hover.replaceChildren();
    describe(hover, i);
    const below = y + 14, above = y - 14 - hover.offsetHeight;
    hover.style.left = `${Math.max(0, Math.min(x + 14, width - hover.offsetWidth))}px`;
    hover.style.top = `${below + hover.offsetHeight <= height ? below : Math.max(0, above)}px`;
  }

  function zoom(x, y, factor) {
    whole = false;
    moveX = x - (x - moveX) * factor;
    moveY = height - y - (height - y - moveY) * factor;
    scale *= factor;
  }

  // fingers and the pressed mouse: one moves the map or draws a box, two also zoom
  const held = new Map();
  let start = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const spread = () => {
    const [[ax, ay], [bx, by]] = held.values();
    return { x: (ax + bx) / 2, y: (ay + by) / 2, apart: Math.max(1, Math.hypot(ax - bx, ay - by)) };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (held.size === 2) return;
    const [x, y] = place(event);
    canvas.setPointerCapture(event.pointerId);
    held.set(event.pointerId, [x, y]);
    start = held.size === 1 ? { x, y } : null;
    frame = null;
    if (start && (event.shiftKey || element("box").getAttribute("aria-pressed") === "true"))
      frame = { x, y, toX: x, toY: y };
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (!held.has(event.pointerId)) {
      if (held.size === 0) show(x, y, REACH);
      return;
    }
    const before = held.size === 2 ? spread() : null, [wasX, wasY] = held.get(event.pointerId);
    held.set(event.pointerId, [x, y]);
    if (frame) { frame.toX = x; frame.toY = y; draw(); return; }
    if (start && Math.hypot(x - start.x, y - start.y) > STILL) start = null;
    if (!start) hover.hidden = true;
    if (before) {
      const now = spread();
      moveX += now.x - before.x; moveY -= now.y - before.y;
      zoom(now.x, now.y, now.apart / before.apart);
    } else if (!start) { moveX += x - wasX; moveY -= y - wasY; whole = false; }
    draw();
  });
  const release = (event) => {
    if (!held.delete(event.pointerId)) return;
    if (frame) {
      const xs = [frame.x, frame.toX].map(fromX).sort((a, b) => a - b);
      const ys = [frame.y, frame.toY].map(fromY).sort((a, b) => a - b);
      boxed = Math.abs(frame.toX - frame.x) > 3 && Math.abs(frame.toY - frame.y) > 3;
      for (let i = 0; i < count; i++) {
        const x = points[2 * i], y = points[2 * i + 1];
        chosen[i] = x >= xs[0] && x <= xs[1] && y >= ys[0] && y <= ys[1] ? 1 : 0;
      }
      frame = null;
      list();
    } else if (start && event.type === "pointerup" && event.pointerType !== "mouse")
      show(start.x, start.y, FINGER);
    start = null;
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") hover.hidden = true;
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const [x, y] = place(event);
    zoom(x, y, Math.exp(-event.deltaY * 0.0015));
    hover.hidden = true;
    draw();
  }, { passive: false });
  resize();
  new ResizeObserver(resize).observe(canvas);  // a list beside it takes room too
})();
