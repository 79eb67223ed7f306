  const by = (id) => document.getElementById(id);
  const make = (tag, name, text) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  // the language of a text by its script, for its fonts and for screen readers
  const scripts = [["ja", /[\u3040-\u30ff]/], ["ko", /[\uac00-\ud7a3\u1100-\u11ff]/], ["zh", /[\u4e00-\u9fff]/]];
  const speak = (element, text) => {
    const found = scripts.find(([, letters]) => letters.test(text));
    if (found) element.lang = found[0];
    return element;
  };
  // signs that would act on the page are written out
  const acting = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
  const shown = (text) => text.replace(acting, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
  const normal = (text) => text.normalize("NFC").toLowerCase();
  const count = (number) => number.toLocaleString("en-US");
  const percent = (value) => `${Math.round(value * 100)}\u00a0%`;

  // paper has no folds
  const folded = [];
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details:not([open])").forEach((one) => { one.open = true; folded.push(one); });
  });
  addEventListener("afterprint", () => { folded.splice(0).forEach((one) => { one.open = false; }); });

  const unpack = (text) => {
    const raw = atob(text), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
  };
  const unpackJSON = (text) => unpack(text).json();
  const unpackBytes = async (text) => new Uint8Array(await unpack(text).arrayBuffer());

  const cell = (value) => String(value ?? "").replace(/[\t\r\n]+/g, " ");
  const copy = (text) => {
    const area = make("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy"); // the clipboard interface is missing on pages of a file
    area.remove();
  };

  // the list of texts of a page: what matches now, some at a time, counted, and copied as TSV
  const textList = ({ items, total, draw, noun, head, row, step = 25 }) => {
    let room = step;
    const show = (more) => {
      const found = Array.from(items()), first = more ? room : 0;
      room = more ? room + 4 * step : step;
      by("list").replaceChildren(...found.slice(0, room).map(draw));
      const left = found.length - room;
      by("more").hidden = left <= 0;
      by("more").textContent = `Show ${count(Math.min(left, 4 * step))} more`;
      by("count").textContent = found.length ? `${count(found.length)} of ${count(total())} ${noun}s` : `No ${noun} matches.`;
      if (more) by("list").children[first]?.querySelector("summary, button").focus();
    };
    by("more").addEventListener("click", () => show(true));
    by("copy").addEventListener("click", () => {
      const lines = [head(), ...Array.from(items(), row)].map((cells) => cells.map(cell).join("\t"));
      copy(lines.join("\n") + "\n");
      by("copy").focus();
      by("count").textContent = `Copied ${count(lines.length - 1)} ${noun}s`;
    });
    return () => show(false);
  };
