/* Sliders of the settings, each with a number that can be typed. */
import { grow, make } from "./dom.js";
import { KNOBS, anySeed } from "./settings.js";

export function knobs(box, settings, name) {
  const shown = new Map();
  const lines = KNOBS.map((knob) => {
    const label = knob.label || knob.name, id = `${name}-${knob.name}`;
    const range = grow("input", { type: "range", id, min: knob.low, max: knob.high, step: knob.step, "aria-describedby": `${id}-hint` });
    const number = grow("input", { type: "number", min: knob.low, max: knob.most, step: "any", "aria-label": `${label}, as a number` });
    range.addEventListener("input", () => settings.set(knob.name, range.value));
    number.addEventListener("change", () => {
      settings.set(knob.name, number.value);
      shown.get(knob.name)();
    });
    shown.set(knob.name, () => {
      range.value = number.value = settings.values[knob.name];
    });
    return grow("div", { class: "knob" }, grow("label", { for: id }, label), number, range, grow("small", { id: `${id}-hint` }, knob.hint));
  });
  const seed = grow("input", { type: "number", id: `${name}-seed`, min: 0, step: 1, placeholder: "any", "aria-describedby": `${name}-seed-hint` });
  const dice = make("button", "quiet", "Another");
  dice.type = "button";
  dice.setAttribute("aria-label", "another seed");
  seed.addEventListener("change", () => settings.set("seed", seed.value));
  dice.addEventListener("click", () => settings.set("seed", anySeed()));
  shown.set("seed", () => {
    seed.value = settings.values.seed === null ? "" : settings.values.seed;
  });
  lines.push(grow("div", { class: "knob seed" }, grow("label", { for: `${name}-seed` }, "seed"), seed, dice,
    grow("small", { id: `${name}-seed-hint` }, "the same seed, the same text")));
  box.replaceChildren(...lines);
  shown.forEach((show) => show());
  settings.onChange((changed) => shown.get(changed)());
}
