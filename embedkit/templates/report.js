"use strict";
(() => {
  const words = JSON.parse(document.getElementById("words").textContent);
{% include "page.js" %}
  const say = (key, values = {}) => words[key].replace(/\{(\w+)\}/g, (_, name) => {
    const value = values[name];
    return typeof value === "number" ? value.toLocaleString("en-US") : value;
  });

  // sortable tables: the heading becomes a button
  for (const table of document.querySelectorAll("table.sortable")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      const button = make("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = heading.getAttribute("aria-sort") !== "descending";
        headings.forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const value = (row) => {
          const cell = row.cells[column];
          const text = cell.dataset.value ?? cell.textContent;
          const number = parseFloat(text.replace("\u2212", "-").replace(/,/g, ""));
          return Number.isNaN(number) ? text : number;
        };
        const rows = [...table.tBodies[0].rows].map((row) => [value(row), row]);
        rows.sort(([a], [b]) => {
          if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
          const order = typeof a === "number" ? a - b : a.localeCompare(b);
          return down ? -order : order;
        });
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  }
  const everyClass = by("all-classes");
  if (everyClass) {
    everyClass.hidden = false;
    everyClass.addEventListener("click", () => {
      document.querySelectorAll("#table-classes tr.rest").forEach((row) => { row.hidden = false; });
      everyClass.remove();
    });
  }

  const explore = (data) => {
    const step = 25;
    const state = { list: data.order[0], view: null, text: "", truth: "", said: "", shown: step };
    const everything = Array.from(data.rows, (_, i) => i);
    let searched = null;
    const label = (number) => (data.labels.length ? data.labels[number] : String(number));

    const tabs = document.querySelector("#explorer .tabs");
    for (const name of data.order) {
      const button = make("button", "", data.names[name]);
      button.type = "button";
      button.dataset.name = name;
      const count = name === "all" ? everything.length : data.lists[name].length;
      button.append(make("span", "num", count.toLocaleString("en-US")));
      button.addEventListener("click", () => show({ list: name }));
      tabs.append(button);
    }

    // a view of a probe: its number of the probe and its name
    const saidBy = ({ probe, name }) => data.views[probe][name];
    const isWrong = (said, i) => (data.labels.length ? said !== data.y[i] : Math.abs(said - data.y[i]) > data.limit);
    const errorsOf = (view) => everything.filter((i) => isWrong(saidBy(view)[i], i));
    const viewTab = make("button", "");
    viewTab.type = "button";
    viewTab.hidden = true;
    tabs.append(viewTab);

    const matching = () => {
      let found = state.view ? errorsOf(state.view) : state.list === "all" ? everything : data.lists[state.list];
      if (state.truth !== "") found = found.filter((i) => data.y[i] === Number(state.truth));
      if (state.said !== "") found = found.filter((i) => data.said[0][i] === Number(state.said));
      if (state.text) {
        searched ??= everything.map((i) => normal(`${data.texts[i] ?? ""}\n${data.ids[i]}\n${data.rows[i]}`));
        const query = normal(state.text);
        found = found.filter((i) => searched[i].includes(query));
      }
      return found;
    };

    const sure = (method, i) =>
      say("percent", { value: Math.round(data.confidence[method][i] / 10) }).replace(" ", "\u00a0");
    // what the methods say: of classes those that say the same together, with their probabilities
    const FEW = 3;
    const answers = (i, whole = false) => {
      const groups = new Map();
      data.methods.forEach((_, method) => {
        const number = data.said[method][i];
        const key = data.labels.length ? number : method;
        groups.set(key, [...(groups.get(key) ?? []), method]);
      });
      const made = [...groups.values()].map((methods) => chip(data.said[methods[0]][i], methods, i, whole));
      if (!whole && made.length > FEW + 1) made.splice(FEW, made.length, make("span", "rest", `+${made.length - FEW}`));
      if (state.view) {
        const said = saidBy(state.view)[i], one = make("span", isWrong(said, i) ? "chip wrong" : "chip");
        one.append(speak(make("b", "", shown(label(said))), label(said)), make("span", "by", state.view.name));
        made.push(one);
      }
      return made;
    };
    const chip = (number, methods, i, whole) => {
      const wrong = data.labels.length ? number !== data.y[i] : !data.right[methods[0]][i];
      const made = make("span", wrong ? "chip wrong" : "chip");
      made.append(speak(make("b", "", shown(label(number))), label(number)));
      if (data.confidence.length) {
        const bar = make("span", "bar");
        bar.style.width = `${Math.max(...methods.map((m) => data.confidence[m][i])) / 25}px`;
        made.append(bar);
      }
      for (const method of whole ? methods : methods.slice(0, FEW)) {
        const who = make("span", "who");
        who.append(make("span", "by", shown(data.methods[method])));
        if (data.confidence.length) who.append(" ", make("span", "", sure(method, i)));
        made.append(who);
      }
      if (!whole && methods.length > FEW) made.append(make("span", "rest", `+${methods.length - FEW}`));
      return made;
    };
    const truth = (i) => {
      const made = make("span", "chip true");
      made.append(make("span", "by", words["cases.true"]));
      made.append(speak(make("span", "", shown(label(data.y[i]))), label(data.y[i])));
      return made;
    };

    const one = (i) => {
      const item = make("article", "case");
      const details = make("details");
      const summary = make("summary");
      const text = shown(data.texts[i] ?? say("cases.record", { row: data.rows[i] }));
      summary.append(speak(make("p", "text", text), text));
      details.append(summary);
      const said = make("div", "said");
      details.addEventListener("toggle", () => {
        if (!details.open) return;
        said.replaceChildren(truth(i), ...answers(i, true));
        open(details, i);
      }, { once: true });
      said.append(truth(i), ...answers(i));
      item.append(details, said);
      return item;
    };
    const open = (details, i) => {
      const near = data.near && data.near.of[i];
      if (near) {
        const box = make("div", "near");
        box.append(make("p", "soft", say("cases.near", { view: data.near.view })));
        const list = make("ul");
        for (const [j, cosine] of near) {
          const line = make("li");
          const tag = make("span", data.labels.length && data.y[j] !== data.y[i] ? "chip wrong" : "chip");
          tag.append(speak(make("span", "", shown(label(data.y[j]))), label(data.y[j])));
          const text = shown(data.texts[j] ?? say("cases.record", { row: data.rows[j] }));
          line.append(tag, " ", speak(make("span", "", text.slice(0, 300)), text), " ", make("span", "soft", (cosine / 1000).toFixed(3)));
          list.append(line);
        }
        box.append(list);
        details.append(box);
      }
      const where = [say("cases.record", { row: String(data.rows[i]) })];
      if (data.ids[i] !== String(data.rows[i])) where.push(shown(data.ids[i]));
      where.push(say("cases.fold", { fold: String(data.fold[i]) }));
      if (data.lengths) where.push(`${data.lengths[i].toLocaleString("en-US")} ${data.unit}`);
      if (data.cut && data.cut[i]) where.push(words["cases.cut_at"]);
      details.append(make("p", "where", where.join(" · ")));
    };

    const show = (changes = {}) => {
      Object.assign(state, { shown: step }, "list" in changes ? { view: null } : {}, changes);
      for (const button of tabs.children) button.setAttribute("aria-pressed", String(button === viewTab ? !!state.view : !state.view && button.dataset.name === state.list));
      viewTab.hidden = !state.view;
      if (state.view) viewTab.replaceChildren(say("cases.view", { view: state.view.name }), make("span", "num", errorsOf(state.view).length.toLocaleString("en-US")));
      const found = matching();
      by("list").replaceChildren(...found.slice(0, state.shown).map(one));
      const left = found.length - state.shown;
      by("more").hidden = left <= 0;
      by("more").textContent = say("cases.more", { count: Math.min(left, step * 4) });
      by("count").textContent = found.length
        ? say("cases.shown", { shown: Math.min(state.shown, found.length), count: found.length })
        : words["cases.empty"];
    };
    const set = (changes) => {
      if ("text" in changes) by("find").value = changes.text;
      for (const [key, id] of [["truth", "true"], ["said", "said"]]) {
        if (key in changes && by(id)) by(id).value = changes[key];
      }
      show(changes);
    };
    const go = (changes) => {
      set({ text: "", truth: "", said: "", ...changes });
      by("cases").scrollIntoView();
      tabs.querySelector("[aria-pressed=true]").focus({ preventScroll: true });
    };

    by("find").addEventListener("input", (event) => show({ text: event.target.value.trim() }));
    by("true")?.addEventListener("change", (event) => show({ truth: event.target.value }));
    by("said")?.addEventListener("change", (event) => show({ said: event.target.value }));
    by("clear").addEventListener("click", () => set({ text: "", truth: "", said: "" }));
    by("more").addEventListener("click", () => {
      const first = state.shown;
      show({ shown: state.shown + step * 4 });
      by("list").children[first]?.querySelector("summary").focus();
    });
    by("copy").addEventListener("click", () => {
      const head = ["row", "id", "true", ...data.methods.flatMap((m) => (data.confidence.length ? [m, `${m} %`] : [m])), ...(state.view ? [state.view.name] : []), "text"];
      const lines = matching().map((i) => [
        data.rows[i], data.ids[i], label(data.y[i]),
        ...data.methods.flatMap((_, m) => (data.confidence.length
          ? [label(data.said[m][i]), data.confidence[m][i] / 10] : [data.said[m][i]])),
        ...(state.view ? [label(saidBy(state.view)[i])] : []), data.texts[i],
      ].map(cell).join("\t"));
      copy([head.map(cell).join("\t"), ...lines].join("\n") + "\n");
      by("copy").focus();
      by("count").textContent = say("cases.copied", { count: lines.length });
    });
    for (const button of document.querySelectorAll(".pairs button")) {
      button.addEventListener("click", () => go({ list: "all", truth: button.dataset.true, said: button.dataset.said }));
    }
    for (const button of document.querySelectorAll(".alerts button")) {
      button.hidden = false;
      button.addEventListener("click", () => go({ list: button.dataset.list }));
    }
    // cells of a heat map lead to the errors of their view; arrow keys go from cell to cell
    data.views.forEach((views, probe) => {
      if (!Object.keys(views).length) return;
      for (const svg of document.querySelectorAll(`#picture-layers-${probe + 1} svg`)) {
        svg.setAttribute("role", "group");
        const cells = [...svg.querySelectorAll("polygon[data-name]")];
        const best = cells.find((one) => one.style.stroke) ?? cells[0];
        for (const one of cells) {
          const { name } = one.dataset, choose = () => go({ list: "all", view: { probe, name } });
          one.setAttribute("role", "button");
          one.setAttribute("tabindex", one === best ? 0 : -1);
          one.setAttribute("aria-label", say("cases.view", { view: name }));
          one.addEventListener("click", choose);
          one.addEventListener("keydown", (event) => {
            const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
            if (event.key !== "Enter" && event.key !== " " && !step) return;
            event.preventDefault();
            if (!step) { choose(); return; }
            const here = one.getBBox();
            const ahead = cells.map((other) => {
              const box = other.getBBox(), x = box.x - here.x, y = box.y - here.y;
              return [x * step[0] + y * step[1], Math.abs(x * step[1]) + Math.abs(y * step[0]), other];
            }).filter(([far, aside]) => far > 1 && aside < 1).sort(([a], [b]) => a - b);
            if (!ahead.length) return;
            one.setAttribute("tabindex", -1);
            ahead[0][2].setAttribute("tabindex", 0);
            ahead[0][2].focus();
          });
        }
      }
    });
    document.querySelectorAll(".click").forEach((one) => { one.hidden = false; });
    by("explorer").hidden = false;
    show();
  };
  unpackJSON(by("data").textContent).then(explore);
})();
