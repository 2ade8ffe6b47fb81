/* What a model does with a text: its tokens, what it expects, layer by layer, and its attention, linked by the chosen token. */
import { Attention, attentionSection } from "./attention.js";
import { bars } from "./bars.js";
import { Strip, about } from "./chips.js";
import { at, grow, make, percent, plain, quoted, write } from "./dom.js";
import { mix } from "./heat.js";
import { Lens } from "./lens.js";

const lookSections = () => [
  grow("section", { id: "reading", "aria-labelledby": "reading-title" },
    grow("h2", { id: "reading-title" }, "Tokens"),
    grow("p", { class: "hint", id: "reading-hint" }),
    grow("div", { class: "chips", id: "source", role: "group", "aria-label": "source tokens", hidden: true }),
    grow("div", { class: "chips", id: "tokens", role: "group", "aria-label": "tokens" }),
    grow("div", { class: "scale", id: "surprise" }, make("span", "", "surprising"), make("i"), make("span", "", "expected"))),
  grow("section", { id: "next", "aria-labelledby": "next-title" },
    grow("h2", { id: "next-title" }),
    grow("p", { class: "hint", id: "next-hint" }),
    grow("ol", { class: "bars", id: "bars" })),
  grow("section", { id: "lens", class: "wide", "aria-labelledby": "lens-title" },
    grow("h2", { id: "lens-title" }, "Layer by layer"),
    make("p", "hint", "If the model had to answer after each layer: the residual goes through the final norm (if there is one) and the head. "
      + "The deeper the colour, the surer; a line below marks what is also the final answer."),
    grow("div", { class: "scroll", id: "table", tabindex: 0, role: "region", "aria-label": "predictions by layer" })),
  attentionSection(),
];

export class Look {
  /* `changed(look)` hears of every choice, `told` is the element whose data say what is shown. */
  constructor(box, data, { told, changed }) {
    box.replaceChildren(...lookSections());
    const lists = { tokens: data.ids, source: data.source || [] };
    // A source may have a vocabulary of its own, in which an id says something else.
    const texts = { tokens: data.texts, source: data.source_texts };
    Object.assign(this, { data, told, lists, texts, token: data.ids.length - 1, pinned: data.ids.length - 1 });
    this.changed = () => changed(this);
    this.tokens = new Strip(at("tokens"), (place, pin) => this.choose(place, pin));
    this.attention = new Attention(data, { lists, texts, told, changed: this.changed, choose: (place, pin) => this.choose(place, pin) });
  }

  /* The token whose predictions and attention are shown. */
  choose(place, pin) {
    const { data } = this;
    this.token = place;
    if (pin) this.pinned = place;
    this.tokens.press(place);
    if (data.predicts) {
      this.lens.mark(place);
      const follows = data.predicts === "next" ? place + 1 : place, own = data.layers[data.layers.length - 1].top[place];
      bars(at("bars"), own.map(([id, share]) => ({ text: data.texts[id], share, given: id === data.ids[follows] })));
      const verb = data.predicts === "next" ? "What comes after " : "What stands at ";
      at("next-title").replaceChildren(verb, write(make("code"), data.texts[data.ids[place]]));
      const given = data.given[follows];
      at("next-hint").textContent = given
        ? `The text has ${quoted(data.texts[data.ids[follows]])} there: ${percent(given[0])}, number ${given[1]} of the candidates.`
        : "The text ends here: this is what the model would say next.";
      this.told.dataset.top = plain(data.texts[own[0][0]]);
    }
    const { shown } = this.attention;
    if (shown && shown.rows === "tokens") this.attention.look(place, pin);
    if (pin) this.changed();
  }

  async show({ token = this.pinned, layer = this.attention.layer, head = this.attention.head }) {
    this.choose(Math.min(token, this.data.ids.length - 1), true);
    await this.attention.pick(layer, head, this.token);
  }

  /* Whatever has a colour. */
  colours() {
    mix();
    this.tokens.chips.forEach((chip, place) => {
      const given = this.data.given[place];
      if (!given) return;
      const share = Math.sqrt(given[0]), side = share < 0.5 ? "low" : "high";
      chip.style.background = `color-mix(in oklab, hsl(var(--${side})) ${(200 * Math.abs(share - 0.5)).toFixed(0)}%, var(--track))`;
    });
    if (this.lens) this.lens.colours();
    this.attention.colours();
  }

  /* The colours of another theme. */
  recolour() {
    this.colours();
    return this.attention.pick(this.attention.layer, this.attention.head, this.token);
  }

  items(list) {
    return this.lists[list].map((id, place) => {
      const text = this.texts[list][id], given = list === "tokens" ? this.data.given[place] : null;
      return { text, title: about(place, text, id) + (given ? `; expected with ${percent(given[0])}, number ${given[1]}` : "") };
    });
  }

  async start() {
    const { data, told } = this;
    mix();
    if (data.source) {
      new Strip(at("source")).fill(this.items("source"));
      at("source").hidden = false;
    }
    this.tokens.fill(this.items("tokens"));
    at("reading-hint").textContent = data.predicts
      ? "Colours say how much the model expected each token where it stands. Choose one to see what it expects there."
      : "Choose a token to see what it attends to.";
    if (data.predicts) this.lens = new Lens(at("table"), data, (place, pin) => this.choose(place, pin));
    for (const id of ["next", "lens", "surprise"]) at(id).hidden = !data.predicts;
    await this.attention.grid();
    this.colours();
    this.attention.listen();
    for (const id of ["tokens", "matrix", "from"]) {
      at(id).addEventListener("pointerleave", () => this.token !== this.pinned && this.choose(this.pinned, false));
    }
    told.dataset.tokens = this.tokens.chips.length;
    told.dataset.cells = this.lens ? this.lens.cells.length : 0;
    told.dataset.heads = this.attention.thumbs.length;
  }
}
