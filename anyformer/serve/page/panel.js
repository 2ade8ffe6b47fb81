/* One token in full: how much it was expected, and what could stand in its place, under the present settings. */
import { grow, make, percent, plain, write } from "./dom.js";
import { entropyOf, sampled } from "./sampling.js";
import { bytesOf, measure, nameOf, rankOf } from "./tokens.js";

const SHOWN = 20;

export class Panel {
  /* `take(alternative)` puts another token there and goes on; `back()` returns to the token. */
  constructor(box, { name, settings, vocabulary, take, back }) {
    Object.assign(this, { box, settings, vocabulary, take, active: -1, token: null });
    this.title = grow("h2", { id: `${name}-here` }, "Token by token");
    this.facts = make("dl", "facts");
    this.hint = make("p", "hint");
    this.list = grow("ul", { class: "bars", role: "listbox", tabindex: 0, "aria-label": "alternatives, Enter puts one here and goes on" });
    this.rest = make("p", "rest");
    this.lines = Array.from({ length: SHOWN }, (_, i) => this.line(`${name}-option-${i}`, i));
    this.list.append(...this.lines.map((each) => each.line));
    box.setAttribute("aria-labelledby", `${name}-here`);
    box.append(this.title, this.facts, this.hint, this.list, this.rest);
    this.list.addEventListener("keydown", (event) => this.key(event, back));
    this.list.addEventListener("focus", () => this.active < 0 && this.move(0));
    settings.onChange(() => this.redraw());
    this.show(null);
  }

  line(id, i) {
    const line = grow("li", { role: "option", id, "aria-selected": "false" });
    const word = make("span", "word"), bar = make("span", "bar"), fill = make("i"), raw = make("u"), number = make("span", "number");
    bar.append(fill, raw);
    line.append(word, bar, number);
    line.addEventListener("click", () => this.choose(i));
    return { line, word, fill, raw, number };
  }

  /* `ghost` is the place after the last token, of which only the distribution is known. */
  show(token, place = 0, why = "") {
    const changed = token !== this.token;
    Object.assign(this, { token, place });
    if (!token) {
      this.title.textContent = "Token by token";
      this.hint.textContent = why || "Write something and continue it. Then point at a token, or walk there with the arrow keys.";
    } else {
      this.title.replaceChildren(...(token.ghost ? ["What could come next"] : ["Token ", String(place), " ", write(make("code"), nameOf(token.text))]));
      const scored = token.top ? "" : place === 0 ? "Nothing stands before the first token, so nothing was expected of it." : "Not scored yet.";
      this.hint.textContent = scored || (this.take ? "Pick another one: the text is cut here, and goes on from it." : "");
    }
    this.hint.hidden = !this.hint.textContent;
    this.details();
    if (changed) this.move(-1);
    this.redraw();
  }

  details() {
    const { token } = this, facts = [];
    if (token && !token.ghost) {
      const bits = measure(token, "surprise"), bytes = bytesOf(token.text);
      if (bits !== null) facts.push(["bits", bits.toFixed(2)], ["probability", percent(Math.exp(token.logprob))]);
      if (token.top) facts.push(["rank", rankOf(token) || `over ${SHOWN}`]);
      if (token.id !== undefined) facts.push(["id", token.id]);
      facts.push(["bytes", Array.from(bytes.subarray(0, 8), (each) => each.toString(16).padStart(2, "0")).join(" ") + (bytes.length > 8 ? " \u2026" : "")]);
    }
    if (token && token.top) facts.push(["entropy", entropyOf(token.top.slice(0, SHOWN)).toFixed(2)]);
    this.facts.replaceChildren(...facts.map(([label, value]) => grow("div", {}, make("dt", "", label), make("dd", label === "bytes" ? "mono" : "", String(value)))));
  }

  /* The bars, from what is known already: no setting needs another request. */
  redraw() {
    const top = ((this.token && this.token.top) || []).slice(0, SHOWN);
    this.list.hidden = this.rest.hidden = !top.length;
    if (!top.length) return;
    const { shares, rest } = sampled(top, this.settings.values, this.vocabulary);
    const full = Math.max(0.25, ...shares, Math.exp(top[0].logprob));
    this.lines.forEach(({ line, word, fill, raw, number }, i) => {
      line.hidden = i >= top.length;
      if (line.hidden) return;
      const own = Math.exp(top[i].logprob), here = !this.token.ghost && top[i].id === this.token.id;
      write(word, nameOf(top[i].text));
      line.classList.toggle("given", here);
      line.classList.toggle("never", shares[i] === 0);
      fill.style.width = `${(100 * shares[i] / full).toFixed(2)}%`;
      raw.style.left = `${(100 * Math.min(1, own / full)).toFixed(2)}%`;
      number.textContent = shares[i] === 0 ? "never" : percent(shares[i]);
      line.title = `${plain(nameOf(top[i].text))}, id ${top[i].id}: ${percent(own)} by itself, ${percent(shares[i])} under these settings${here ? "; the text has it" : ""}`;
    });
    const others = this.vocabulary - top.length;
    this.rest.textContent = others <= 0 ? "" : `${others.toLocaleString("en")} others: ${rest === 0 ? "never" : `about ${percent(rest)}`}. A mark on a bar is the model's own share, before the settings.`;
  }

  move(wanted) {
    const last = Math.min(SHOWN, ((this.token && this.token.top) || []).length) - 1;
    this.active = Math.min(last, wanted);
    this.lines.forEach(({ line }, i) => line.setAttribute("aria-selected", String(i === this.active)));
    if (this.active < 0) return this.list.removeAttribute("aria-activedescendant");
    this.list.setAttribute("aria-activedescendant", this.lines[this.active].line.id);
    return this.lines[this.active].line.scrollIntoView({ block: "nearest" });
  }

  choose(i) {
    if (this.take && this.token && this.token.top && this.token.top[i]) this.take(this.place, this.token.top[i], this.token.top);
  }

  key(event, back) {
    const step = { ArrowDown: this.active + 1, ArrowUp: Math.max(0, this.active - 1), Home: 0, End: SHOWN }[event.key];
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (step !== undefined) this.move(step);
    else if (event.key === "Enter") this.choose(this.active);
    else if (event.key === "Escape") back();
    else return;
    event.preventDefault();
  }
}
