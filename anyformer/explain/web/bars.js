/* Shares as bars, each with its word and its number. */
import { make, percent, write } from "./dom.js";

/* The parts of one line: word, bar, number. A bar is as long as its share of `full`. */
export function barLine(line, text, share, full) {
  const bar = make("span", "bar"), fill = make("i");
  fill.style.width = `${(100 * Math.min(1, share / full)).toFixed(1)}%`;
  bar.append(fill);
  const word = write(make("span", "word"), text);
  line.append(word, bar, make("span", "number", percent(share)));
  return { word, bar, fill };
}

/* Lines of {text, share, given, title}. */
export function bars(box, shares) {
  const full = Math.max(...shares.map((each) => each.share), 0.25);
  box.replaceChildren(...shares.map(({ text, share, given, title }) => {
    const line = make("li", given ? "given" : "");
    const { word } = barLine(line, text, share, full);
    if (title) word.title = title;
    return line;
  }));
}
