/* Colours for numbers between 0 and 1, from the theme, and matrices drawn with them. */
import { root } from "./dom.js";

const ramps = new Map();

function triple(name) {
  return getComputedStyle(root).getPropertyValue(name).trim().split(/\s+/).map(Number);
}

/* A colour for each of the 256 levels of every ramp that the style sheet has. */
export function mix(names = ["heat"]) {
  for (const name of names) {
    const [from, to] = [triple(`--${name}-from`), triple(`--${name}-to`)];
    const level = (n) => from.map((low, i) => Math.round(low + (to[i] - low) * (n / 255)));
    ramps.set(name, Array.from({ length: 256 }, (_, n) => level(n)));
  }
}

function luminance(colour) {
  const [r, g, b] = colour.map((each) => (each / 255 <= 0.04045 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/* Black or white, whichever can be read better: on any colour, one of the two has a contrast above 4.5. */
export function ink(colour) {
  return luminance(colour) > 0.179 ? "#000000" : "#ffffff";
}

export function colourAt(strength, name = "heat") {
  return ramps.get(name)[Math.round(255 * Math.min(1, Math.max(0, strength)))];
}

export function shade(element, strength, name = "heat") {
  const colour = colourAt(strength, name);
  element.style.background = `rgb(${colour.join(" ")})`;
  element.style.color = ink(colour);
}

/* A matrix on a canvas, made smaller by keeping the highest of what falls together. */
export function paint(canvas, values, offset, rows, columns, most) {
  const shades = ramps.get("heat");
  const down = Math.max(1, Math.ceil(Math.max(rows, columns) / most));
  const high = Math.ceil(rows / down), wide = Math.ceil(columns / down);
  canvas.width = wide;
  canvas.height = high;
  const context = canvas.getContext("2d"), image = context.createImageData(wide, high);
  for (let y = 0; y < high; y++) {
    for (let x = 0; x < wide; x++) {
      let level = 0;
      for (let t = y * down; t < Math.min(rows, (y + 1) * down); t++) {
        for (let s = x * down; s < Math.min(columns, (x + 1) * down); s++) level = Math.max(level, values[offset + t * columns + s]);
      }
      image.data.set([...shades[level], 255], 4 * (y * wide + x));
    }
  }
  context.putImageData(image, 0, 0);
}
