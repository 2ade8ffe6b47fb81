/* Tokens in a row. One of them can be chosen: by pointer, and with the keys, for which the row is a single stop. */
import { make, plain, write } from "./dom.js";

export class Strip {
  /* `choose(place, pin)` hears of a token that is pointed at, or picked. Without it the tokens are only shown. */
  constructor(box, choose) {
    this.box = box;
    this.choose = choose;
    this.chips = [];
    this.pressed = -1;
    if (!choose) return;
    box.addEventListener("pointerover", (event) => {
      const place = this.placeOf(event);
      if (place >= 0 && event.pointerType === "mouse") this.choose(place, false);
    });
    box.addEventListener("click", (event) => this.placeOf(event) >= 0 && this.choose(this.placeOf(event), true));
    box.addEventListener("keydown", (event) => this.step(event));
  }

  placeOf(event) {
    const chip = event.target.closest(".chip");
    return chip && this.box.contains(chip) ? +chip.dataset.place : -1;
  }

  /* A chip for a token {text, title}; it is not in the document yet. */
  chip(token) {
    const chip = write(make(this.choose ? "button" : "span", "chip"), token.text);
    chip.title = token.title;
    chip.dataset.place = this.chips.length;
    if (this.choose) {
      chip.type = "button";
      chip.tabIndex = this.chips.length ? -1 : 0;
      chip.setAttribute("aria-pressed", "false");
    }
    this.chips.push(chip);
    return chip;
  }

  fill(tokens) {
    this.chips = [];
    this.pressed = -1;
    this.box.replaceChildren(...tokens.map((token) => this.chip(token)));
  }

  press(place) {
    const before = this.chips[this.pressed] || this.chips[0], now = this.chips[place];
    if (before) {
      before.setAttribute("aria-pressed", "false");
      before.tabIndex = -1;
    }
    if (now) {
      now.setAttribute("aria-pressed", "true");
      now.tabIndex = 0;
    } else if (this.chips[0]) this.chips[0].tabIndex = 0;
    this.pressed = now ? place : -1;
  }

  step(event) {
    const place = this.placeOf(event), last = this.chips.length - 1;
    if (place < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const wanted = {
      ArrowLeft: () => place - 1, ArrowRight: () => place + 1, Home: () => 0, End: () => last,
      ArrowUp: () => this.beside(place, -1), ArrowDown: () => this.beside(place, 1),
    }[event.key];
    if (!wanted) return;
    event.preventDefault();
    const found = Math.min(last, Math.max(0, wanted()));
    this.choose(found, true);
    this.chips[found].focus();
  }

  /* The token above or below, where the row is broken into lines. */
  beside(place, down) {
    const box = (i) => this.chips[i].getBoundingClientRect();
    const from = box(place), middle = from.left + from.width / 2;
    let line = null, best = place, apart = Infinity;
    for (let i = place + down; i >= 0 && i < this.chips.length; i += down) {
      const each = box(i);
      if (Math.abs(each.top - from.top) < 3) continue;
      if (line === null) line = each.top;
      if (Math.abs(each.top - line) >= 3) break;
      const here = Math.abs(each.left + each.width / 2 - middle);
      if (here < apart) [best, apart] = [i, here];
    }
    return best;
  }
}

/* What a chip says of a token when it is pointed at. */
export const about = (place, text, id) => `${place}: ${JSON.stringify(plain(text))}, id ${id}`;
