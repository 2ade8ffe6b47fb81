/* The screen that shows what the model does with the present text, layer by layer and head by head. */
import { ask } from "./api.js";
import { at, make } from "./dom.js";
import { Look } from "./look.js";
import { count } from "./words.js";

const MOST = 256;

export class Inside {
  constructor(app) {
    Object.assign(this, { app, given: { ids: null, text: "", place: null }, look: null, seen: null, stop: new AbortController() });
    this.area = at("inside-text");
    at("inside-go").addEventListener("click", () => this.go());
    this.area.addEventListener("input", () => this.app.remember());
  }

  key(event) {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return false;
    this.go();
    return true;
  }

  get prompt() {
    return this.area.value;
  }

  set prompt(text) {
    this.area.value = text;
  }

  /* Take over what another screen shows, and look at it if it is something new. */
  async open(given) {
    if (given && given.text) {
      this.given = given;
      this.area.value = given.text;
    }
    const wanted = JSON.stringify([this.given.ids, this.area.value]);
    if (this.area.value && wanted !== this.seen) await this.go();
    else if (this.look && this.given.place !== null) this.look.show({ token: this.given.place });
  }

  async ids(signal) {
    const { ids, text } = this.given;
    if (ids && text === this.area.value) return ids;
    const answer = await ask("/tokenize", { content: this.area.value, add_special_tokens: true }, { signal });
    return answer.tokens.map((each) => (typeof each === "number" ? each : each.id));
  }

  async go() {
    this.stop.abort();
    this.stop = new AbortController();
    const { signal } = this.stop, most = (this.app.model.limits || {}).look_tokens || MOST;
    at("inside-error").textContent = "";
    at("inside-status").textContent = "Looking\u2026";
    at("inside-go").disabled = true;
    try {
      const ids = await this.ids(signal), shown = ids.slice(0, most);
      const data = await ask("/api/look", { ids: shown }, { signal });
      const cut = ids.length > most ? ` The first ${count(most)} of ${count(ids.length)} tokens are shown.` : "";
      await this.show(data);
      this.seen = JSON.stringify([this.given.ids, this.area.value]);
      at("inside-status").textContent = `${count(data.ids.length)} tokens.${cut}`;
    } catch (error) {
      if (error.name === "AbortError") return;
      at("inside-status").textContent = "";
      at("inside-error").textContent = error.message;
    } finally {
      if (!signal.aborted) at("inside-go").disabled = false;
    }
  }

  async show(data) {
    this.look = new Look(at("look"), data, { told: at("screen-inside"), changed: (look) => this.linked(look) });
    await this.look.start();
    const { place } = this.given;
    await this.look.show(place === null ? {} : { token: place });
    at("inside-notes").replaceChildren(...data.notes.map((note) => make("p", "hint", note)));
  }

  /* The token that is chosen here is chosen where the text comes from, too. */
  linked(look) {
    if (this.given.chosen && this.given.text === this.area.value) this.given.chosen(look.pinned);
  }

  recolour() {
    if (this.look) this.look.recolour();
  }
}
