/* Elements and texts. Whatever a model says becomes the text of a node, never a part of the document. */

export const root = document.documentElement;
export const at = (id) => document.getElementById(id);

export function percent(share) {
  if (share > 0 && share < 0.00005) return "<0.01%";
  return `${share >= 0.9995 ? "100" : (100 * share).toFixed(share < 0.1 ? 2 : 1)}%`;
}


export function make(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

/* An element with attributes and what stands in it. */
export function grow(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside);
  return made;
}

/* What a chip shows of a token that does not end. */
const MOST_SIGNS = 120;
const signs = { "\n": "\u21b5", "\t": "\u21e5", "\r": "\u240d", "\u007f": "\u2421" };

/* Characters that move the cursor, turn the direction of writing, or are not to be seen at all. */
const hidden = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udc7f]/g;

function placeholder(sign) {
  if (signs[sign]) return signs[sign];
  const code = sign.codePointAt(0);
  return code < 32 ? String.fromCharCode(0x2400 + code) : `\u2039U+${code.toString(16).toUpperCase().padStart(4, "0")}\u203a`;
}

/* A text in which everything can be seen; `kept` are characters that may do what they do. */
export function visible(text, kept = "") {
  return text.replace(hidden, (sign) => (kept.includes(sign) ? sign : placeholder(sign)));
}

export function shorten(text, most = MOST_SIGNS) {
  return text.length > most ? `${text.slice(0, most)}\u2026` : text;
}

/* What a token says, on one line. */
export function plain(text) {
  const shown = visible(shorten(text));
  return shown === "" ? "\u2205" : shown;
}

export const quoted = (text) => JSON.stringify(plain(text));

/* A token's text in an element: blanks at its ends are there to be seen. */
export function write(element, text) {
  const [, before, middle, after] = plain(text).match(/^( *)([^]*?)( *)$/);
  element.replaceChildren();
  for (const [part, blank] of [[before, true], [middle, false], [after, true]]) {
    if (part) element.append(blank ? make("span", "blank", "\u00b7".repeat(part.length)) : part);
  }
  return element;
}
