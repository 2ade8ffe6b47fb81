/* The screen on which a text becomes tokens, is continued, and is cut and continued differently. */
import { ask, events } from "./api.js";
import { at, grow, make, plain, shorten } from "./dom.js";
import { knobs } from "./knobs.js";
import { Panel } from "./panel.js";
import { TokenStrip, completionReader, joined, nameOf } from "./tokens.js";
import { Tree } from "./tree.js";
import { bytes, count, debounced, pieceOf, typing } from "./words.js";

const LONGEST_TEXT = 200_000;
/* Milliseconds after which the panel follows a stream. */
const EVERY = 120;
const ENDS = { stop: "The model ended its text.", length: "As many tokens as were asked for.", abort: "Stopped." };

export class Write {
  constructor(app) {
    Object.assign(this, { app, tree: new Tree(), mode: "text", running: null, pinned: null, ghost: null, entered: "", typed: null, followed: 0 });
    this.area = at("write-text");
    this.strip = new TokenStrip(at("write-tokens"), (place, pin) => this.choose(place, pin));
    this.panel = new Panel(at("write-panel"), {
      name: "write", settings: app.settings, vocabulary: app.model.vocab, take: (...args) => this.branch(...args),
      back: () => this.strip.chips[this.strip.pressed] && this.strip.chips[this.strip.pressed].focus(),
    });
    knobs(at("write-knobs"), app.settings, "write");
    this.strip.onDrawn = () => this.follow();
    this.recount = debounced(150, (signal) => this.tokenCount(signal));
    this.listen();
    this.switch("text");
  }

  listen() {
    at("write-go").addEventListener("click", () => this.go());
    at("write-stop").addEventListener("click", () => this.stop());
    at("write-new").addEventListener("click", () => this.clear());
    for (const mode of ["text", "tokens"]) at(`write-as-${mode}`).addEventListener("click", () => this.view(mode));
    for (const by of ["surprise", "entropy"]) at(`write-by-${by}`).addEventListener("click", () => this.colourBy(by));
    at("write-bits").addEventListener("change", (event) => this.strip.box.classList.toggle("numbers", event.target.checked));
    this.area.addEventListener("input", () => {
      this.recount();
      this.app.remember();
    });
    at("write-tokens").addEventListener("pointerleave", () => this.show());
    at("write-tokens").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      this.choose(this.strip.placeOf(event), true);
      this.panel.list.focus();
    });
  }

  key(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.go();
    else if (event.key === "Escape" && this.running) this.stop();
    else if (event.altKey && (event.key === "ArrowLeft" || event.key === "ArrowRight") && !typing(event)) this.aside(event.key === "ArrowLeft" ? -1 : 1);
    else return false;
    return true;
  }

  colourBy(by) {
    for (const each of ["surprise", "entropy"]) at(`write-by-${each}`).setAttribute("aria-pressed", String(each === by));
    at("write-scale").dataset.by = by;
    this.strip.recolour(by);
  }

  /* The prompt as it was typed, for the address. */
  get prompt() {
    return this.mode === "text" ? this.area.value : this.entered;
  }

  set prompt(text) {
    this.area.value = text;
    this.switch("text");
    this.recount();
  }

  /* The text of the tokens: as it was typed where they begin so, and else without what the tokenizer puts before a text. */
  text() {
    const path = this.tree.path(), { prefix, blank } = this.app, typed = path.indexOf(this.typed);
    if (typed >= 0) return this.entered + joined(path.slice(typed + 1));
    const bare = prefix.every((id, i) => path[i] && path[i].id === id) ? path.slice(prefix.length) : path;
    const text = joined(bare);
    return blank && text.startsWith(" ") ? text.slice(1) : text;
  }

  switch(mode) {
    this.mode = mode;
    for (const each of ["text", "tokens"]) at(`write-as-${each}`).setAttribute("aria-pressed", String(each === mode));
    this.area.hidden = mode !== "text";
    this.strip.box.hidden = mode !== "tokens";
    at("write-colours").hidden = mode !== "tokens";
    this.counts();
  }

  /* Change between typing and tokens. Tokens of a text that nobody scored yet are scored. */
  async view(mode) {
    if (mode === this.mode) return;
    if (mode === "tokens") {
      await this.go({ score: true });
      return;
    }
    await this.stop();
    const text = this.text();
    if (text.length > LONGEST_TEXT) {
      this.fail(`This text has ${count(text.length)} characters, more than can be edited here.`);
      return;
    }
    this.area.value = this.shown = text;
    this.switch("text");
    this.area.focus();
    this.recount();
  }

  clear() {
    this.stop();
    this.tree = new Tree();
    this.strip.set([]);
    Object.assign(this, { pinned: null, ghost: null, entered: "", typed: null, shown: undefined });
    this.area.value = "";
    this.switch("text");
    this.show();
    this.branches();
    this.fail("");
    this.status("");
    this.app.remember();
    this.area.focus();
  }

  async tokenize(content, signal) {
    const answer = await ask("/tokenize", { content, add_special_tokens: true, with_pieces: true }, { signal });
    return answer.tokens.map((each) => (typeof each === "number" ? { id: each, text: `token_id:${each}` } : { id: each.id, text: pieceOf(each.piece) }));
  }

  async tokenCount(signal) {
    if (this.mode !== "text") return;
    const text = this.area.value;
    const found = text ? (await this.tokenize(text, signal)).length : 0;
    if (text === this.area.value) this.counts(found);
  }

  counts(tokens = this.mode === "tokens" ? this.tree.path().length : 0) {
    const { kv_bytes_per_token: each, max_model_len: most } = this.app.model;
    at("write-count").textContent = `${count(tokens)} of ${count(most)} tokens, ${bytes(tokens * each)} of KV cache`;
  }

  /* The typed text becomes the way that is shown. */
  async enter(signal) {
    const text = this.area.value;
    if (text !== this.shown || !this.tree.leaf.parent) {
      const tokens = await this.tokenize(text, signal);
      let node = this.tree.top;
      for (const token of tokens) node = this.tree.walk(node, token, (child) => child.id === token.id);
      this.tree.leaf = this.typed = node;
      this.entered = text;
    }
    this.draw();
    this.switch("tokens");
  }

  /* Chips of the present way; what stands there already stays. */
  draw() {
    const path = this.tree.path(), { tokens } = this.strip;
    let same = 0;
    while (same < path.length && tokens[same] === path[same]) same++;
    this.strip.cut(same);
    this.strip.add(path.slice(same));
    this.counts();
  }

  /* Continue the text; or only score it, with what could come next. */
  async go({ score = false } = {}) {
    await this.stop();
    const stop = new AbortController();
    let done;
    this.running = { stop, done: new Promise((end) => { done = end; }) };
    this.busy(true);
    this.fail("");
    const told = { tokens: 0, began: 0, usage: null, reason: null };
    try {
      if (this.mode === "text") await this.enter(stop.signal);
      this.pinned = null;
      this.drop();
      await this.read(this.request(score), stop.signal, told, score);
      this.status(score ? "Scored." : `${ENDS[told.reason] || ""} ${this.speed(told)}`);
    } catch (error) {
      if (error.name === "AbortError") this.status(`Stopped after ${count(told.tokens)} ${told.tokens === 1 ? "token" : "tokens"}.`);
      else {
        this.status("");
        this.fail(error.message);
      }
    } finally {
      this.running = null;
      this.busy(false);
      this.follow();
      this.branches();
      this.counts();
      this.app.remember();
      done();
    }
  }

  request(score) {
    const path = this.tree.path(), room = this.app.model.max_model_len - path.length;
    const fields = this.app.settings.request();
    // Where all is scored already, the server need not read it again.
    const known = path.every((node, i) => i === 0 || node.logprob !== undefined);
    return {
      model: this.app.model.name, prompt: path.map((node) => node.id), stream: true, logprobs: 20, echo: score || !known,
      return_token_ids: true, stream_options: { include_usage: true }, ...fields,
      max_tokens: score ? Math.min(1, Math.max(0, room)) : Math.min(fields.max_tokens, Math.max(1, room)),
    };
  }

  async read(body, signal, told, score) {
    const path = this.tree.path();
    const tokensOf = completionReader(body.echo);
    let scored = body.echo ? 0 : path.length;
    for await (const event of events("/v1/completions", body, { signal })) {
      if (event.usage) told.usage = event.usage;
      const choice = event.choices && event.choices[0];
      if (!choice) continue;
      told.reason = choice.finish_reason || told.reason;
      const tokens = tokensOf(choice);
      for (; scored < path.length && tokens.length; scored++) {
        const { logprob, top } = tokens.shift();
        Object.assign(path[scored], { logprob, top });
        this.strip.again(scored);
      }
      if (!tokens.length) continue;
      told.began = told.began || performance.now();
      told.tokens += tokens.length;
      if (score) {
        this.ghost = { ghost: true, text: "next", top: tokens[0].top, mark: "ghost" };
        this.strip.add([this.ghost]);
      } else this.grow(tokens, told);
    }
  }

  grow(tokens, told) {
    const grown = tokens.map((token) => {
      const node = this.tree.walk(this.tree.leaf, token, (child) => child.id === token.id);
      if (!node.top) Object.assign(node, { logprob: token.logprob, top: token.top });
      this.tree.leaf = node;
      return node;
    });
    this.strip.add(grown);
    at("write-count").textContent = `${count(this.strip.tokens.length)} tokens, ${this.speed(told)}`;
  }

  speed({ tokens, began, usage }) {
    const made = usage ? usage.completion_tokens : tokens, seconds = (performance.now() - began) / 1000;
    const rate = began && tokens > 1 && seconds > 0 ? `, ${count(Math.round((tokens - 1) / seconds))} tokens/s` : "";
    return `${count(made)} new ${made === 1 ? "token" : "tokens"}${rate}.`;
  }

  drop() {
    if (!this.ghost) return;
    this.strip.cut(this.tree.path().length);
    this.ghost = null;
  }

  /* Stop what runs; resolves when it has ended. */
  async stop() {
    if (!this.running) return;
    const { stop, done } = this.running;
    stop.abort();
    await done;
  }

  busy(runs) {
    at("write-stop").hidden = !runs;
    at("write-go").hidden = runs;
    at("screen-write").toggleAttribute("data-busy", runs);
    if (runs) this.status("Reading and writing\u2026");
  }

  status(text) {
    at("write-status").textContent = text;
  }

  fail(text) {
    at("write-error").textContent = text;
  }

  choose(place, pin) {
    if (place < 0) return;
    if (pin) this.pinned = place;
    this.show(place);
  }

  /* Stay with the last token, unless another one is looked at; not in every frame, as nobody can read that. */
  follow() {
    const now = performance.now();
    if (this.pinned !== null || (this.running && now - this.followed < EVERY)) return;
    this.followed = now;
    this.show(this.strip.drawn - 1);
  }

  show(place = this.pinned === null ? this.strip.tokens.length - 1 : this.pinned) {
    this.strip.press(place);
    this.panel.show(this.strip.tokens[place] || null, place);
  }

  /* Cut the text, put another token there, and go on. */
  async branch(place, { id, text, logprob }, top) {
    await this.stop();
    const path = this.tree.path(), parent = place ? path[place - 1] : this.tree.top;
    this.drop();
    this.tree.leaf = this.tree.walk(parent, { id, text, logprob, top }, (child) => child.id === id);
    this.draw();
    await this.go();
  }

  /* The way that a sibling took. */
  async aside(step) {
    await this.stop();
    const path = this.tree.path(), place = this.pinned === null ? path.length - 1 : Math.min(this.pinned, path.length - 1);
    const wanted = path.length ? this.tree.sibling(path[place], step) : null;
    if (!wanted) {
      this.status("There is no branch on that side.");
      return;
    }
    this.visit(wanted);
    const beside = wanted.parent.children;
    this.status(`Branch ${beside.indexOf(wanted) + 1} of ${beside.length} here.`);
  }

  visit(node) {
    this.drop();
    this.tree.visit(node);
    if (this.mode === "text") this.switch("tokens");
    this.draw();
    this.pinned = this.tree.path().indexOf(node);
    this.show();
    this.branches();
    const chip = this.strip.chips[this.pinned];
    if (chip) chip.focus();
  }

  branches() {
    const leaves = this.tree.leaves(), box = at("write-branches");
    at("write-tree").hidden = leaves.length < 2;
    box.replaceChildren(...leaves.map((leaf) => {
      const start = this.tree.start(leaf) || leaf, own = [];
      for (let node = leaf; node !== start.parent && node; node = node.parent) own.push(node);
      const said = shorten(own.reverse().slice(0, 40).map((node) => nameOf(node.text)).join(""), 90);
      const button = grow("button", { type: "button", class: "branch", "aria-current": leaf === this.tree.leaf ? "true" : false },
        make("span", "way", plain(said)), make("span", "length", `+${own.length}`));
      button.style.paddingLeft = `${10 + 14 * Math.min(8, Math.max(0, this.tree.forks(leaf) - 1))}px`;
      button.addEventListener("click", () => this.visit(start));
      return grow("li", {}, button);
    }));
  }

  /* What other screens look at. */
  present() {
    if (this.mode === "text" || !this.tree.leaf.parent) return { ids: null, text: this.area.value, place: null };
    const ids = this.tree.path().map((node) => node.id);
    return { ids, text: this.text(), place: this.pinned === null ? ids.length - 1 : Math.min(this.pinned, ids.length - 1) };
  }

  recolour() {
    this.strip.recolour();
  }
}

