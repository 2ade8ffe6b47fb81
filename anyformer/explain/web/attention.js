/* Who attends to whom: one head's matrix, what one token takes from the others, and all heads at a glance. */
import { bars } from "./bars.js";
import { Strip, about } from "./chips.js";
import { at, grow, make, plain, root } from "./dom.js";
import { paint, shade } from "./heat.js";

export const attentionSection = () => grow("section", { id: "attention", class: "wide", "aria-labelledby": "attention-title" },
  grow("h2", { id: "attention-title" }, "Attention"),
  make("p", "hint", "Pick a head. Rows look, columns are looked at. Move over the matrix or the tokens, or use the arrow keys."),
  grow("div", { class: "controls" },
    grow("label", {}, "layer ", grow("select", { id: "layer" })),
    grow("label", {}, "head ", grow("select", { id: "head" })),
    grow("output", { id: "where", "aria-live": "polite" })),
  grow("div", { class: "stage" },
    grow("canvas", { id: "matrix", tabindex: 0, role: "img", "aria-label": "attention matrix of the chosen head" }),
    grow("div", { class: "beside" },
      grow("h3", { id: "from-title" }, "looks from"),
      grow("div", { class: "chips small", id: "from", role: "group", "aria-label": "queries" }),
      grow("h3", { id: "to-title" }, "and takes"),
      grow("div", { class: "chips small", id: "to", role: "group", "aria-label": "keys", tabindex: 0 }),
      grow("ol", { class: "bars", id: "most" }))),
  make("h3", "", "All heads"),
  grow("div", { id: "grid" }));

export class Attention {
  /* `lists` are the ids of queries and keys by name, `choose(place, pin)` hears of a row of the text's own tokens,
     `changed()` of everything that the address should say. Facts for whoever reads the document go to `told`. */
  constructor(data, { lists, texts, choose, changed, told }) {
    Object.assign(this, { data, lists, texts, choose, changed, told, row: 0, layer: data.first.attention, head: data.first.head });
    this.unpacked = new Map();
    this.thumbs = [];
    this.from = new Strip(at("from"), (place, pin) => this.show(place, pin));
    this.to = new Strip(at("to"));
    this.filled = -1;
  }

  get shown() {
    return this.data.attention[this.layer];
  }

  show(row, pin) {
    (this.shown.rows === "tokens" ? this.choose : this.look.bind(this))(row, pin);
  }

  async weights(layer) {
    if (!this.unpacked.has(layer)) {
      const packed = Uint8Array.from(atob(this.data.attention[layer].data), (sign) => sign.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
      this.unpacked.set(layer, new Uint8Array(await new Response(stream).arrayBuffer()));
    }
    return this.unpacked.get(layer);
  }

  size(layer = this.layer) {
    const { rows, columns } = this.data.attention[layer];
    return [this.lists[rows].length, this.lists[columns].length];
  }

  items(list) {
    return this.lists[list].map((id, place) => ({ text: this.texts[list][id], title: about(place, this.texts[list][id], id) }));
  }

  /* What one query of the chosen head takes. */
  look(row, pin) {
    const values = this.unpacked.get(this.layer);
    if (!values || this.filled !== this.layer) return;
    const { shown, told } = this, [rows, columns] = this.size();
    this.row = Math.min(row, rows - 1);
    this.from.press(this.row);
    const start = (this.head * rows + this.row) * columns;
    const shares = Array.from(values.subarray(start, start + columns), (level) => (level / 255) ** 2);
    this.to.chips.forEach((chip, i) => shade(chip, Math.sqrt(shares[i])));
    const keys = this.lists[shown.columns], texts = this.texts[shown.columns];
    const most = shares.map((share, place) => ({ text: texts[keys[place]], share, place, title: `token ${place}` }))
      .sort((a, b) => b.share - a.share).slice(0, 5).filter((each) => each.share > 0);
    bars(at("most"), most);
    const query = this.texts[shown.rows][this.lists[shown.rows][this.row]];
    at("where").textContent = `${shown.name}, head ${this.head}: token ${this.row} ${JSON.stringify(plain(query))}`;
    told.dataset.row = this.row;
    told.dataset.sum = shares.reduce((a, b) => a + b, 0).toFixed(2);
    told.dataset.most = most.length ? most[0].place : "";
    this.cross();
    if (pin) this.changed();
  }

  /* The chosen head's matrix, and a frame around the row that is looked from. */
  cross() {
    const canvas = at("matrix"), [rows, columns] = this.size(), values = this.unpacked.get(this.layer);
    const small = document.createElement("canvas");
    paint(small, values, this.head * rows * columns, rows, columns, 1024);
    const side = Math.max(rows, columns), unit = Math.max(2, Math.floor(880 / side));
    canvas.width = columns * unit;
    canvas.height = rows * unit;
    canvas.style.aspectRatio = `${columns} / ${rows}`;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, canvas.width, canvas.height);
    context.strokeStyle = getComputedStyle(root).getPropertyValue("--ink");
    context.lineWidth = Math.max(1.5, unit / 12);
    context.strokeRect(1, this.row * unit + 1, canvas.width - 2, Math.max(2, unit - 2));
  }

  /* Show a head; `row` is what is looked from. */
  async pick(layer, head, row) {
    if (!this.data.attention.length) return;
    this.layer = Math.min(Math.max(layer, 0), this.data.attention.length - 1);
    this.head = Math.min(Math.max(head, 0), this.shown.heads - 1);
    const { shown } = this;
    await this.weights(this.layer);
    // Another head may have been picked meanwhile.
    if (shown !== this.shown) return;
    if (this.filled !== this.layer) {
      at("head").replaceChildren(...Array.from({ length: shown.heads }, (_, n) => new Option(n, n)));
      this.from.fill(this.items(shown.rows));
      this.to.fill(this.items(shown.columns));
      this.filled = this.layer;
    }
    at("layer").value = this.layer;
    at("head").value = this.head;
    for (const thumb of this.thumbs) {
      thumb.button.setAttribute("aria-pressed", String(thumb.layer === this.layer && thumb.head === this.head));
    }
    this.told.dataset.selected = `${this.layer}.${this.head}`;
    this.look(shown.rows === "tokens" && row !== undefined ? row : this.row, false);
    this.changed();
  }

  async grid() {
    const rows = [];
    for (const [layer, shown] of this.data.attention.entries()) {
      const box = make("div"), values = await this.weights(layer), [high, wide] = this.size(layer);
      for (let head = 0; head < shown.heads; head++) {
        const button = make("button", "thumb"), canvas = make("canvas");
        button.type = "button";
        button.title = `${shown.name}, head ${head}`;
        button.setAttribute("aria-label", button.title);
        button.addEventListener("click", () => this.pick(layer, head));
        paint(canvas, values, head * high * wide, high, wide, 64);
        button.append(canvas);
        box.append(button);
        this.thumbs.push({ button, layer, head, canvas });
      }
      rows.push(grow("div", { class: "row" }, make("span", "", shown.name), box));
    }
    at("grid").replaceChildren(...rows);
  }

  colours() {
    for (const { canvas, layer, head } of this.thumbs) {
      const [high, wide] = this.size(layer);
      paint(canvas, this.unpacked.get(layer), head * high * wide, high, wide, 64);
    }
  }

  listen() {
    at("layer").replaceChildren(...this.data.attention.map((each, n) => new Option(each.name, n)));
    at("layer").addEventListener("change", (event) => this.pick(+event.target.value, this.head));
    at("head").addEventListener("change", (event) => this.pick(this.layer, +event.target.value));
    const matrix = at("matrix");
    const under = (event) => {
      const [rows] = this.size(), box = matrix.getBoundingClientRect();
      return Math.min(rows - 1, Math.max(0, Math.floor(rows * (event.clientY - box.top) / box.height)));
    };
    matrix.addEventListener("pointermove", (event) => this.show(under(event), event.buttons > 0));
    matrix.addEventListener("pointerdown", (event) => this.show(under(event), true));
    matrix.addEventListener("keydown", (event) => {
      const [rows] = this.size();
      const down = { ArrowUp: -1, ArrowDown: 1 }[event.key], aside = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (down && this.row + down >= 0 && this.row + down < rows) this.show(this.row + down, true);
      if (aside && this.head + aside >= 0 && this.head + aside < this.shown.heads) this.pick(this.layer, this.head + aside);
      if (down || aside) event.preventDefault();
    });
  }
}
