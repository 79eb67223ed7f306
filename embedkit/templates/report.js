"use strict";
(() => {
{% include "page.js" %}
  document.querySelectorAll("[data-label]").forEach((one) => speak(one, one.textContent));
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
          const text = row.cells[column].dataset.value ?? row.cells[column].textContent;
          const number = parseFloat(text.replace(/,/g, "").replace("\u2212", "-"));
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
  by("copy-next").hidden = false;
  by("copy-next").addEventListener("click", () => {
    copy(by("next").textContent);
    by("copy-next").textContent = "Copied";
    by("copy-next").focus();
  });

  const explore = (data) => {
    const isClasses = data.labels.length > 0;
    const state = { list: data.order[0], view: null, text: "", truth: "", predicted: "" };
    const everything = Array.from(data.rows, (_, i) => i);
    let searched = null;
    const label = (number) => (isClasses ? data.labels[number] : String(number));
    const named = (tag, style, text) => {
      const element = make(tag, style);
      // a line may end after the marks inside a name, rather than inside its words
      for (const part of shown(text).split(/(?<=\p{L}[_/])(?=\p{L})/u)) element.append(part, make("wbr"));
      return speak(element, text);
    };
    const textOf = (i) => shown(data.texts[i] ?? `record ${data.rows[i]}`);

    // a view of a probe: the number of the probe and its name
    const byView = ({ probe, name }) => data.views[probe][name];
    const isWrong = (answer, i) => (isClasses ? answer !== data.y[i] : Math.abs(answer - data.y[i]) > data.limit);
    const errorsOf = (view) => everything.filter((i) => isWrong(byView(view)[i], i));
    const matching = () => {
      let found = state.view ? errorsOf(state.view) : state.list === "all" ? everything : data.lists[state.list];
      if (state.truth !== "") found = found.filter((i) => data.y[i] === Number(state.truth));
      if (state.predicted !== "") found = found.filter((i) => data.predicted[0][i] === Number(state.predicted));
      if (state.text) {
        searched ??= everything.map((i) => normal(`${data.texts[i] ?? ""}\n${data.ids[i]}\n${data.rows[i]}`));
        const query = normal(state.text);
        found = found.filter((i) => searched[i].includes(query));
      }
      return found;
    };

    // answers: of classes those of the same class together, with their probabilities
    const FEW = 3;
    const answers = (i, whole = false) => {
      const groups = new Map();
      data.methods.forEach((_, method) => {
        const key = isClasses ? data.predicted[method][i] : method;
        groups.set(key, [...(groups.get(key) ?? []), method]);
      });
      const chips = [...groups.values()].map((methods) => {
        const number = data.predicted[methods[0]][i];
        const wrong = isClasses ? number !== data.y[i] : !data.right[methods[0]][i];
        const chip = make("span", wrong ? "chip wrong" : "chip");
        chip.append(named("b", "", label(number)));
        for (const method of whole ? methods : methods.slice(0, FEW)) {
          const who = make("span", "who");
          who.append(make("span", "by", shown(data.methods[method])));
          if (isClasses) who.append(` ${Math.round(data.confidence[method][i] / 10)}\u00a0%`);
          chip.append(who);
        }
        if (!whole && methods.length > FEW) chip.append(make("span", "rest", `+${methods.length - FEW}`));
        return chip;
      });
      if (!whole && chips.length > FEW + 1) chips.splice(FEW, chips.length, make("span", "rest", `+${chips.length - FEW}`));
      if (state.view) {
        const answer = byView(state.view)[i], chip = make("span", isWrong(answer, i) ? "chip wrong" : "chip");
        chip.append(named("b", "", label(answer)), make("span", "by", state.view.name));
        chips.push(chip);
      }
      const truth = make("span", "chip true");
      truth.append(make("span", "by", "true"), named("span", "", label(data.y[i])));
      return [truth, ...chips];
    };
    const draw = (i) => {
      const item = make("article", "case"), details = make("details"), summary = make("summary"), chips = make("div", "chips");
      summary.append(named("p", "text", textOf(i)));
      details.append(summary);
      details.addEventListener("toggle", () => {
        if (!details.open) return;
        chips.replaceChildren(...answers(i, true));
        open(details, i);
      }, { once: true });
      chips.append(...answers(i));
      item.append(details, chips);
      return item;
    };
    const open = (details, i) => {
      const near = data.near?.of[i];
      if (near) {
        const box = make("div", "near"), list = make("ul");
        for (const [j, cosine] of near) {
          const line = make("li"), tag = make("span", isClasses && data.y[j] !== data.y[i] ? "chip wrong" : "chip");
          tag.append(named("span", "", label(data.y[j])));
          line.append(tag, " ", named("span", "", textOf(j).slice(0, 300)), " ", make("span", "soft", (cosine / 1000).toFixed(3)));
          list.append(line);
        }
        box.append(make("p", "soft", `Nearest ${data.noun}s (${data.near.view}, cosine)`), list);
        details.append(box);
      }
      const where = [`record ${data.rows[i]}`, `fold ${data.fold[i]}`];
      if (data.ids[i] !== String(data.rows[i])) where.splice(1, 0, shown(data.ids[i]));
      if (data.lengths) where.push(`${count(data.lengths[i])} tokens`);
      if (data.lists.cut?.includes(i)) where.push("cut");
      details.append(make("p", "where", where.join(" · ")));
    };
    const show = textList({
      items: matching, total: () => everything.length, draw, noun: data.noun,
      head: () => ["row", "id", "true", ...data.methods.flatMap((m) => (isClasses ? [m, `${m} %`] : [m])), ...(state.view ? [state.view.name] : []), "text"],
      row: (i) => [
        data.rows[i], data.ids[i], label(data.y[i]),
        ...data.methods.flatMap((_, m) => (isClasses ? [label(data.predicted[m][i]), data.confidence[m][i] / 10] : [data.predicted[m][i]])),
        ...(state.view ? [label(byView(state.view)[i])] : []), data.texts[i],
      ],
    });

    const tabs = document.querySelector("#explorer .tabs");
    const tab = (name, text, number) => {
      const button = make("button", "", text);
      button.type = "button";
      button.dataset.name = name;
      button.append(make("span", "num", count(number)));
      return button;
    };
    const set = (changes) => {
      Object.assign(state, "list" in changes ? { view: null } : {}, changes);
      by("find").value = state.text;
      if (isClasses) [by("true").value, by("predicted").value] = [state.truth, state.predicted];
      tabs.querySelector("[data-name=view]")?.remove();
      if (state.view) tabs.append(tab("view", `${state.view.name} wrong`, errorsOf(state.view).length));
      for (const button of tabs.children) button.setAttribute("aria-pressed", String(button.dataset.name === (state.view ? "view" : state.list)));
      show();
    };
    for (const name of data.order) {
      const button = tab(name, data.names[name], name === "all" ? everything.length : data.lists[name].length);
      button.addEventListener("click", () => set({ list: name }));
      tabs.append(button);
    }
    const go = (changes) => {
      set({ text: "", truth: "", predicted: "", ...changes });
      by("cases").scrollIntoView();
      tabs.querySelector("[aria-pressed=true]").focus({ preventScroll: true });
    };
    by("find").addEventListener("input", (event) => { state.text = event.target.value; show(); });
    by("true")?.addEventListener("change", (event) => set({ truth: event.target.value }));
    by("predicted")?.addEventListener("change", (event) => set({ predicted: event.target.value }));
    by("clear").addEventListener("click", () => set({ text: "", truth: "", predicted: "" }));
    for (const button of document.querySelectorAll("button[data-true]")) {
      button.addEventListener("click", () => go({ list: "all", truth: button.dataset.true, predicted: button.dataset.predicted }));
    }
    for (const button of document.querySelectorAll("button[data-list]")) {
      button.hidden = false;
      button.addEventListener("click", () => go({ list: button.dataset.list }));
    }

    // of two classes: what another threshold would find
    if (by("threshold")) {
      const positive = everything.map((i) => (data.predicted[0][i] ? data.confidence[0][i] : 1000 - data.confidence[0][i]));
      const slide = () => {
        const limit = by("slide").value * 10, within = by("person").value * 10;
        const rest = everything.filter((i) => Math.abs(positive[i] - limit) >= within), sent = everything.length - rest.length;
        const chosen = rest.filter((i) => positive[i] >= limit), right = chosen.filter((i) => data.y[i] === 1).length;
        const part = (some, all) => (all ? percent(some / all) : "–");
        by("limit").textContent = percent(limit / 1000);
        by("within").textContent = `${within / 10} points`;
        by("limited").textContent = `${count(chosen.length)} of ${count(rest.length)} predicted so; recall ${part(right, rest.filter((i) => data.y[i] === 1).length)}, precision ${part(right, chosen.length)}; ${part(sent, everything.length)} sent to a person`;
      };
      by("threshold").hidden = false;
      by("slide").addEventListener("input", slide);
      by("person").addEventListener("input", slide);
      slide();
    }

    // cells of a heat map lead to the errors of their view; arrow keys go from cell to cell
    data.views.forEach((views, probe) => {
      const svg = document.querySelector(`#picture-layers-${probe + 1} svg`);
      if (!Object.keys(views).length) return;
      svg.setAttribute("role", "group");
      const cells = [...svg.querySelectorAll("polygon[data-name]")];
      const best = cells.find((one) => one.style.stroke) ?? cells[0];
      for (const one of cells) {
        const { name } = one.dataset, choose = () => go({ list: "all", view: { probe, name } });
        one.setAttribute("role", "button");
        one.setAttribute("tabindex", one === best ? 0 : -1);
        one.setAttribute("aria-label", `${name} wrong`);
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
    });
    document.querySelectorAll(".click").forEach((one) => { one.hidden = false; });
    by("explorer").hidden = false;
    set({});
  };
  unpackJSON(by("data").textContent).then(explore);
})();
